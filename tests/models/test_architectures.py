"""The built-in models: sizes, shapes, and that each may be a proxy."""

import pytest
import torch
from torch import nn

from proxyfl.errors import ModelError
from proxyfl.models import MODELS, build, parameter_count
from proxyfl.models.architectures import resnet18

SMALL = [name for name in MODELS if name not in ("vgg", "resnet18")]


@pytest.mark.parametrize(
    ("name", "shape", "classes", "expected"),
    [
        # By hand, from the layers in the paper's appendix: weights and biases layer by layer.
        ("linear", (1, 8, 8), 10, 650),
        ("mlp", (1, 28, 28), 10, 784 * 200 + 200 + 200 * 200 + 200 + 200 * 10 + 10),
        ("lenet5", (1, 28, 28), 10, 156 + 2416 + 256 * 120 + 120 + 120 * 84 + 84 + 84 * 10 + 10),
        ("lenet5", (3, 32, 32), 10, 456 + 2416 + 400 * 120 + 120 + 120 * 84 + 84 + 84 * 10 + 10),
        ("cnn1", (1, 28, 28), 10, 60 + 880 + 16 * 5 * 5 * 64 + 64 + 64 * 10 + 10),
        ("cnn1", (3, 32, 32), 10, 168 + 880 + 16 * 6 * 6 * 64 + 64 + 64 * 10 + 10),
        ("cnn2", (3, 32, 32), 10, 3584 + 147584 + 128 * 6 * 6 * 10 + 10),
        ("fourier", (23,), 2, 256 * 2 + 2),
        ("tabular", (30,), 2, 30 * 64 + 64 + 64 * 64 + 64 + 64 * 2 + 2),
        # torchvision's resnet18 has 11,689,512 parameters at 1000 classes; GroupNorm has as many as
        # BatchNorm.
        ("resnet18", (3, 64, 64), 1000, 11_689_512),
    ],
)
def test_parameter_counts(name, shape, classes, expected):
    """Each model has exactly the parameters that its published layers have."""
    assert parameter_count(build(name, shape=shape, classes=classes, seed=0)) == expected


@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 32, 32), (4, 9, 31)])
@pytest.mark.parametrize("name", SMALL)
def test_small_models_fit_every_image(name, shape):
    """From 8x8 digits to 32x32 colour, also oblong and with odd channels, logits have one column a
    class."""
    model = build(name, shape=shape, classes=7, seed=0)
    assert model(torch.rand(3, *shape)).shape == (3, 7)


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 28, 28), (3, 80, 100)])
def test_resnet_fits_every_image(shape):
    """ResNet-18 takes images below and above 64 pixels, by its two stems."""
    assert build("resnet18", shape=shape, classes=2, seed=0)(torch.rand(1, *shape)).shape == (1, 2)


def test_resnet_stem_follows_the_size():
    """At 64 pixels the stem is 7x7 with stride 2 and max-pooling, at 63 it is 3x3 with neither."""
    large, small = resnet18((3, 64, 64), 2), resnet18((3, 63, 64), 2)
    assert (large[0].kernel_size, large[0].stride) == ((7, 7), (2, 2))
    assert (small[0].kernel_size, small[0].stride) == ((3, 3), (1, 1))
    assert isinstance(large[3], nn.MaxPool2d)
    assert not any(isinstance(module, nn.MaxPool2d) for module in small.modules())


def test_paper_sizes_are_unpadded():
    """At 28x28 and 32x32 no convolution of the paper's three models pads; at 8x8 each does."""
    for name in ("lenet5", "cnn1", "cnn2"):
        paddings = {
            side: {
                m.padding
                for m in build(name, shape=(1, side, side), classes=10, seed=0)
                if hasattr(m, "padding")
            }
            for side in (28, 32, 8)
        }
        convolutions = {
            side: {p for p in found if isinstance(p, tuple)} for side, found in paddings.items()
        }
        assert convolutions[28] == convolutions[32] == {(0, 0)}
        assert convolutions[8] in ({(1, 1)}, {(2, 2)})


@pytest.mark.parametrize(
    ("name", "shape", "smallest"),
    [
        ("lenet5", (1, 3, 28), "4x4"),
        ("cnn1", (1, 3, 3), "4x4"),
        ("cnn2", (3, 28, 2), "4x4"),
        ("vgg", (3, 28, 28), "32x32"),
    ],
)
def test_too_small_images(name, shape, smallest):
    """An image that is too small is refused with the smallest size and the size found."""
    with pytest.raises(ModelError, match=f"at least {smallest} pixels, got {shape[1]}x{shape[2]}"):
        build(name, shape=shape, classes=10, seed=0)


@pytest.mark.parametrize("name", ["lenet5", "cnn1", "cnn2", "vgg", "resnet18"])
def test_tables_do_not_fit_image_models(name):
    """An image model asked for a table says what it expects and which models fit."""
    with pytest.raises(
        ModelError, match=r"\(channels, height, width\), got shape \(30,\).*tabular"
    ):
        build(name, shape=(30,), classes=2, seed=0)


def test_the_smallest_images_fit():
    """The sizes that the errors name as smallest do fit."""
    for name in ("lenet5", "cnn1", "cnn2"):
        assert build(name, shape=(1, 4, 4), classes=2, seed=0)(torch.zeros(1, 1, 4, 4)).shape == (
            1,
            2,
        )
    assert build("vgg", shape=(1, 32, 32), classes=2, seed=0)(torch.zeros(1, 1, 32, 32)).shape == (
        1,
        2,
    )


@pytest.mark.parametrize("name", MODELS)
def test_every_model_can_be_a_proxy(name):
    """No built-in model mixes examples, works in place, or draws random numbers while it learns."""
    shape = (3, 32, 32)
    model = build(name, shape=shape, classes=3, seed=1)
    assert not any(
        isinstance(m, nn.modules.batchnorm._BatchNorm | nn.Dropout) for m in model.modules()
    )
    assert not any(getattr(m, "inplace", False) for m in model.modules())
    x = torch.rand(3, *shape, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(model(x)[:1], model(x[:1]), rtol=1e-4, atol=1e-5)


def test_vgg_learns_at_once():
    """From its initial weights the VGG tells two kinds of images apart within a few steps: no
    plateau at chance."""
    x = torch.rand(16, 1, 32, 32, generator=torch.Generator().manual_seed(0))
    y = torch.arange(16) % 2
    x[y == 1, :, :16] += 1
    model = build("vgg", shape=(1, 32, 32), classes=2, seed=0)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(12):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.1


@pytest.mark.parametrize("name", ["lenet5", "cnn1", "cnn2"])
def test_pooling_before_relu_is_the_papers_function(name: str) -> None:
    """ReLU then pooling, as the paper lists them, gives the same logits and gradients bit for
    bit."""
    ours = build(name, shape=(1, 28, 28), classes=10, seed=0)
    layers = list(ours.children())
    for i in (1, 4):
        assert isinstance(layers[i], nn.MaxPool2d)
        layers[i], layers[i + 1] = layers[i + 1], layers[i]
    x = torch.randn(16, 1, 28, 28)
    found = []
    for model in (ours, nn.Sequential(*layers)):
        model.zero_grad()
        logits = model(x)
        logits.square().sum().backward()
        found.append(
            [logits.detach(), *(p.grad.clone() for p in ours.parameters() if p.grad is not None)]
        )
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_random_waves_are_public_and_fixed():
    """Whatever the seed, the waves are the same: only the last layer is drawn, learns and
    travels."""
    one, other = (build("fourier", shape=(23,), classes=2, seed=seed) for seed in (0, 1))
    assert torch.equal(one.frequencies, other.frequencies)
    assert torch.equal(one.phases, other.phases)
    assert not torch.equal(one.last.weight, other.last.weight)
    assert {name for name, _ in one.named_parameters()} == {"last.weight", "last.bias"}


def test_random_waves_have_one_length_on_average():
    """The features that the last layer sees have about the length 2 for small and large inputs
    alike, so that clipping treats examples alike."""
    model = build("fourier", shape=(23,), classes=2, seed=0)
    seen = []
    model.last.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    draw = torch.Generator().manual_seed(0)
    for scale in (0.3, 1.0, 3.0):
        model(scale * torch.randn(200, 23, generator=draw))
    for features in seen:
        assert features.norm(dim=1).mean() == pytest.approx(2.0, rel=0.1)
