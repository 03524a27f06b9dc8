"""The paper's convolutional models and a compact VGG, for images of any size that leaves them
something to look at.

The paper's three follow Shen et al. (2020, arXiv:2006.16765) and pad nothing at 28x28 and 32x32. On
images too small for that, such as 8x8 digits, their convolutions pad so that they keep the size;
the layers stay the same.

None has BatchNorm or dropout: each can be a proxy, and none draws random numbers while it learns.
"""

from torch import nn

from proxyfl._examples import Shape
from proxyfl.errors import ModelError

VGG_BLOCKS = (
    (16,),
    (32,),
    (64, 64),
    (128, 128),
    (128, 128),
)
"""The channels of each convolution, block by block."""


def lenet5(shape: Shape, classes: int) -> nn.Module:
    """conv(5x5, 6), conv(5x5, 16), each with ReLU and maxpool(2x2); fc(120), fc(84),
    fc(classes)."""
    features, width = _two_blocks("lenet5", shape, kernel=5, channels=(6, 16))
    return features.extend(
        [
            nn.Linear(width, 120),
            nn.ReLU(),
            nn.Linear(120, 84),
            nn.ReLU(),
            nn.Linear(84, classes),
        ]
    )


def cnn1(shape: Shape, classes: int) -> nn.Module:
    """conv(3x3, 6), conv(3x3, 16), each with ReLU and maxpool(2x2); fc(64), fc(classes)."""
    features, width = _two_blocks("cnn1", shape, kernel=3, channels=(6, 16))
    return features.extend(
        [
            nn.Linear(width, 64),
            nn.ReLU(),
            nn.Linear(64, classes),
        ]
    )


def cnn2(shape: Shape, classes: int) -> nn.Module:
    """conv(3x3, 128), conv(3x3, 128), each with ReLU and maxpool(2x2); fc(classes)."""
    features, width = _two_blocks(
        "cnn2",
        shape,
        kernel=3,
        channels=(128, 128),
    )
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
    return model.extend(
        [
            nn.Flatten(),
            _he(hidden),
            nn.ReLU(),
            nn.Linear(128, classes),
        ]
    )


def _two_blocks(
    name: str,
    shape: Shape,
    *,
    kernel: int,
    channels: tuple[int, int],
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


def image_shape(
    name: str,
    shape: Shape,
    *,
    smallest: int,
) -> tuple[int, int, int]:
    """``shape`` as (channels, height, width), if it is one and both sides reach ``smallest``."""
    if len(shape) != 3:
        raise ModelError(
            f"{name} expects images of shape (channels, height, width), got shape {shape}. "
            "For other data take linear, mlp or tabular."
        )
    channels, height, width = shape
    if min(height, width) < smallest:
        raise ModelError(
            f"{name} expects images of at least {smallest}x{smallest} pixels, got {height}x{width}."
        )
    return channels, height, width


def _he(layer: nn.Conv2d | nn.Linear) -> nn.Module:
    """``layer`` with weights whose variance a ReLU preserves, and no bias."""
    nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer
