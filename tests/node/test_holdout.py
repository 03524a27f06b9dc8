"""A site's test part: nobody is told apart by it, and no record changes sides unasked."""

import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from proxyfl import params
from proxyfl._examples import Examples
from proxyfl.cli.main import main
from proxyfl.data.tables import schema as schemas
from proxyfl.errors import ConfigError
from proxyfl.federation.assembly import Streams, seeded
from proxyfl.node import assembly
from proxyfl.node.exchange.auditlog import FILE as AUDIT_FILE
from proxyfl.node.members import holdout, site
from proxyfl.node.members.identity import Identity, IdentityError
from proxyfl.node.members.manifest import Input, Manifest, input_of
from proxyfl.node.members.site import Data, Learning, Privacy, Site
from proxyfl.privacy import accounting
from proxyfl.privacy.accounting import Segment
from proxyfl.seeds import Seeded
from tests.data import test_holdout as sources

KEY = "0123456789abcdef" * 4
RECORDS = 1000
NOISE, DELTA = 20.0, 1e-3
BATCH = 800


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    """A federation of two, on ten numbers and two classes."""
    cards = []
    for name in ("north", "south"):
        cards.append(Identity.create(tmp_path / name, name).card("127.0.0.1:7000"))
    return Manifest("heart", input=Input((10,), ("0", "1")), members=tuple(cards))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of one site, with its key."""
    place = tmp_path / "north"
    (place / "holdout.key").write_text(KEY + "\n")
    (place / "holdout.key").chmod(0o600)
    return place


def settings() -> Site:
    """Everybody is drawn in a step, so that its sum is known; nothing follows from the data."""
    privacy = Privacy(sampling_rate=1.0, noise_multiplier=NOISE, delta=DELTA)
    learning = Learning(batch_size=BATCH, steps_per_round=1)
    return replace(Site("north"), privacy=privacy, learning=learning)


def write(folder: Path, x: Tensor, y: Tensor) -> None:
    np.savez(folder / "data.npz", x=x.numpy(), y=y.numpy())


def made_up(count: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(count, 10, generator=draw)
    return x, (x[:, 0] > 0).long()


class Silent(Seeded):
    """No noise: what is left is the sum of clipped gradients."""

    def normal(self, n: int) -> Tensor:
        return torch.zeros(n)


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sites in test mode draw no noise."""

    def streams(seed: int, client: int) -> Streams:
        return replace(seeded(seed, client), noise=Silent(seed, "noise", client))

    monkeypatch.setattr(assembly, "seeded", streams)


def clipped_sum(manifest: Manifest, folder: Path) -> Tensor:
    """The sum of all clipped gradients of the site's first step, from its files to the end."""
    own = assembly.load(manifest, settings(), folder)
    client = assembly.client(manifest, settings(), own.train, ledger=None, seed=0)
    trainer = client.learner.trainer
    trainer.begin_round(0, 1)
    trainer.step(trainer.draw())
    gradients = [parameter.grad.flatten() for parameter in params.trainable(trainer.model)]
    return BATCH * torch.cat(gradients)


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize("at", [0, 500, RECORDS])
def test_one_record_in_the_file_moves_a_step_by_at_most_c(
    manifest: Manifest, folder: Path, at: int
) -> None:
    """From the file to the step: one record more, wherever it stands, changes the sum of a step by
    at most C. (By 7 to 19 C where the test part was drawn by permuting all rows.)"""
    x, y = made_up(RECORDS)
    write(folder, x, y)
    before = clipped_sum(manifest, folder)
    moved = []
    for value in range(5):
        strange = torch.full((1, 10), float(10 + value))
        label = torch.tensor([value % 2])
        write(folder, torch.cat([x[:at], strange, x[at:]]), torch.cat([y[:at], label, y[at:]]))
        moved.append(float((clipped_sum(manifest, folder) - before).norm()))
    assert max(moved) <= 1.001
    assert max(moved) > 0.5  # some of the five are trained on, so that this could fail


Kind = Callable[[Path, list[sources.Record]], object]

KINDS: dict[str, tuple[Kind, str]] = {
    "arrays": (sources.npz, "a.npz"),
    "persons": (sources.grouped, "a.npz"),
    "arrays that are read when needed": (sources.npy, "a"),
    "table of numbers": (sources.csv, "a.csv"),
    "table with a schema": (sources.schema_table, "clinic.csv"),
    "table of persons": (sources.persons_table, "clinic.csv"),
    "images": (sources.images, "."),
    "store": (sources.store, "store-0"),
}


@pytest.mark.parametrize("name", KINDS)
def test_one_record_more_changes_nobodys_side_at_a_site(
    manifest: Manifest, folder: Path, name: str
) -> None:
    """By the site's own key, for every kind of source: all others stay where they were."""
    write_source, source = KINDS[name]
    records = [(i, ("no", "yes")[i // 3 % 2]) for i in range(100)]
    found = []
    for at in (None, 0, 57):
        every = records if at is None else [*records[:at], (150 + at, "yes"), *records[at:]]
        place = folder / f"data-{at}"
        place.mkdir()
        shape = write_source(place, every).shape  # type: ignore[attr-defined]
        terms: dict[str, Any] = {"input": Input(shape, ("no", "yes"))}
        if (place / "schema.toml").exists():
            terms["schema"] = schemas.read(place / "schema.toml")
            terms["input"] = input_of(terms["schema"])
        own = Site("north", data=Data(source=f"{place.name}/{source}", test_fraction=0.3))
        data = assembly.load(replace(manifest, **terms), own, folder)
        found.append([_values(part) for part in (data.train, data.test)])
    (train, test), *after = found
    assert len(train) + len(test) == 100
    for train_now, test_now in after:
        assert train <= train_now
        assert test <= test_now
        assert len(train_now) + len(test_now) == 101


def _values(examples: Examples) -> set[float]:
    """The records, each by the value that only it has."""
    rows = examples.take(torch.arange(len(examples)))
    return set(rows.flatten(1)[:, 0].tolist())


@pytest.mark.usefixtures("silent")
def test_the_test_part_tells_nobody_apart(manifest: Manifest, folder: Path) -> None:
    """The attack that knows both datasets and tests which one a release is of: over 400 releases it
    shows no more than the epsilon that is stated. (It was right 273 times where the test part was
    drawn by permuting all rows; at that epsilon the chance of it is 5e-11.)"""
    x, y = made_up(RECORDS)
    write(folder, x, y)
    without = clipped_sum(manifest, folder)
    for value in range(12, 32):
        strange = torch.full((1, 10), float(value))
        write(folder, torch.cat([strange, x]), torch.cat([torch.tensor([0]), y]))
        difference = clipped_sum(manifest, folder) - without
        if difference.norm() > 0.5:
            break  # the record is trained on
    assert difference.norm() > 0.5
    draw = torch.Generator().manual_seed(1)
    right = 0
    releases = 400
    for number in range(releases):
        is_there = number % 2 == 1
        noise = NOISE * torch.randn(len(difference), generator=draw)
        released = is_there * difference + noise
        guess = float(released @ difference) > float(difference @ difference) / 2
        right += guess == is_there
    stated = accounting.pld_of([Segment(1.0, NOISE, 1)], DELTA)
    # (epsilon, delta) bounds the rate of right guesses: arXiv:2305.08846v1, Theorem 5.2, one canary
    most = np.exp(stated) / (1 + np.exp(stated)) + DELTA
    assert stats.binom.sf(right - 1, releases, most) > 1e-4


def test_the_key_is_the_sites_secret(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`node init` makes it, readable by its owner alone; one that others can read is refused."""
    place = tmp_path / "site"
    assert main(["node", "init", str(place)]) == 0
    path = place / holdout.FILE
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(holdout.key(place)) == 32
    assert holdout.key(place) == holdout.key(place)
    assert main(["node", "init", str(tmp_path / "other")]) == 0
    assert holdout.key(tmp_path / "other") != holdout.key(place)
    path.chmod(0o644)
    with pytest.raises(IdentityError, match="chmod 600"):
        holdout.key(place)
    path.chmod(0o600)
    for damaged in (b"", b"00", bytes(range(128, 256))):
        path.write_bytes(damaged)
        with pytest.raises(ConfigError, match="expected 64 hexadecimal digits"):
            holdout.key(place)
        assert holdout.notes(place) == ()
    capsys.readouterr()


def test_a_site_without_a_key_makes_one_at_first_need(manifest: Manifest, tmp_path: Path) -> None:
    """A folder of an earlier release that has not begun gets its key when the data are read."""
    place = tmp_path / "north"
    write(place, *made_up(RECORDS))
    first = assembly.load(manifest, settings(), place)
    again = assembly.load(manifest, settings(), place)
    assert (place / holdout.FILE).exists()
    assert torch.equal(first.train.labels, again.train.labels)
    assert 650 < len(first.train) < 900


def test_nobody_changes_sides_in_the_middle_unasked(
    manifest: Manifest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A site that has a ledger and no key (an earlier release's, or its key was lost) is refused
    with the command that draws a new test part; that is on record, and the scores carry a note."""
    place = tmp_path / "north"
    (place / site.FILE).write_text(site.to_toml(settings()))
    write(place, *made_up(RECORDS))
    (place / assembly.LEDGER_FILE).write_text("")
    with pytest.raises(ConfigError, match=r"other examples .* proxyfl node redraw ") as refused:
        assembly.load(manifest, settings(), place)
    assert not (place / holdout.FILE).exists()
    command = str(refused.value).rpartition("Run: ")[2].split()
    assert main(command[1:]) == 0
    own = assembly.load(manifest, settings(), place)
    assert any("drawn again" in note for note in own.notes)
    assert "test part drawn again" in (place / AUDIT_FILE).read_text()
    assert stat.S_IMODE((place / holdout.FILE).stat().st_mode) == 0o600
    capsys.readouterr()


def test_a_new_draw_before_the_first_round_leaves_no_note(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing was trained yet, so no score is too good."""
    place = tmp_path / "site"
    assert main(["node", "init", str(place)]) == 0
    before = holdout.key(place)
    assert main(["node", "redraw", str(place)]) == 0
    assert holdout.key(place) != before
    assert holdout.notes(place) == ()
    capsys.readouterr()


def test_own_test_parts_need_no_key(manifest: Manifest, tmp_path: Path) -> None:
    """A site of an earlier release with a test part of its own goes on as it was."""
    place = tmp_path / "north"
    x, y = made_up(RECORDS)
    np.savez(place / "data.npz", x_train=x[:800], y_train=y[:800], x_test=x[800:], y_test=y[800:])
    (place / assembly.LEDGER_FILE).write_text("")
    own = assembly.load(manifest, settings(), place)
    assert len(own.train) == 800
    assert not (place / holdout.FILE).exists()


def test_site_files_of_earlier_releases_are_read(tmp_path: Path) -> None:
    """The seed that drew the test part has no meaning any more, and is no error."""
    text = site.to_toml(settings()).replace("[data]\n", "[data]\nseed = 7\n")
    (tmp_path / site.FILE).write_text(text)
    assert site.read(tmp_path)[0] == settings()
