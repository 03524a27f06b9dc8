"""Slides with contours become a store of labelled patches; what is wrong is named."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import openslide
import pytest

from proxyfl.cli.main import main
from proxyfl.data.slides.contours import Area, read_contours
from proxyfl.data.slides.slide import Damaged, Slide
from proxyfl.data.slides.tissue import tissue_map
from proxyfl.data.sources import load
from proxyfl.data.stores import index
from proxyfl.data.stores.faults import Faults
from proxyfl.errors import DataError
from tests.data.slides.generator import (
    SCANNERS,
    Disc,
    write_asap,
    write_cohort,
    write_geojson,
    write_slide,
)
from tests.waiting import wait_until

SIDE = 1280
TISSUE, TUMOUR = Disc(640, 640, 600), Disc(640, 640, 330)


@pytest.fixture(scope="module")
def cohort(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sites with three persons each, a slide for each person."""
    root = tmp_path_factory.mktemp("slides")
    write_cohort(root, persons=3, side=SIDE, sites=("north", "south"))
    return root


@pytest.fixture
def own(cohort: Path, tmp_path: Path) -> Path:
    """A copy of the cohort to do damage to."""
    shutil.copytree(cohort, tmp_path / "slides")
    return tmp_path / "slides"


def extract(root: Path, out: Path, *more: str) -> int:
    """The command, for small patches."""
    words = ["slides", "extract", str(root), "--size", "64", "--out", str(out)]
    return main([*words, "--workers", "2", *more])


def test_the_result_as_json(
    cohort: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With --json the command prints what the store holds as one document."""
    assert extract(cohort, tmp_path / "store", "--skip", "short", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["examples"] == len(entries(tmp_path / "store"))
    assert document["shape"] == [3, 64, 64]
    assert Path(document["sheet"]).exists()


def entries(store: Path) -> list[index.Entry]:
    """A store's index."""
    return index.read_index(store, index.read_head(store))


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a folder."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def first_slide(root: Path) -> Path:
    """A slide of the cohort."""
    return min(root.rglob("*.tif"))


def damage(slide: Path) -> None:
    """Spoil the scan of one tile in the middle of a slide's finest level."""
    content = bytearray(slide.read_bytes())
    starts = []
    at = content.find(b"\xff\xd8\xff")
    while 0 <= at < len(content) and len(starts) < 12:
        starts.append(at)
        at = content.find(b"\xff\xd8\xff", at + 1)
    begin = starts[6]
    content[begin : begin + 400] = b"\x00" * 400
    slide.write_bytes(content)


def test_patches_are_what_openslide_reads(cohort: Path, tmp_path: Path) -> None:
    """Each site gives the number asked for, half of it tumour; each patch has the pixels of its
    place and the label of the contour there; a person is in one part only."""
    assert extract(cohort, tmp_path / "store", "--per-site", "20") == 0
    found = entries(tmp_path / "store")
    assert Counter((e.site, e.label) for e in found) == {
        (site, label): 10 for site in ("north", "south") for label in ("normal", "tumour")
    }
    dataset = load(str(tmp_path / "store"))
    images = dataset.train.examples  # type: ignore[attr-defined]
    for row in (0, 13, 39):
        entry = found[row]
        with openslide.OpenSlide(cohort / entry.file) as slide:
            place = (int(entry.x), int(entry.y))
            region = np.asarray(slide.read_region(place, 0, (64, 64)))[:, :, :3]
        import torch

        mine = images.take(torch.tensor([row]))[0].permute(1, 2, 0).numpy()
        np.testing.assert_array_equal((mine * 255).round(), region)
    for entry in found:
        person = int(entry.person[-1])
        x = int(entry.x) + 32 - (SIDE / 2 + 40 * person)
        y = int(entry.y) + 32 - (SIDE / 2 - 30)
        away = np.hypot(x, y) - 0.24 * SIDE
        assert (away < 0) == (entry.label == "tumour")
        assert abs(away) > 10
    assert not set(dataset.train.groups.tolist()) & set(dataset.test.groups.tolist())
    assert (tmp_path / "store" / "contact.png").is_file()


def test_another_package_reads_the_same(cohort: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the function behind the package's ``read_region``, regions are the same: scanned
    ones, and white where they leave the slide."""
    slide = Slide(first_slide(cohort))
    places = [(256, 300), (slide.size[0] - 40, 300)]
    direct = [slide.region(x, y, 64, 64, 1.0) for x, y in places]
    monkeypatch.setattr("proxyfl.data.slides.slide.DIRECT", "gone")
    for (x, y), expected in zip(places, direct, strict=True):
        assert np.array_equal(slide.region(x, y, 64, 64, 1.0), expected)
    assert (direct[1][:, :, -20:] == 255).all()
    assert direct[0].std() > 1
    slide.close()


def test_microns_and_levels_agree(cohort: Path, tmp_path: Path) -> None:
    """A scale in microns that is a level's reads that level, and one between two levels reduces
    the finer one."""
    slide = Slide(first_slide(cohort))
    assert slide.microns == pytest.approx(0.25, rel=1e-3)
    exact = slide.region(512, 512, 64, 64, 2.0)
    with openslide.OpenSlide(first_slide(cohort)) as plain:
        level = np.asarray(plain.read_region((512, 512), 1, (64, 64)))[:, :, :3]
    np.testing.assert_array_equal(exact, level.transpose(2, 0, 1))
    between = slide.region(512, 512, 64, 64, 1.5)
    assert between.shape == (3, 64, 64)
    assert abs(float(between.mean()) - float(exact.mean())) < 8
    assert extract(cohort, tmp_path / "m", "--microns", "0.5", "--skip", "short") == 0
    steps = {int(e.x) % 122 in (0, 1, 2) or int(e.x) for e in entries(tmp_path / "m")}
    assert steps


def test_overlap_gives_more_patches(cohort: Path, tmp_path: Path) -> None:
    """With half a patch of overlap there are about four times as many."""
    assert extract(cohort, tmp_path / "a") == 0
    assert extract(cohort, tmp_path / "b", "--overlap", "0.5") == 0
    ratio = len(entries(tmp_path / "b")) / len(entries(tmp_path / "a"))
    assert 3.5 < ratio < 4.5


def test_tissue_is_where_it_was_drawn(cohort: Path) -> None:
    """The tissue found is the disc, to a few per cent of its area, without pyramid too; glass is
    none."""
    slide = Slide(first_slide(cohort))
    found = tissue_map(slide, 8.0, Faults())
    expected = np.pi * (0.46 * SIDE / 8) ** 2
    assert found.mask.sum() == pytest.approx(expected, rel=0.05)


def test_pale_tissue_is_tissue(tmp_path: Path) -> None:
    """Where nuclei stand out from tissue more than tissue does from glass, tissue is still found,
    for every scanner."""
    middle = SIDE / 2
    disc, tumour = (Disc(middle, middle, 0.46 * SIDE), Disc(middle, middle, 0.3 * SIDE))
    for name, scanner in SCANNERS.items():
        path = tmp_path / f"{name}.tif"
        write_slide(path, (SIDE, SIDE), disc, tumour, scanner=scanner, seed=200)
        slide = Slide(path)
        found = tissue_map(slide, 4.0, Faults())
        slide.close()
        expected = np.pi * (0.46 * SIDE / 4) ** 2
        assert found.mask.sum() == pytest.approx(expected, rel=0.05), name


def test_a_slide_without_pyramid(tmp_path: Path) -> None:
    """One level alone is reduced block by block to the same tissue."""
    write_slide(tmp_path / "flat.tif", (SIDE, SIDE), TISSUE, None, levels=1)
    found = tissue_map(Slide(tmp_path / "flat.tif"), 16.0, Faults())
    assert found.mask.sum() == pytest.approx(np.pi * (600 / 16) ** 2, rel=0.05)


def test_contours_fill_exactly() -> None:
    """A polygon's filled area is its area; a hole in GeoJSON is cut out."""
    square = np.array([(10.0, 10.0), (110.0, 10.0), (110.0, 60.0), (10.0, 60.0)])
    assert Area([square], [], 1.0).rows(0, 200, 200).sum() == 100 * 50
    disc = np.array(Disc(100, 100, 80).polygon(500))
    mask = Area([disc], [], 1.0).rows(0, 200, 200)
    assert mask.sum() == pytest.approx(np.pi * 6400, rel=0.003)
    some = Area([disc], [], 1.0).rows(70, 130, 200)
    assert np.array_equal(some, mask[70:130])


def test_geojson_with_a_hole(tmp_path: Path) -> None:
    """QuPath's polygons are read with their holes and groups."""
    path = tmp_path / "a.geojson"
    write_geojson(path, [Disc(100, 100, 80).polygon(), Disc(100, 100, 30).polygon()])
    outer, hole = read_contours(path)
    assert (outer.group, hole.group) == ("Tumor", "exclusion")
    mask = Area([outer.points], [hole.points], 1.0).rows(0, 200, 200)
    assert not mask[100, 100]
    assert mask[100, 150]


def test_an_extraction_that_is_killed_is_continued(cohort: Path, tmp_path: Path) -> None:
    """kill -9 in the middle, then the same command: the store is the same, byte for byte."""
    more = ["--overlap", "0.5", "--skip", "short"]
    small = "from proxyfl.data.stores import writing; writing.SHARD_BYTES = 2**19;"
    endless = "import time; writing._finish = lambda *_: time.sleep(1000);"
    main = "import sys; from proxyfl.cli.main import main; sys.exit(main(sys.argv[1:]))"

    def command(out: str, code: str = small + main) -> list[str]:
        words = ["slides", "extract", str(cohort), "--size", "64", "--workers", "2"]
        return [sys.executable, "-c", code, *words, "--out", str(tmp_path / out), *more]

    subprocess.run(command("whole"), check=True, capture_output=True)
    running = subprocess.Popen(
        command("killed", small + endless + main),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    killed = tmp_path / "killed"
    wait_until(lambda: len(list(killed.glob("*.npy"))) >= 5, every=0.005)
    os.kill(running.pid, signal.SIGKILL)
    running.wait()
    assert not (tmp_path / "killed" / "store.json").exists()
    subprocess.run(command("killed"), check=True, capture_output=True)
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")


def test_a_damaged_tile(own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It stops the extraction, or, by choice, costs its patches and no others: the slide is
    opened again."""
    damage(first_slide(own))
    assert extract(own, tmp_path / "stopped") == 2
    assert "is damaged" in capsys.readouterr().err
    assert extract(own, tmp_path / "store", "--skip", "damaged", "--skip", "short") == 0
    assert "x damaged (a region of a slide that cannot be read)" in capsys.readouterr().out
    damaged = index.read_head(tmp_path / "store").skipped["damaged"]
    of_slide = [e for e in entries(tmp_path / "store") if e.file.endswith(first_slide(own).name)]
    assert 0 < damaged < 60
    assert len(of_slide) > 20


def test_the_handle_is_opened_again(own: Path) -> None:
    """After a damaged region OpenSlide's own handle is dead; a Slide reads the next region."""
    path = first_slide(own)
    damage(path)
    slide = Slide(path)
    bad = None
    for y in range(0, SIDE, 256):
        for x in range(0, SIDE, 256):
            try:
                slide.region(x, y, 64, 64, 1.0)
            except Damaged:
                bad = (x, y)
    assert bad is not None
    assert slide.reopened > 0
    assert slide.region(0, 0, 64, 64, 1.0).shape == (3, 64, 64)
    with openslide.OpenSlide(path) as plain:
        with pytest.raises(openslide.OpenSlideError):
            plain.read_region(bad, 0, (64, 64))
        with pytest.raises(openslide.OpenSlideError):
            plain.read_region((0, 0), 0, (64, 64))


def spoil_orphan(root: Path) -> None:
    """A contour file for a slide that is not there."""
    write_asap(root / "nobody.xml", [TUMOUR.polygon()])


def spoil_contours(root: Path) -> None:
    """A slide without contours."""
    first_slide(root).with_suffix(".xml").unlink()


def spoil_outside(root: Path) -> None:
    """A contour that reaches beyond the slide."""
    write_asap(
        first_slide(root).with_suffix(".xml"), [TUMOUR.polygon(), Disc(SIDE, 300, 200).polygon()]
    )


def spoil_group(root: Path) -> None:
    """A contour of a group that nobody has heard of."""
    write_asap(first_slide(root).with_suffix(".xml"), [TUMOUR.polygon()], "Vessel")


def spoil_blank(root: Path) -> None:
    """A slide of glass alone."""
    write_slide(first_slide(root), (SIDE, SIDE), Disc(0, 0, 0), None)


def spoil_size(root: Path) -> None:
    """A slide that is smaller than a patch."""
    slide = first_slide(root)
    write_slide(slide, (40, 40), Disc(20, 20, 20), None)
    write_asap(slide.with_suffix(".xml"), [[(1, 1), (30, 1), (30, 30)]])


def spoil_area(root: Path) -> None:
    """A line among the contours."""
    line = [(100.0, 100.0), (200.0, 200.0)]
    write_asap(first_slide(root).with_suffix(".xml"), [TUMOUR.polygon(), line])


def spoil_emptiness(root: Path) -> None:
    """A contour file of another kind of XML, in which there is no contour."""
    first_slide(root).with_suffix(".xml").write_text("<Regions/>")


def spoil_number(root: Path) -> None:
    """A contour with a corner that is nowhere."""
    polygon = [(float("nan"), 1.0), (30.0, 1.0), (30.0, 30.0)]
    write_asap(first_slide(root).with_suffix(".xml"), [TUMOUR.polygon(), polygon])


def spoil_length(root: Path) -> None:
    """A slide whose second half is lost."""
    slide = first_slide(root)
    content = slide.read_bytes()
    slide.write_bytes(content[: len(content) // 2])


def spoil_link(root: Path) -> None:
    """A link in a slide's place that leads nowhere."""
    slide = first_slide(root)
    slide.unlink()
    slide.symlink_to(root / "nowhere")


def spoil_slide(root: Path) -> None:
    """A file that is no slide."""
    first_slide(root).write_text("not a slide")


def spoil_sites(root: Path) -> None:
    """A person with slides at two sites."""
    (root / "south" / "south-0").rename(root / "south" / "north-0")


def spoil_place(root: Path) -> None:
    """A slide that lies in no person's folder."""
    shutil.copy(first_slide(root), root / "north" / "lost.tif")


@pytest.mark.parametrize(
    ("spoil", "kind"),
    [
        (spoil_orphan, "orphan"),
        (spoil_contours, "no-contours"),
        (spoil_outside, "outside"),
        (spoil_number, "outside"),
        (spoil_area, "no-area"),
        (spoil_emptiness, "no-contours"),
        (spoil_group, "unknown-group"),
        (spoil_blank, "blank"),
        (spoil_size, "blank"),
        (spoil_length, "unreadable"),
        (spoil_link, "unreadable"),
        (spoil_slide, "unreadable"),
        (spoil_sites, "two-sites"),
        (spoil_place, "misplaced"),
    ],
)
def test_bad_input_is_named_and_counted(
    own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], spoil, kind: str
) -> None:
    """Each fault is refused by name, or skipped by choice and counted."""
    spoil(own)
    assert extract(own, tmp_path / "store") == 2
    said = capsys.readouterr().err
    assert f"({kind}: " in said
    assert f"--skip {kind}" in said
    assert not (tmp_path / "store" / "store.json").exists()
    assert extract(own, tmp_path / "store", "--skip", kind, "--skip", "short") == 0
    assert f"skipped 1 x {kind}" in capsys.readouterr().out
    assert index.read_head(tmp_path / "store").skipped[kind] == 1


def test_a_slide_without_a_scale(own: Path, tmp_path: Path) -> None:
    """It is refused where microns are asked for, and taken where a level is."""
    slide = first_slide(own)
    write_slide(slide, (SIDE, SIDE), TISSUE, TUMOUR, scale=False)
    write_asap(slide.with_suffix(".xml"), [TUMOUR.polygon()])
    faults = Faults()
    assert extract(own, tmp_path / "a", "--microns", "0.25") == 2
    assert extract(own, tmp_path / "b", "--microns", "0.25", "--skip", "no-scale") == 0
    assert index.read_head(tmp_path / "b").skipped == {"no-scale": 1}
    assert extract(own, tmp_path / "c", "--level", "0") == 0
    assert not faults.counts


def test_too_few_patches(cohort: Path, tmp_path: Path) -> None:
    """A number that a site cannot give is refused, or by choice as many as balance are taken."""
    with pytest.raises(SystemExit):
        main(["slides", "extract"])
    assert extract(cohort, tmp_path / "a", "--per-site", "5000") == 2
    assert extract(cohort, tmp_path / "a", "--per-site", "5000", "--skip", "short") == 0
    found = Counter((e.site, e.label) for e in entries(tmp_path / "a"))
    assert found["north", "normal"] == found["north", "tumour"] > 20


def test_no_slide_has_a_part_in_the_choice_of_anothers_patches(own: Path, tmp_path: Path) -> None:
    """With --per-slide the patches of a slide stay as they are when another slide is added or
    taken away, under whatever name; balanced over a site, they would not."""
    chosen = []
    for out in ("all", "fewer"):
        assert extract(own, tmp_path / out, "--per-slide", "7") == 0
        assert extract(own, tmp_path / f"{out}-balanced", "--per-site", "40") == 0
        chosen.append((patches_of(tmp_path / out), patches_of(tmp_path / f"{out}-balanced")))
        gone = first_slide(own)
        shutil.rmtree(gone.parent)
    (per_slide, balanced), (fewer, fewer_balanced) = chosen
    kept = per_slide.keys() & fewer.keys()
    assert len(kept) == len(per_slide) - 1 == 5
    assert all(per_slide[file] == fewer[file] for file in kept)
    assert {len(found) for found in per_slide.values()} == {14}
    assert any(balanced[file] != fewer_balanced[file] for file in kept & balanced.keys())
    assert extract(own, tmp_path / "both", "--per-slide", "7", "--per-site", "40") == 2


def patches_of(store: Path) -> dict[str, set[tuple[str, str, str]]]:
    """The corners and labels of each slide's patches."""
    found: dict[str, set[tuple[str, str, str]]] = {}
    for entry in entries(store):
        found.setdefault(entry.file, set()).add((entry.x, entry.y, entry.label))
    return found


def test_slides_without_contours_may_be_normal(own: Path, tmp_path: Path) -> None:
    """Said so explicitly, a slide that has no contours gives normal patches alone."""
    spoil_contours(own)
    assert extract(own, tmp_path / "a", "--without-contours", "normal") == 0
    name = first_slide(own).name
    labels = {e.label for e in entries(tmp_path / "a") if e.file.endswith(name)}
    assert labels == {"normal"}


def test_persons_from_names_and_no_persons(
    own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A pattern finds the person in a file's name; without any person nothing is extracted."""
    assert extract(own, tmp_path / "a", "--layout", "site/any") == 2
    assert "whose slide is it?" in capsys.readouterr().err
    more = ["--layout", "site/any", "--person-from", "slide-[0-9]+"]
    assert extract(own, tmp_path / "a", *more) == 0
    assert {e.person for e in entries(tmp_path / "a")} >= {"slide-000", "slide-101"}


def test_a_contour_file_that_is_none(tmp_path: Path) -> None:
    """Broken XML, and XML with entities, are refused with the file's name."""
    path = tmp_path / "a.xml"
    path.write_text("<ASAP_Annotations>")
    with pytest.raises(DataError, match=r"a\.xml: expected ASAP XML or GeoJSON"):
        read_contours(path)
    path.write_text('<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>')
    with pytest.raises(DataError, match="entities are not allowed"):
        read_contours(path)


@pytest.mark.parametrize(
    "text",
    [
        '{"features": [1]}',
        '{"features": [{"geometry": null}]}',
        '{"features": [{"geometry": {"type": "Polygon", "coordinates": []}}]}',
        '{"features": [{"geometry": {"type": "Polygon", "coordinates": [[1, 2]]}}]}',
        '{"features": [{"geometry": {"type": "Polygon", "coordinates": [[[1], [2]]]}}]}',
        "[" * 100_000,
    ],
)
def test_geojson_that_is_none(tmp_path: Path, text: str) -> None:
    """JSON of another kind is refused with the file's name, whatever it holds."""
    path = tmp_path / "a.geojson"
    path.write_text(text)
    with pytest.raises(DataError, match=r"a\.geojson: expected ASAP XML or GeoJSON"):
        read_contours(path)


def rename(slide: Path, name: str) -> Path:
    """Give a slide and the contours beside it another name."""
    contours = slide.with_suffix(".xml")
    contours.rename(contours.with_name(f"{name}.xml"))
    return slide.rename(slide.with_name(f"{name}.tif"))


def test_slides_of_one_name(own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two hospitals may call a slide the same: each has the contours that lie beside it, or in the
    same folders below --contours. Where a file could be either's, nothing is guessed."""
    slides = []
    for site in ("north", "south"):
        slides.append(rename(first_slide(own / site), "1"))
    assert extract(own, tmp_path / "beside", "--per-site", "20") == 0
    for slide in slides:
        contours = slide.with_suffix(".xml")
        moved = tmp_path / "contours" / contours.relative_to(own)
        moved.parent.mkdir(parents=True)
        contours.rename(moved)
    for contours in own.rglob("*.xml"):
        contours.rename(tmp_path / "contours" / contours.name)
    more = ["--per-site", "20", "--contours", str(tmp_path / "contours")]
    assert extract(own, tmp_path / "apart", *more) == 0
    assert contents(tmp_path / "apart") == contents(tmp_path / "beside")
    lost = tmp_path / "contours" / "1.xml"
    (tmp_path / "contours" / slides[0].relative_to(own)).with_suffix(".xml").rename(lost)
    (tmp_path / "contours" / slides[1].relative_to(own)).with_suffix(".xml").unlink()
    capsys.readouterr()
    assert extract(own, tmp_path / "guess", *more) == 2
    assert "2 slides have this name" in capsys.readouterr().err


def test_memory_of_a_region_is_its_own_or_the_callers(cohort: Path) -> None:
    """Regions do not share memory, unless the caller gives some; reduced ones too."""
    slide = Slide(first_slide(cohort))
    room = np.zeros((3, 64, 64), dtype=np.uint8)
    for downsample in (1.0, 1.5):
        first = slide.region(512, 512, 64, 64, downsample)
        before = first.copy()
        other = slide.region(256, 640, 64, 64, downsample, room)
        assert other is room
        assert np.array_equal(first, before)
        assert np.array_equal(room, slide.region(256, 640, 64, 64, downsample))
    slide.close()
