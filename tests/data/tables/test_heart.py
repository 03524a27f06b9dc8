"""UCI heart disease: its schema ships with the package, and its files are its publisher's."""

import random

import pytest

from proxyfl.data.sources import heart, load
from proxyfl.data.tables.encoding import encode
from proxyfl.data.tables.faults import Tally
from proxyfl.data.tables.features import feature_names
from proxyfl.data.tables.reading import read
from proxyfl.errors import DataError


def made_up(generator):
    """A line as the files have it: no header, decimals here and not there, ? for missing."""
    form = generator.choice(["{}", "{}.0"])
    cells = [generator.randint(30, 70), generator.randint(0, 1), generator.randint(1, 4)]
    cells += [generator.randint(90, 180), generator.choice([0, 230])]
    text = [form.format(cell) for cell in cells]
    text += [generator.choice(["?", "1"]), "0", "150", "0", "1.5", "?", "?", "?"]
    return ",".join([*text, str(generator.randint(0, 4))])


def test_the_schema_reads_the_files_as_they_are(tmp_path):
    """Files without a header, with decimals or without and ? for missing are encoded by it."""
    generator = random.Random(0)
    path = tmp_path / "processed.cleveland.data"
    path.write_text("\n".join(made_up(generator) for _ in range(50)) + "\n")
    (part,) = read(path, header=heart.HEADER)
    encoded, faults = encode(heart.schema(), part, Tally())
    assert not faults
    assert encoded.x.shape == (50, len(feature_names(heart.schema())))
    assert set(encoded.y.tolist()) == {0, 1}


def test_the_four_hospitals_need_no_network(tmp_path):
    """Without files of one's own, the package's are read: the publisher's, by their checksums."""
    found = load("heart_disease", directory=tmp_path, download=False)
    assert len(found.train) + len(found.test) == 920
    assert list(found.site_names) == list(heart.HOSPITALS)


def test_the_files_are_attributed():
    """The licence asks for it: authors, source and licence stand next to the files."""
    text = (heart.find() / "README.md").read_text()
    for part in ("Janosi", "Detrano", "CC BY 4.0", "10.24432/C52P4X"):
        assert part in text


def test_files_that_are_not_the_publishers_are_refused(tmp_path):
    """A file with another checksum is named with the checksum that it should have."""
    for remote in heart.HOSPITALS.values():
        (tmp_path / remote.name).write_text("1,2,3\n")
    with pytest.raises(DataError, match=r"cleveland.data: expected MD5 2d91a8ff"):
        load("heart_disease", directory=tmp_path)
