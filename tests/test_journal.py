"""Sealed append-only files, whatever happens to their end and whoever moves them."""

import errno
import json
import os
import shutil
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxyfl import _journal
from proxyfl._journal import CRC32, SHA256, Log, Seal, parse
from proxyfl.errors import PrivacyError, RunError
from proxyfl.node.exchange import auditlog
from proxyfl.node.observe import status
from proxyfl.privacy import journal
from proxyfl.privacy.ledger import Ledger

BEFORE = Path(__file__).parent / "node" / "release-0.1"
SEALS = pytest.mark.parametrize("seal", [CRC32, SHA256], ids=lambda seal: seal.key)


def numbers(path: Path, seal: Seal = CRC32) -> list[int]:
    """What the tests put into a file, from the file; every line must follow."""
    content = _journal.read(path, seal, name="log")
    assert content.damaged == ()
    return [entry["number"] for entry in content.entries]


def filled(path: Path, seal: Seal = CRC32, *, upto: int = 3) -> Log:
    """A log with some entries."""
    log = Log(path, seal, name="log")
    for number in range(upto):
        log.append({"number": number, "text": "é\n"})
    return log


@SEALS
def test_a_file_that_ends_at_any_byte_goes_on(tmp_path: Path, seal: Seal) -> None:
    """Cut at every byte, the file keeps every whole record, says what it lost, and grows again."""
    path = tmp_path / "log.jsonl"
    filled(path, seal)
    data = path.read_bytes()
    ends = [at for at, byte in enumerate(data) if byte == 10]
    for cut in range(len(data) + 1):
        path.write_bytes(data[:cut])
        whole = sum(end <= cut for end in ends)
        log = Log(path, seal, name="log")
        assert bool(log.faults) == (cut - 1 not in ends and cut not in ends and cut > 0)
        assert path.read_bytes() == data[:cut]
        log.append({"number": 9})
        log.append({"number": 10})
        assert numbers(path, seal) == [*range(whole), 9, 10]


@SEALS
def test_a_complete_record_counts_whatever_its_line_break_became(
    tmp_path: Path, seal: Seal
) -> None:
    """For every byte in place of the last line break, the record before it is a record."""
    path = tmp_path / "log.jsonl"
    filled(path, seal)
    data = path.read_bytes()
    for byte in range(256):
        path.write_bytes(data[:-1] + bytes([byte]))
        assert numbers(path, seal) == [0, 1, 2]
        Log(path, seal, name="log").append({"number": 3})
        assert numbers(path, seal) == [0, 1, 2, 3]


def test_a_ledgers_charge_counts_whatever_its_line_break_became(tmp_path: Path) -> None:
    """A flipped last byte takes no charge off a ledger."""
    path = tmp_path / "ledger.jsonl"
    end = journal.create(path, {"client": "north"}, durable=False)
    journal.append(path, {"round": 1}, end, durable=False)
    data = path.read_bytes()
    for byte in range(256):
        path.write_bytes(data[:-1] + bytes([byte]))
        _, charges, end = journal.read(path)
        assert charges == [{"round": 1}]
        journal.append(path, {"round": 2}, end, durable=False)
        assert journal.read(path)[1] == [{"round": 1}, {"round": 2}]


@settings(max_examples=300, derandomize=True)
@given(st.binary(max_size=200), st.integers(0, 400), st.sampled_from([CRC32, SHA256]))
def test_no_bytes_make_reading_fail(junk: bytes, at: int, seal: Seal) -> None:
    """Whatever is written over a file, reading it raises nothing, and lines before it count."""
    lines = []
    check = ""
    for number in range(3):
        line, check = seal.line({"number": number}, check)
        lines.append(line)
    data = b"".join(lines)
    content = parse(data[:at] + junk + data[at + len(junk) :], seal)
    intact = sum(len(b"".join(lines[: k + 1])) <= at for k in range(3))
    assert [entry["number"] for entry in content.entries[:intact]] == list(range(intact))
    assert all(line > intact for line in content.damaged)


def test_deep_nesting_is_damage() -> None:
    """A line that would exhaust the parser's stack is a damaged line like any other."""
    deep = b"[" * 100_000
    assert parse(deep + b"\n", CRC32).damaged == (1,)
    assert parse(deep, CRC32).end.torn == len(deep)


@SEALS
def test_an_edited_or_lost_line_shows(tmp_path: Path, seal: Seal) -> None:
    """The line that does not follow is named, and the log goes on after it."""
    path = tmp_path / "log.jsonl"
    filled(path, seal)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + lines[1].replace(b'"number": 1', b'"number": 7') + lines[2])
    assert _journal.read(path, seal, name="log").damaged == (2,)
    path.write_bytes(lines[0] + lines[2])
    log = Log(path, seal, name="log")
    assert "Line 2 of log.jsonl, is damaged" in log.faults[0]
    log.append({"number": 3})
    assert _journal.read(path, seal, name="log").damaged == (2,)


def test_a_write_that_fails_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is full after half of a line: the file is as it was, and can be written when
    there is room again."""
    log = filled(tmp_path / "log.jsonl")
    before = log.path.read_bytes()
    write = os.write

    def half(descriptor: int, data: bytes) -> int:
        if len(data) < 40:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, data[: len(data) // 2])

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", half)
        with pytest.raises(RunError, match=r"log\.jsonl: No space left on device\. Make room"):
            log.append({"number": 3, "text": "x" * 60})
    assert log.path.read_bytes() == before
    log.append({"number": 3})
    assert numbers(log.path) == [0, 1, 2, 3]


def test_a_failed_sync_is_a_failed_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry that the disk does not take is not in the file."""
    log = filled(tmp_path / "log.jsonl")

    def fail(descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(RunError, match="Input/output error"):
            log.append({"number": 3})
    assert numbers(log.path) == [0, 1, 2]
    log.append({"number": 3})
    assert numbers(log.path) == [0, 1, 2, 3]


def test_entries_are_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each entry reaches the disk before ``append`` returns."""
    log = filled(tmp_path / "log.jsonl")
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    log.append({"number": 3})
    assert len(synced) == 1


def test_a_reader_sees_what_is_new_and_what_was_moved(tmp_path: Path) -> None:
    """It reads as the file grows, leaves out a line that is being written, and begins again when
    the file is another one."""
    path = tmp_path / "log.jsonl"
    reader = _journal.Reader(path, CRC32)
    assert reader.entries() == []
    log = filled(path)
    assert [entry["number"] for entry in reader.entries()] == [0, 1, 2]
    with path.open("ab") as file:
        file.write(b'{"number": 9')
    assert len(reader.entries()) == 3
    log.append({"number": 3})
    assert [entry["number"] for entry in reader.entries()] == [0, 1, 2, 3]
    assert reader.entries() == _journal.read(path, CRC32, name="log").entries
    path.rename(tmp_path / "log.jsonl.1")
    log.append({"number": 4})
    assert [entry["number"] for entry in reader.entries()] == [4]


def chained(files: list[Path], seal: Seal) -> list[int]:
    """The entries of several files, each of which must continue the one before."""
    found: list[int] = []
    check = ""
    for file in files:
        content = _journal.read(file, seal, name="log")
        assert content.damaged == ()
        assert content.entries[0].get(_journal.AFTER, "") == check
        check = content.end.check
        found += [entry["number"] for entry in content.entries]
    return found


@SEALS
@pytest.mark.parametrize("stopped", [False, True], ids=["running", "stopped"])
def test_rotation_does_not_break_the_chain(tmp_path: Path, seal: Seal, stopped: bool) -> None:
    """logrotate moves the file away, while the program runs or while it does not: the new file
    names the last check of the old one."""
    path = tmp_path / "log.jsonl"
    log = filled(path, seal)
    aside = tmp_path / "log.jsonl.1"
    path.rename(aside)
    if stopped:
        log = Log(path, seal, name="log")
    log.append({"number": 3})
    log.append({"number": 4})
    assert chained([aside, path], seal) == [0, 1, 2, 3, 4]


def test_a_file_that_is_copied_and_emptied_is_continued(tmp_path: Path) -> None:
    """logrotate's copytruncate, while the program runs."""
    log = filled(tmp_path / "log.jsonl")
    aside = shutil.copy(log.path, tmp_path / "log.jsonl.1")
    os.truncate(log.path, 0)
    log.append({"number": 3})
    assert chained([aside, log.path], CRC32) == [0, 1, 2, 3]


@SEALS
def test_a_file_that_grows_too_large_is_put_aside(tmp_path: Path, seal: Seal) -> None:
    """Rotation by size: nothing is lost, the chain goes through all files, and a crash between
    the two steps of a rotation does no harm."""
    path = tmp_path / "log.jsonl"
    log = Log(path, seal, name="log", largest=300)
    for number in range(20):
        log.append({"number": number})
    files = [*_journal.earlier(path), path]
    assert [file.name for file in files[:2]] == ["log-0001.jsonl", "log-0002.jsonl"]
    assert chained(files, seal) == list(range(20))
    path.rename(tmp_path / f"log-{len(files):04d}.jsonl")
    Log(path, seal, name="log", largest=300).append({"number": 20})
    assert chained([*_journal.earlier(path), path], seal) == list(range(21))


def test_two_writers_in_turn_do_not_overwrite_each_other(tmp_path: Path) -> None:
    """A line that another program added is kept, and the chain includes it."""
    one = filled(tmp_path / "log.jsonl")
    Log(one.path, CRC32, name="log").append({"number": 3})
    one.append({"number": 4})
    assert numbers(one.path) == [0, 1, 2, 3, 4]


def test_many_threads_make_one_chain(tmp_path: Path) -> None:
    """Entries of several threads are all there, and each follows from the one before."""
    log = Log(tmp_path / "log.jsonl", SHA256, name="log", largest=2000)

    def work(start: int) -> None:
        for number in range(start, start + 25):
            log.append({"number": number})

    threads = [threading.Thread(target=work, args=(100 * k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    files = [*_journal.earlier(log.path), log.path]
    expected = [100 * k + number for k in range(4) for number in range(25)]
    assert sorted(chained(files, SHA256)) == expected


class TestFilesOfEarlierReleases:
    """Ledger, audit log and metrics as release 0.1 wrote them."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        """A copy of a site's files."""
        shutil.copytree(BEFORE, tmp_path, dirs_exist_ok=True)
        return tmp_path

    def test_they_are_read_as_they_are(self, folder: Path) -> None:
        """Every line is there, and every seal holds."""
        assert auditlog.verify(folder / auditlog.FILE) is None
        assert len(auditlog.read(folder / auditlog.FILE)) == 12
        assert [row["round"] for row in status.rows(folder)] == [0, 1, 2]
        assert Ledger.read(folder / "ledger.jsonl").steps == 6

    def test_they_are_continued(self, folder: Path) -> None:
        """New lines follow the old ones; from the first sealed row on, every row is sealed."""
        auditlog.AuditLog(folder / auditlog.FILE).add("started")
        assert auditlog.verify(folder / auditlog.FILE) is None
        assert len(auditlog.read(folder / auditlog.FILE)) == 13
        metrics = status.metrics_log(folder)
        metrics.append({"round": 3})
        metrics.append({"round": 4})
        assert [row["round"] for row in status.rows(folder)] == [0, 1, 2, 3, 4]
        text = metrics.path.read_text()
        metrics.path.write_text(text.replace('{"round": 3', '{"round": 7'))
        assert status.metrics_log(folder).faults

    def test_a_half_line_that_an_earlier_release_wrote_on_is_no_obstacle(
        self, folder: Path
    ) -> None:
        """Release 0.1 appended to a half line, and then never started again. Now it is said, and
        the site goes on."""
        for name in (auditlog.FILE, status.METRICS_FILE):
            path = folder / name
            lines = path.read_bytes().splitlines(keepends=True)
            path.write_bytes(b"".join([*lines[:-1], lines[-1][:20], lines[-1]]))
        log = auditlog.AuditLog(folder / auditlog.FILE)
        assert "is damaged" in log.faults[0]
        assert auditlog.read(folder / auditlog.FILE)[-1]["event"] == "damage"
        assert len(status.rows(folder)) == 2
        metrics = status.metrics_log(folder)
        metrics.append({"round": 2})
        assert [row["round"] for row in status.rows(folder)] == [0, 1, 2]

    def test_a_damaged_ledger_is_still_refused(self, folder: Path) -> None:
        """What a log passes over, a ledger must not."""
        path = folder / "ledger.jsonl"
        path.write_text(path.read_text().replace('"steps": 2', '"steps": 1', 1))
        with pytest.raises(PrivacyError, match="damaged or out of place"):
            Ledger.read(path)


def test_the_audit_log_says_when_the_clock_jumps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock that is set while the site runs, or while it does not, is an entry of its own; the
    chain keeps the order."""
    path = tmp_path / auditlog.FILE
    log = auditlog.AuditLog(path)
    log.add("started")
    real = auditlog.time.time
    monkeypatch.setattr(auditlog.time, "time", lambda: real() + 86400)
    log.add("released", round=0)
    monkeypatch.setattr(auditlog.time, "time", real)
    auditlog.AuditLog(path).add("started")
    entries = auditlog.read(path)
    events = [entry["event"] for entry in entries]
    assert events == ["started", "clock jumped", "released", "clock jumped", "started"]
    assert abs(entries[1]["seconds"] - 86400) < 60
    assert abs(entries[3]["seconds"] + 86400) < 60
    assert auditlog.verify(path) is None
    assert json.loads(path.read_text().splitlines()[0])["event"] == "started"
