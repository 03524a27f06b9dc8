"""Downloads, from file: addresses and from a server that is not there."""

import hashlib
import urllib.error
import urllib.request

import pytest

from proxyfl.data.fetch import Remote, data_folder, fetch, fetch_all
from proxyfl.errors import DataError


@pytest.fixture
def remote(tmp_path):
    """A file with an address."""
    path = tmp_path / "there" / "file.bin"
    path.parent.mkdir()
    path.write_bytes(b"content" * 1000)
    return Remote(path.as_uri(), hashlib.md5(path.read_bytes()).hexdigest())


def test_a_download_arrives_whole(tmp_path, remote, capsys):
    """The file has its name and its content, nothing else is left in the folder, and stdout stays
    free."""
    found = fetch(remote, tmp_path / "here")
    assert found.read_bytes() == b"content" * 1000
    assert list((tmp_path / "here").iterdir()) == [found]
    assert capsys.readouterr().out == ""


def test_a_damaged_download_is_discarded(tmp_path, remote):
    """A wrong checksum is an error that states both sums, and leaves no file behind, not even a
    partial one."""
    with pytest.raises(DataError, match=f"expected MD5 {'0' * 32}, got {remote.md5}"):
        fetch(Remote(remote.url, "0" * 32), tmp_path / "here")
    assert list((tmp_path / "here").iterdir()) == []


def test_an_interrupted_download_leaves_nothing(tmp_path, remote, monkeypatch):
    """Ctrl-C in the middle removes the partial file."""
    import proxyfl.data.fetch as module

    def interrupted(remote, out):
        out.write(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "_copy", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fetch(remote, tmp_path / "here")
    assert list((tmp_path / "here").iterdir()) == []


def test_offline(tmp_path, remote, monkeypatch):
    """Without a network the error gives the reason, the addresses, and the folder to put the files
    into."""

    def refuse(url, timeout):
        raise urllib.error.URLError("no route to host")

    monkeypatch.setattr(urllib.request, "urlopen", refuse)
    with pytest.raises(DataError) as caught:
        fetch_all(
            "mnist",
            [remote, Remote("http://example.org/b.gz", "0")],
            tmp_path / "here",
            download=True,
        )
    message = str(caught.value)
    for expected in (
        "no route to host",
        remote.url,
        "http://example.org/b.gz",
        str(tmp_path / "here"),
        "digits",
    ):
        assert expected in message


def test_only_what_is_missing_is_fetched(tmp_path, remote):
    """A file that is there already is left as it is."""
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "b.gz").write_bytes(b"mine")
    fetch_all(
        "set",
        [remote, Remote("http://example.invalid/b.gz", "0")],
        tmp_path / "here",
        download=True,
    )
    assert (tmp_path / "here" / "b.gz").read_bytes() == b"mine"
    assert (tmp_path / "here" / "file.bin").exists()


def test_unwritable_folder(tmp_path, remote):
    """A folder that cannot be made is an error that names it."""
    (tmp_path / "here").write_text("a file, not a folder")
    with pytest.raises(DataError, match=r"could not be fetched: .*here"):
        fetch_all("set", [remote], tmp_path / "here" / "deeper", download=True)


def test_the_data_folder(tmp_path, monkeypatch):
    """The argument comes before the environment, the environment before the user's cache."""
    monkeypatch.setenv("PROXYFL_DATA", str(tmp_path / "env"))
    assert data_folder(tmp_path / "given") == tmp_path / "given"
    assert data_folder() == tmp_path / "env"
    monkeypatch.delenv("PROXYFL_DATA")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data_folder() == tmp_path / ".cache" / "proxyfl"
