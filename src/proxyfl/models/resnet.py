"""ResNet-18 with GroupNorm, the paper's histopathology model.

He et al. (2016, arXiv:1512.03385v1, table 1) with every BatchNorm replaced by a GroupNorm of 32
groups (Wu & He 2018, arXiv:1803.08494v3): BatchNorm makes an example's gradient depend on the whole
batch, which DP-SGD's analysis forbids. Images under 64 pixels would be next to nothing before the
last stage, so for them the 7x7 stem of stride 2 and its max-pooling give way to one 3x3 convolution
of stride 1."""

from torch import Tensor, nn

from proxyfl._examples import Shape
from proxyfl.models.convolutional import image_shape

GROUPS = 32
SMALL = 64
STAGES = (
    (64, 1),
    (128, 2),
    (256, 2),
    (512, 2),
)
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
    return model.extend(
        [
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(512, classes),
        ]
    )


def _convolution(
    inputs: int,
    outputs: int,
    *,
    kernel: int,
    stride: int,
) -> nn.Conv2d:
    layer = nn.Conv2d(
        inputs,
        outputs,
        kernel,
        stride=stride,
        padding=kernel // 2,
        bias=False,
    )
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return layer
