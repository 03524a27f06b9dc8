r"""The architectures: fully connected, convolutional, residual, and on random waves.

None has BatchNorm or dropout: each can be a proxy, and none draws random numbers while it learns.

Fully connected (``linear``, ``mlp``, ``tabular``): they flatten whatever comes, so they fit every
shape.

Convolutional (``lenet5``, ``cnn1``, ``cnn2``, ``vgg``): the paper's three follow Shen et al. (2020,
arXiv:2006.16765) and pad nothing at 28x28 and 32x32. On images too small for that, such as 8x8
digits, their convolutions pad so that they keep the size; the layers stay the same.

ResNet-18 with GroupNorm (``resnet18``), the paper's histopathology model: He et al. (2016,
arXiv:1512.03385v1, table 1) with every BatchNorm replaced by a GroupNorm of 32 groups (Wu & He
2018, arXiv:1803.08494v3). BatchNorm makes an example's gradient depend on the whole batch, which
DP-SGD's analysis forbids. Images under 64 pixels would be next to nothing before the last stage, so
for them the 7x7 stem of stride 2 and its max-pooling give way to one 3x3 convolution of stride 1.

Random waves (``fourier``): logistic regression that sees interactions and stays linear in what it
learns.

    features = LENGTH sqrt(2 / WAVES) cos(F x + b),   F ~ N(0, BANDWIDTH^2 / d),   b ~ U(0, 2 pi)

for d inputs (Rahimi and Recht 2007: random features of a Gaussian kernel). F and b are public
numbers that never change: they are drawn from a seed of their own, the same for everybody.
Guarantees: only the last layer learns and travels; the features of an example have a length of
LENGTH on average, whatever the example, so that clipping treats all alike.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from proxyfl._examples import Shape
from proxyfl.errors import ConfigError, ModelError


def _layers(shape: Shape, classes: int, *hidden: int) -> nn.Sequential:
    model = nn.Sequential(nn.Flatten())
    width = math.prod(shape)
    for units in hidden:
        model.append(nn.Linear(width, units))
        model.append(nn.ReLU())
        width = units
    return model.append(nn.Linear(width, classes))


def linear(shape: Shape, classes: int) -> nn.Module:
    """Multinomial logistic regression: the fewest parameters, so the least noise under DP."""
    return _layers(shape, classes)


class ProportionalHazards(nn.Module):
    """One score for all intervals, and a baseline for each: logits = w x + b_k."""

    def __init__(self, inputs: int, intervals: int) -> None:
        super().__init__()
        self.score = nn.Linear(inputs, 1, bias=False)
        self.baseline = nn.Parameter(torch.full((intervals,), BASELINE))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.score(x.flatten(1)) + self.baseline
        return logits


BASELINE = -2.0
"""The logit of every hazard before training: 0.12, as events are rare within an interval."""


def hazards(shape: Shape, classes: int) -> nn.Module:
    """Proportional hazards in discrete time: one weight for each input, a baseline for each
    interval."""
    return ProportionalHazards(math.prod(shape), classes)


def mlp(shape: Shape, classes: int) -> nn.Module:
    """The paper's MLP (appendix): two hidden layers of 200 units, ReLU."""
    return _layers(shape, classes, 200, 200)


def tabular(shape: Shape, classes: int) -> nn.Module:
    """For tables: two hidden layers of 64 units, ReLU. No normalisation: its statistics would have
    to be accounted."""
    return _layers(shape, classes, 64, 64)


VGG_BLOCKS = ((16,), (32,), (64, 64), (128, 128), (128, 128))
"""The channels of each convolution, block by block."""


def lenet5(shape: Shape, classes: int) -> nn.Module:
    """conv(5x5, 6), conv(5x5, 16), each with ReLU and maxpool(2x2); fc(120), fc(84),
    fc(classes)."""
    features, width = _two_blocks("lenet5", shape, kernel=5, channels=(6, 16))
    return features.extend(
        [nn.Linear(width, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, classes)]
    )


def cnn1(shape: Shape, classes: int) -> nn.Module:
    """conv(3x3, 6), conv(3x3, 16), each with ReLU and maxpool(2x2); fc(64), fc(classes)."""
    features, width = _two_blocks("cnn1", shape, kernel=3, channels=(6, 16))
    return features.extend([nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, classes)])


def cnn2(shape: Shape, classes: int) -> nn.Module:
    """conv(3x3, 128), conv(3x3, 128), each with ReLU and maxpool(2x2); fc(classes)."""
    features, width = _two_blocks("cnn2", shape, kernel=3, channels=(128, 128))
    return features.append(nn.Linear(width, classes))


def vgg(shape: Shape, classes: int) -> nn.Module:
    """VGG-11 at a quarter of its width, with one hidden layer of 128 units in its head.

    The paper takes "the VGG model from Yang et al. (2021) with minor adjustments" for 100x80
    endoscopy images and prints no layers. This is our reading: configuration A of Simonyan &
    Zisserman (2015, arXiv:1409.1556v6, table 1), five blocks of 3x3 convolutions and maxpool(2x2),
    small enough to be trained with DP. Weights start as in He et al. (2015, arXiv:1502.01852v1, eq.
    10): on Kvasir (Adam, batches of 64) the mean loss of steps 41 to 60 is 0.88 so, and 1.66 from
    torch's default, which stays at chance for the first 20."""
    channels, height, width = image_shape("vgg", shape, smallest=32)
    model = nn.Sequential()
    for block in VGG_BLOCKS:
        for outputs in block:
            layer = nn.Conv2d(channels, outputs, kernel_size=3, padding=1)
            model.append(_he(layer))
            model.append(nn.ReLU())
            channels = outputs
        model.append(nn.MaxPool2d(2))
        height //= 2
        width //= 2
    hidden = nn.Linear(channels * height * width, 128)
    return model.extend([nn.Flatten(), _he(hidden), nn.ReLU(), nn.Linear(128, classes)])


def _two_blocks(
    name: str, shape: Shape, *, kernel: int, channels: tuple[int, int]
) -> tuple[nn.Sequential, int]:
    """Two of (convolution, ReLU, maxpool(2x2)), then flat; and how many numbers come out per image.

    ReLU comes after the pooling here. It is monotone, so values and gradients are the same, for a
    quarter of the work."""
    inputs, *sides = image_shape(name, shape, smallest=4)

    def out(side: int, padding: int) -> int:
        for _ in channels:
            side = (side + 2 * padding - kernel + 1) // 2
        return side

    padding = 0
    if out(min(sides), padding) < 1:
        padding = kernel // 2
    first, second = channels
    features = nn.Sequential(
        nn.Conv2d(inputs, first, kernel, padding=padding),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(first, second, kernel, padding=padding),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
    )
    height, width = (out(side, padding) for side in sides)
    return features, second * height * width


def image_shape(name: str, shape: Shape, *, smallest: int) -> tuple[int, int, int]:
    """``shape`` as (channels, height, width), if it is one and both sides reach ``smallest``."""
    if len(shape) != 3:
        raise ModelError(
            f"{name} expects images of shape (channels, height, width), got shape {shape}. "
            "For other data take linear, mlp or tabular."
        )
    channels, height, width = shape
    if min(height, width) < smallest:
        raise ModelError(
            f"{name} expects images of at least {smallest}x{smallest} pixels, got "
            f"{height}x{width}. Enlarge the images, or take a smaller model (proxyfl models)."
        )
    return channels, height, width


def _he(layer: nn.Conv2d | nn.Linear) -> nn.Module:
    """``layer`` with weights whose variance a ReLU preserves, and no bias."""
    nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


GROUPS = 32
SMALL = 64
STAGES = ((64, 1), (128, 2), (256, 2), (512, 2))
"""The channels and the stride of each stage."""


class Block(nn.Module):
    """Two 3x3 convolutions and the shortcut around them; a 1x1 convolution where size or channels
    change."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            _convolution(inputs, outputs, kernel=3, stride=stride),
            nn.GroupNorm(GROUPS, outputs),
            nn.ReLU(),
            _convolution(outputs, outputs, kernel=3, stride=1),
            nn.GroupNorm(GROUPS, outputs),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                _convolution(inputs, outputs, kernel=1, stride=stride),
                nn.GroupNorm(GROUPS, outputs),
            )
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.relu(self.residual(x) + self.shortcut(x))
        return out


def resnet18(shape: Shape, classes: int) -> nn.Module:
    """Four stages of two blocks, 64 to 512 channels, global average, fc(classes). Any size, any
    number of channels."""
    channels, height, width = image_shape("resnet18", shape, smallest=1)
    large = min(height, width) >= SMALL
    kernel = 7 if large else 3
    stride = 2 if large else 1
    model = nn.Sequential(
        _convolution(channels, 64, kernel=kernel, stride=stride),
        nn.GroupNorm(GROUPS, 64),
        nn.ReLU(),
    )
    if large:
        model.append(nn.MaxPool2d(3, stride=2, padding=1))
    inputs = 64
    for outputs, stride in STAGES:
        model.append(Block(inputs, outputs, stride))
        model.append(Block(outputs, outputs, 1))
        inputs = outputs
    return model.extend([nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, classes)])


def _convolution(inputs: int, outputs: int, *, kernel: int, stride: int) -> nn.Conv2d:
    layer = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False)
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return layer


WAVES = 256
LENGTH = 2.0
BANDWIDTH = 3.4
"""How quickly the waves change. With about this, one category more or less matters and a row that
differs in half of its columns is a stranger."""

_SEED = 2007


class Fourier(nn.Module):
    """A linear layer on fixed random waves of the inputs."""

    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(_SEED)
        normal = torch.randn(inputs, WAVES, generator=draw)
        uniform = torch.rand(WAVES, generator=draw)
        frequencies = normal * BANDWIDTH / inputs**0.5
        phases = uniform * 2 * math.pi
        self.register_buffer("frequencies", frequencies)
        self.register_buffer("phases", phases)
        self.last = nn.Linear(WAVES, classes)

    def forward(self, x: Tensor) -> Tensor:
        angles = x.flatten(1) @ self.get_buffer("frequencies")
        waves = torch.cos(angles + self.get_buffer("phases"))
        height = LENGTH * math.sqrt(2 / WAVES)
        logits: Tensor = self.last(waves * height)
        return logits


def fourier(shape: Shape, classes: int) -> nn.Module:
    """Logistic regression on 256 random waves of the inputs."""
    return Fourier(math.prod(shape), classes)


def set_score(model: nn.Module, score: Sequence[float], shares: Sequence[float] = ()) -> None:
    """Start a linear model of two classes at a published score: the coefficient of each input in
    the log odds of the second class, and the intercept. ``shares`` are those that its loss adds to
    the logits (a balance by the prior), which the score has already."""
    *weights, intercept = score
    layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    fits = len(layers) == 1 and layers[0].weight.shape == (2, len(weights))
    if not fits:
        raise ConfigError(
            "A published score (start in the schema) starts a linear proxy of the schema's columns "
            "and two classes, and this proxy is another. Take the proxy linear, or take [start] "
            "out of the schema."
        )
    added = [math.log(share) for share in shares] or [0.0, 0.0]
    with torch.no_grad():
        half = layers[0].weight.new_tensor(weights) / 2
        layers[0].weight.copy_(torch.stack([-half, half]))
        bias = [-intercept / 2 - added[0], intercept / 2 - added[1]]
        layers[0].bias.copy_(layers[0].bias.new_tensor(bias))


def set_prior(model: nn.Module, shares: Sequence[float]) -> bool:
    """Set the bias of the last linear layer to the log of ``shares``, so that training begins at
    the known prevalence; whether the model has such a layer."""
    for layer in reversed(list(model.modules())):
        if isinstance(layer, nn.Linear) and layer.bias is not None:
            if layer.out_features != len(shares):
                return False
            logs = list(map(math.log, shares))
            with torch.no_grad():
                layer.bias.copy_(layer.bias.new_tensor(logs))
            return True
    return False
