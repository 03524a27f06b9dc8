"""The operations that are known to keep examples apart: a table to be audited, line by line.

Each function says where the examples are after the operation, or stops the proof. It sees symbolic
shapes (``step.Step``). Names are those of ATen, without overloads; in-place forms go by the same
name. What is not in the table is not proven."""

from collections.abc import Callable

from proxyfl.privacy.perexample import arithmetic, movement
from proxyfl.privacy.perexample.step import Axes, Step, along, several, trailing


def _table(groups: dict[Callable[[Step], Axes], str]) -> dict[str, Callable[[Step], Axes]]:
    table: dict[str, Callable[[Step], Axes]] = {}
    for function, names in groups.items():
        for name in names.split():
            table[name] = function
    return table


OPERATIONS = _table(
    {
        several(arithmetic.broadcast): """
            abs add addcdiv addcmul alias alpha_dropout atan atan2 bernoulli bitwise_and
            bitwise_not bitwise_or broadcast_tensors ceil celu clamp clamp_max clamp_min clone
            contiguous copy cos
            detach div divide dropout elu eq erf exp exp2 expm1 feature_alpha_dropout
            feature_dropout fill floor floor_divide fmod frac full_like ge gelu gt hardshrink
            hardsigmoid hardswish hardtanh isfinite isinf isnan le leaky_relu lerp lift_fresh
            lift_fresh_copy log log10 log1p log2 log_sigmoid logical_and logical_not logical_or
            logit lt masked_fill maximum minimum mish mul multiply nan_to_num native_dropout ne neg
            normal ones_like positive pow rand_like randn_like reciprocal relu relu6 remainder
            round rrelu rrelu_with_noise rsqrt rsub selu sgn sigmoid sign silu sin sinh softplus
            softshrink sqrt square sub subtract tan tanh threshold to _to_copy true_divide trunc
            type_as uniform xlogy zero zeros_like""",
        arithmetic.where: "where",
        arithmetic.loss: "binary_cross_entropy binary_cross_entropy_with_logits huber_loss kl_div"
        " l1_loss mse_loss poisson_nll_loss smooth_l1_loss soft_margin_loss",
        arithmetic.class_loss: "cross_entropy_loss nll_loss nll_loss_nd",
        trailing(1): "adaptive_avg_pool1d adaptive_max_pool1d avg_pool1d linear max_pool1d"
        " upsample_linear1d upsample_nearest1d",
        trailing(2): "adaptive_avg_pool2d adaptive_max_pool2d avg_pool2d max_pool2d"
        " max_pool2d_with_indices upsample_bicubic2d upsample_bilinear2d upsample_nearest2d tril"
        " triu",
        trailing(3): "adaptive_avg_pool3d adaptive_max_pool3d avg_pool3d max_pool3d"
        " upsample_nearest3d upsample_trilinear3d pixel_shuffle pixel_unshuffle",
        arithmetic.convolution: "conv1d conv2d conv3d"
        " conv_transpose1d conv_transpose2d conv_transpose3d",
        arithmetic.leading: "group_norm channel_shuffle im2col",
        arithmetic.instance_norm: "instance_norm",
        arithmetic.layer_norm: "layer_norm rms_norm",
        several(along): "cummax cummin cumprod cumsum flip glu log_softmax logcumsumexp roll"
        " softmax sort split split_with_sizes unsafe_split chunk unsafe_chunk tensor_split topk"
        " index_select _softmax _log_softmax",
        several(arithmetic.reduce): "all amax amin any argmax argmin linalg_vector_norm"
        " logsumexp max mean median min norm prod std sum var count_nonzero var_mean std_mean",
        movement.reshape: "view reshape flatten unflatten _unsafe_view view_as reshape_as",
        movement.permute: "permute transpose t swapaxes swapdims movedim moveaxis mT numpy_T",
        movement.unsqueeze: "unsqueeze",
        movement.squeeze: "squeeze",
        movement.expand: "expand expand_as",
        movement.repeat: "repeat",
        movement.repeat_interleave: "repeat_interleave",
        movement.create: "zeros ones full new_zeros new_ones new_full rand randn",
        movement.uninitialised: "empty new_empty empty_like",
        movement.select: "select",
        movement.cut: "slice narrow",
        movement.unbind: "unbind",
        movement.cat: "cat concat",
        movement.stack: "stack",
        movement.index: "index",
        movement.embedding: "embedding",
        movement.one_hot: "one_hot",
        movement.gather: "gather scatter scatter_add",
        movement.pad: "pad constant_pad_nd reflection_pad1d reflection_pad2d replication_pad1d"
        " replication_pad2d",
        movement.unfold: "unfold",
        arithmetic.bilinear: "bilinear",
        arithmetic.matmul: "matmul mm bmm mv addmm baddbmm",
        arithmetic.attention: "scaled_dot_product_attention",
        arithmetic.einsum: "einsum",
        arithmetic.prelu: "prelu",
    }
)

_SIZED = """
    view reshape flatten unflatten _unsafe_view view_as reshape_as expand expand_as repeat
    repeat_interleave zeros ones full new_zeros new_ones new_full rand randn empty new_empty
    empty_like slice narrow"""

SIZED = frozenset(_SIZED.split())
"""The operations that may be given a multiple of the number of examples: as a size, for which their
functions answer. To all others it would be a value (``addmm(alpha=len(x))``)."""
