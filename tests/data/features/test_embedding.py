"""Embedding keeps everything but the images, and lets no image into another's features."""

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from proxyfl.cli.main import main
from proxyfl.data import Dataset
from proxyfl.data.features.backbones import build
from proxyfl.data.features.embedding import embed
from proxyfl.data.sources import load
from proxyfl.errors import ModelError


def means(shape: tuple[int, ...]) -> nn.Module:
    """The mean of each row of pixels: an embedder whose features are easy to know."""
    return nn.Sequential(nn.AvgPool2d((1, shape[2])), nn.Flatten())


def as_they_are(shape: tuple[int, ...]) -> nn.Module:
    """An embedder that changes nothing."""
    return nn.Flatten()


def mixing(shape: tuple[int, ...]) -> nn.Module:
    """An embedder that subtracts the batch's mean."""

    class Centred(nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return (images - images.mean(dim=0)).flatten(1)

    return Centred()


def normalised(shape: tuple[int, ...]) -> nn.Module:
    """An embedder whose normalisation would mix images, were it left in training mode."""
    return nn.Sequential(nn.BatchNorm2d(shape[0]), nn.Flatten())


MEANS = f"{__name__}:means"


def squares(shape: tuple[int, ...]) -> nn.Module:
    """The square of each column: an embedder of a table's rows."""

    class Squares(nn.Module):
        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            return rows**2

    return Squares()


@pytest.mark.parametrize("seed", [0, 5])
def test_features_divide_as_their_images_do(tmp_path: Path, seed: int) -> None:
    """Where a test part is drawn, the same seed draws the same one from the features; sites and
    persons stay."""
    rng = np.random.default_rng(0)
    np.savez(
        tmp_path / "images.npz",
        x=rng.integers(0, 256, (40, 6, 5), dtype=np.uint8),
        y=rng.integers(0, 3, 40),
        site=np.array(["a", "b"])[rng.integers(0, 2, 40)],
        group=rng.permutation(40) // 2,
    )
    images = load(str(tmp_path / "images.npz"), site="site", seed=seed)
    embed(images, tmp_path / "store", MEANS)
    features = load(str(tmp_path / "store"), seed=seed)
    expected = images.train_x.mean(dim=3).flatten(1)
    torch.testing.assert_close(features.train_x, expected)
    assert torch.equal(features.train_y, images.train_y)
    assert torch.equal(features.test_y, images.test_y)
    assert torch.equal(features.site, images.site)
    assert torch.equal(features.test_site, images.test_site)
    assert len(features.train.groups.unique()) == len(images.train.groups.unique())


def test_parts_of_the_source_are_kept(tmp_path: Path) -> None:
    """A source with a test part of its own gives a store with the same parts."""
    x = torch.rand(30, 1, 4, 4)
    y = torch.arange(30) % 2
    images = Dataset("mine", x[:20], y[:20], x[20:], y[20:], classes=2, class_names=("no", "yes"))
    embed(images, tmp_path / "store", MEANS)
    features = load(str(tmp_path / "store"))
    torch.testing.assert_close(features.train_x, x[:20].mean(dim=3).flatten(1))
    torch.testing.assert_close(features.test_x, x[20:].mean(dim=3).flatten(1))
    assert features.class_names == ("no", "yes")


def projected(shape: tuple[int, ...]) -> nn.Module:
    """A matrix product, whose last bits depend on how many rows are multiplied at once."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 64), nn.Tanh())


@pytest.mark.parametrize("place", ["first", "last"])
def test_one_more_image_changes_no_other_features(tmp_path: Path, place: str) -> None:
    """One more image, before or after the others, leaves every bit of their features as it was."""
    x = torch.rand(66, 1, 20, 20, generator=torch.Generator().manual_seed(0))
    train, test = x[:62], x[62:]
    fewer = train[1:] if place == "first" else train[:-1]
    features = {}
    for name, part in [("all", train), ("fewer", fewer)]:
        y = torch.arange(len(part)) % 2
        images = Dataset(
            "mine", part, y, test, torch.arange(4) % 2, classes=2, class_names=("no", "yes")
        )
        embed(images, tmp_path / name, f"{__name__}:projected")
        features[name] = load(str(tmp_path / name))
    others = slice(1, None) if place == "first" else slice(0, -1)
    assert torch.equal(features["all"].train_x[others], features["fewer"].train_x)
    assert torch.equal(features["all"].test_x, features["fewer"].test_x)


def nowhere(shape: tuple[int, ...]) -> nn.Module:
    """Features that are no numbers."""
    features = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 3))
    nn.init.constant_(features[1].weight, math.nan)
    return features


def test_features_that_are_not_finite_are_refused() -> None:
    """An embedder of NaN, which nothing could be compared with, is refused."""
    with pytest.raises(ModelError, match="not all finite"):
        build(f"{__name__}:nowhere", (3, 4, 5))


def test_an_embedder_that_mixes_images_is_refused() -> None:
    """Statistics over the batch are found out; batch normalisation is frozen, so it passes."""
    with pytest.raises(ModelError, match="together with others"):
        build(f"{__name__}:mixing", (1, 4, 4))
    _, features = build(f"{__name__}:normalised", (2, 3, 3))
    assert features == 18


def test_unknown_embedders_and_options() -> None:
    """A name or an option that does not exist is answered with those that do."""
    with pytest.raises(ModelError, match="Did you mean 'scattering'"):
        build("scatering", (1, 8, 8))
    with pytest.raises(ModelError, match=r"no option 'gird'\. It has: scales, angles, grid"):
        build("scattering", (1, 8, 8), {"gird": 2})


class Small(nn.Module):
    """A little network of the user's own."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.filters = nn.Conv2d(channels, 5, 3, padding=1)

    def forward(self, images: Tensor) -> Tensor:
        maps: Tensor = self.filters(images).relu()
        return maps.mean(dim=(2, 3))


def small(shape: tuple[int, ...]) -> nn.Module:
    return Small(shape[0])


def test_any_network_embeds_with_a_local_file_of_weights(tmp_path: Path) -> None:
    """`--weights` gives a network of the user's own its parameters; the store records their
    hash."""
    trained = Small(1)
    file = tmp_path / "weights.safetensors"
    save_file(trained.state_dict(), file)
    line = f"embed digits --model {__name__}:small --weights {file} --out {tmp_path / 'f.store'}"
    assert main(line.split()) == 0
    digits, features = load("digits"), load(str(tmp_path / "f.store"))
    with torch.no_grad():
        expected = trained(digits.train_x)
    torch.testing.assert_close(features.train_x, expected)
    made = json.loads((tmp_path / "f.store" / "store.json").read_text())
    assert hashlib.sha256(file.read_bytes()).hexdigest() in json.dumps(made)


def without_shape() -> nn.Module:
    return Small(1)


def with_default(channels: int = 1) -> nn.Module:
    return Small(channels)


def of_catalogue(name: str, *, pretrained: bool = False, **more: int) -> nn.Module:
    assert name == "small"
    assert not pretrained
    return Small(**more)


@pytest.mark.parametrize(
    ("factory", "options"),
    [
        ("without_shape", {}),
        ("with_default", {}),
        ("with_default", {"channels": 1}),
        ("of_catalogue", {"name": "small", "channels": 1}),
    ],
)
def test_a_factory_need_not_take_the_shape(factory: str, options: dict[str, Any]) -> None:
    """A function without arguments, one with defaults, and a library's by options are called with
    what they take."""
    model, features = build(f"{__name__}:{factory}", (1, 8, 8), options)
    assert isinstance(model, Small)
    assert features == 5


def test_an_option_of_a_factory_without_shape_is_checked() -> None:
    """The shape is no option, and an option that does not exist is answered with those that do."""
    with pytest.raises(ModelError, match=r"no option 'depth'\. It has: none"):
        build(f"{__name__}:without_shape", (1, 8, 8), {"depth": 2})
    with pytest.raises(ModelError, match=r"no option 'shape'\. It has: none"):
        build(f"{__name__}:small", (1, 8, 8), {"shape": 2})


def test_weights_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    """A file of another network, a PyTorch pickle and a missing file are named."""
    other = tmp_path / "other.safetensors"
    save_file(Small(3).state_dict(), other)
    pickled = tmp_path / "small.pt"
    torch.save(Small(1).state_dict(), pickled)
    for file, words in (
        (other, "do not fit"),
        (pickled, "cannot be read as safetensors"),
        (tmp_path / "absent", "cannot be read as safetensors"),
    ):
        with pytest.raises(ModelError, match=words):
            build(f"{__name__}:small", (1, 8, 8), weights=file)


def test_the_network_that_is_gone_says_why() -> None:
    """The name of a network that proxyfl once installed leads to what to type instead."""
    with pytest.raises(ModelError, match=r"states no licence.*--weights FILE"):
        build("efficientnet-lite0", (3, 40, 60))


def test_whitened_features(tmp_path: Path) -> None:
    """Public features come out in few directions, uncorrelated and of one length; another store's
    features are moved by the public ones alone."""
    draw = torch.Generator().manual_seed(0)
    mixed = torch.randn(300, 6, generator=draw) @ torch.randn(6, 6, generator=draw)
    y = torch.arange(300) % 2
    names = ("no", "yes")
    public = Dataset("p", mixed[:250], y[:250], mixed[250:], y[250:], 2, names)
    identity = f"{__name__}:as_they_are"
    embed(public, tmp_path / "public", identity)
    options = {"by": str(tmp_path / "public"), "dimensions": 3}
    module, features = build("whitened", (6,), options)
    assert features == 3
    found = module(mixed[:250])
    torch.testing.assert_close(found.norm(dim=1), torch.full((250,), 3.0))
    raw = (mixed[:250] - module.mean) @ module.directions
    covariance = torch.cov(raw.T)
    assert (covariance - covariance.diag().diag()).abs().max() < 1e-4
    assert covariance.diag().min() > 0.5
    moved = Dataset("m", mixed[:250] + 5, y[:250], mixed[250:], y[250:], 2, names)
    embed(moved, tmp_path / "moved", identity)
    elsewhere, _ = build("whitened", (6,), {**options, "centre": str(tmp_path / "moved")})
    torch.testing.assert_close(elsewhere.mean, module.mean + 5)
    torch.testing.assert_close(elsewhere.directions, module.directions)
    with pytest.raises(ModelError, match="has features of shape"):
        build("whitened", (5,), options)
    with pytest.raises(ModelError, match="dimensions of at most 6"):
        build("whitened", (6,), {**options, "dimensions": 7})


def test_records_are_not_whitened_by_themselves(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The statistics of the records themselves are refused: no epsilon would cover them."""
    own = str(tmp_path / "own")
    for option in ("by", "centre"):
        line = f"embed {own} --model whitened --set {option}={own} --out {own}-few"
        assert main(line.split()) == 2
        assert "by its own statistics" in capsys.readouterr().err


def test_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`proxyfl embed` writes a store that `proxyfl data` reads, with the options given."""
    monkeypatch.chdir(tmp_path)
    line = "embed digits --model scattering --set grid=2 --out digits.store"
    assert main(line.split()) == 0
    assert "36 features of each of 1,797 images" in capsys.readouterr().out
    assert main(["data", "digits.store"]) == 0
    assert "1,438 training and 359 test examples of shape 36" in capsys.readouterr().out


def test_the_command_keeps_sites_and_labels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``--site`` names an archive's array or a table's column, ``--label`` a table's column."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    hospitals = ["east", "west"] * 20
    x = rng.integers(0, 256, (40, 6, 5), dtype=np.uint8)
    np.savez("images.npz", x=x, y=np.arange(40) % 3, hospital=hospitals)
    line = f"embed images.npz --site hospital --model {MEANS} --out one.store"
    assert main(line.split()) == 0
    rows = [f"{i},{i % 3},{hospitals[i]}" for i in range(40)]
    Path("rows.csv").write_text("\n".join(["a,kind,hospital", *rows]) + "\n")
    line = f"embed rows.csv --label kind --site hospital --model {__name__}:squares"
    assert main([*line.split(), "--out", "two.store"]) == 0
    for store in ("one.store", "two.store"):
        found = load(store)
        assert found.site_names == ("east", "west")
        assert found.class_names == ("0", "1", "2")
    values = found.train_x.flatten().sqrt().long()
    assert torch.equal(values % 2, found.site)
    assert torch.equal(values % 3, found.train_y)
