"""The studies of medical images: their settings are the paper's, and their quick variants run."""

from pathlib import Path

import pytest

from proxyfl.simulation import prepare as preparation
from proxyfl.simulation.run import run
from proxyfl.sweeps import file as sweep

FOLDER = Path(__file__).parents[2] / "experiments" / "images"
STUDIES = sorted(path for path in FOLDER.glob("*.toml") if "-base" not in path.name)


def test_the_papers_settings(tmp_path: Path) -> None:
    """Kvasir and histopathology run with the batch, noise, weights and models that the paper
    prints."""
    for point in sweep.plan(FOLDER / "kvasir.toml", tmp_path):
        config = point.config
        assert config.learning.batch_size == 128
        assert (config.partition.kind, config.partition.concentration) == ("dirichlet", 0.5)
        assert (config.models.private, config.models.proxy) == ("vgg", "vgg")
    for point in sweep.plan(FOLDER / "histopathology.toml", tmp_path):
        config = point.config
        assert (config.privacy.noise_multiplier, config.privacy.clip_norm) == (1.4, 0.7)
        assert (config.learning.alpha, config.learning.beta) == (0.3, 0.3)
        assert (config.learning.batch_size, config.rounds) == (32, 30)
        assert (config.models.private, config.models.proxy) == ("resnet18", "resnet18")


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_quick_variants_are_in_order(path: Path, tmp_path: Path) -> None:
    """Every quick variant needs no data but the digits, and one of its runs is prepared."""
    points = sweep.plan(path, tmp_path, quick=True)
    assert {point.config.data.source for point in points} == {"digits"}
    preparation.prepare(points[-1].config)


@pytest.mark.slow
@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_quick_variants_run(path: Path, tmp_path: Path) -> None:
    """Every run of every quick variant has a score of each client."""
    for point in sweep.plan(path, tmp_path, quick=True):
        done = run(point.config)
        assert done.rows
