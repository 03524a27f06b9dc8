"""Features learnt from pictures of a random process (in the manner of DP-RandP, Tang et al. 2023,
arXiv:2306.06076): ``python -m benchmarks.leaves leaves.pt`` trains a small network on made-up
pictures alone, and an embedder then gives its features of real ones:

    proxyfl embed mnist --model benchmarks.leaves:features --set weights=leaves.pt --out ...

The pictures are dead leaves: discs and boxes of random size, place and grey that cover each other.
Two views of one picture shall be close, pictures far apart (alignment and uniformity, Wang and
Isola 2020). No image of anybody is seen."""

import argparse
import math
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

SIDE = 28
BATCH = 64
STEPS = 800
GRID = 3
"""Features are means over GRID x GRID parts of the picture."""


class Network(nn.Module):
    """Three convolutions, and for training a projection onto the sphere."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1),
            nn.GroupNorm(4, 32),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, stride=2, padding=1),
            nn.GroupNorm(8, 64),
            nn.ReLU(),
            nn.Conv2d(64, 96, 3, stride=2, padding=1),
            nn.GroupNorm(8, 96),
            nn.ReLU(),
        )
        self.project = nn.Linear(96 * GRID * GRID, 64)

    def forward(self, images: Tensor) -> Tensor:
        return functional.normalize(self.project(self.features(images)))

    def features(self, images: Tensor) -> Tensor:
        """What is kept of a picture after training."""
        return functional.adaptive_avg_pool2d(self.body(images), GRID).flatten(1)


class Features(nn.Module):
    """The trained network without its projection."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        return self.network.features(images)


def features(shape: tuple[int, ...], *, weights: str) -> nn.Module:
    """The embedder of grey pictures of ``shape``."""
    network = Network()
    network.load_state_dict(torch.load(weights, weights_only=True))
    return Features(network.eval())


def pictures(count: int, draw: torch.Generator) -> Tensor:
    """Dead leaves, (count, 1, SIDE, SIDE): from two to thirty a picture, on black."""
    rows, columns = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    canvas = torch.zeros(count, SIDE, SIDE)
    wanted = torch.randint(2, 31, (count, 1, 1), generator=draw)
    for number in range(30):
        centre = SIDE * torch.rand(2, count, 1, 1, generator=draw)
        turn = 2 * math.pi * torch.rand(count, 1, 1, generator=draw)
        # sizes by a power law, as in pictures of nature
        size = 2.0 * (1 + torch.rand(2, count, 1, 1, generator=draw) * 5) ** 1.2
        down, right = rows - centre[0], columns - centre[1]
        along = (down * turn.cos() + right * turn.sin()) / size[0]
        across = (right * turn.cos() - down * turn.sin()) / size[1]
        round_ones = torch.rand(count, 1, 1, generator=draw) < 0.5
        disc = along.square() + across.square() < 1
        box = torch.maximum(along.abs(), across.abs()) < 1
        leaf = torch.where(round_ones, disc, box) & (number < wanted)
        grey = torch.rand(count, 1, 1, generator=draw)
        canvas = torch.where(leaf, grey, canvas)
    return canvas[:, None]


def view(images: Tensor, draw: torch.Generator) -> Tensor:
    """Each picture turned, moved, cropped and brightened a little, with noise."""
    count = len(images)
    turn = 0.3 * torch.randn(count, generator=draw)
    size = 0.7 + 0.4 * torch.rand(count, generator=draw)
    move = 0.15 * torch.randn(count, 2, generator=draw)
    matrix = torch.zeros(count, 2, 3)
    matrix[:, 0, 0] = matrix[:, 1, 1] = size * turn.cos()
    matrix[:, 0, 1] = size * turn.sin()
    matrix[:, 1, 0] = -size * turn.sin()
    matrix[:, :, 2] = move
    grid = functional.affine_grid(matrix, list(images.shape), align_corners=False)
    moved = functional.grid_sample(images, grid, align_corners=False)
    gain = 0.6 + 0.8 * torch.rand(count, 1, 1, 1, generator=draw)
    return moved * gain + 0.05 * torch.randn(moved.shape, generator=draw)


def trained(steps: int) -> Network:
    """The network after ``steps`` batches of new pictures."""
    draw = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    network = Network()
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    for step in range(steps):
        images = pictures(BATCH, draw)
        one, other = network(view(images, draw)), network(view(images, draw))
        alignment = (one - other).square().sum(1).mean()
        uniformity = (_uniformity(one) + _uniformity(other)) / 2
        loss = alignment + uniformity
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 200 == 0:
            print(f"{step}: alignment {alignment:.3f}, uniformity {uniformity:.3f}")
    return network


def _uniformity(points: Tensor) -> Tensor:
    return torch.pdist(points).square().mul(-2).exp().mean().log()


def main() -> None:
    """Train and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="the file of the weights")
    parser.add_argument("--steps", type=int, default=STEPS)
    args = parser.parse_args()
    torch.save(trained(args.steps).state_dict(), args.out)


if __name__ == "__main__":
    main()
