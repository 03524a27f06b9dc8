"""A site whose disk is full, and files that a power cut left unfinished: real processes."""

import shutil
from pathlib import Path

import pytest

from proxyfl import _journal
from proxyfl._journal import CRC32
from proxyfl.node import assembly
from proxyfl.node.exchange import auditlog
from proxyfl.node.members import site as sites
from proxyfl.node.observe import status
from proxyfl.node.supervisor import Node
from proxyfl.privacy.ledger import Ledger
from tests.node.federations import SEED, Running, forked, quick, running, total_weight, trial
from tests.node.small_disk import small_disk
from tests.waiting import PATIENCE, wait_until

ROUNDS = 12
STEPS = 2


def test_a_site_on_a_full_disk_ends_with_a_sentence_and_starts_again(tmp_path: Path) -> None:
    """The disk fills up while a site runs: it ends with a sentence, cannot be started while the
    disk is full, and goes on when there is room. No mass is lost, and every round is charged
    once."""
    layout = trial.lay_out(tmp_path, sites=2, rounds=ROUNDS, template=quick(patience=PATIENCE))
    north, south = layout.sites
    log = tmp_path / "south.log"
    words = ("node", "run", str(south), "--simulated-seed", str(SEED), "--no-status-page")
    with small_disk(south, megabytes=8) as disk:
        peer = forked(north, "--simulated-seed", str(SEED))
        try:
            site = disk.proxyfl(*words, log=log)
            wait_until(lambda: "round 2 of" in log.read_text())
            disk.fill()
            assert site.wait(PATIENCE) != 0
            assert "Make room" in log.read_text()
            again = disk.proxyfl(*words, log=log)
            assert again.wait(PATIENCE) != 0
            assert log.read_text().count("Make room") == 2
            disk.free()
            assert disk.proxyfl(*words, log=log).wait(PATIENCE) == 0
            peer.join(PATIENCE)
            assert peer.exitcode == 0
        finally:
            peer.kill()
        disk.shell(f"cp -a {south} {tmp_path / 'copy'}")
    assert "Traceback" not in log.read_text()
    south.rmdir()
    shutil.move(tmp_path / "copy", south)
    assert total_weight(layout) == 2
    for place in layout.sites:
        assert Ledger.read(place / assembly.LEDGER_FILE).steps == ROUNDS * STEPS
        rounds = [row["round"] for row in status.rows(place)]
        # A round that was released when the site ended is concluded at the start, without a row.
        assert sorted({*rounds, *range(3)}) == list(range(ROUNDS))
        assert len(rounds) == len(set(rounds)) >= ROUNDS - 1
        assert auditlog.verify(place / auditlog.FILE) is None
        assert status.metrics_log(place).faults == ()


@pytest.mark.filterwarnings("ignore::proxyfl.privacy.accounting.AccountingWarning")
def test_a_site_whose_files_end_in_half_lines_starts_and_says_so(tmp_path: Path) -> None:
    """A power cut in the middle of a line of ledger, audit log and metrics: the site starts, says
    what was cut off, and finishes with weights exact."""
    layout = trial.lay_out(tmp_path, sites=2, rounds=20, template=quick())
    files = (assembly.LEDGER_FILE, auditlog.FILE, status.METRICS_FILE)
    made = Running()
    for place in layout.sites:
        made.start(place)
    wait_until(lambda: len(status.rows(layout.sites[0])) >= 2)
    for node in made.nodes.values():
        node.stopping.set()
    made.join()
    assert set(made.ended.values()) == {"stopped"}
    for name in files:
        path = layout.sites[0] / name
        last = path.read_bytes().splitlines()[-1]
        with path.open("ab") as file:
            file.write(last[: len(last) // 2])
    again = Running()
    for place in layout.sites:
        again.start(place)
    again.join()
    assert set(again.ended.values()) == {"finished"}
    assert total_weight(layout) == 2
    north = layout.sites[0]
    assert Ledger.read(north / assembly.LEDGER_FILE).steps == 20 * STEPS
    rounds = [row["round"] for row in status.rows(north)]
    assert rounds == sorted(set(rounds))
    assert len(rounds) >= 19  # of the round that was under way, released, there may be no row
    assert auditlog.verify(north / auditlog.FILE) is None
    damage = [entry for entry in auditlog.read(north / auditlog.FILE) if entry["event"] == "damage"]
    assert [entry["what"].split()[0] for entry in damage] == [auditlog.FILE, status.METRICS_FILE]


def test_a_site_starts_wherever_its_logs_end(tmp_path: Path) -> None:
    """Audit log and metrics cut at many bytes of their last lines: the site starts, every
    whole line is kept, and the chain holds."""
    layout = trial.lay_out(tmp_path, sites=2, rounds=2, template=quick())
    with running(layout) as made:
        made.join()
    settings, folder = sites.read(layout.sites[0])
    contents = {name: (folder / name).read_bytes() for name in (auditlog.FILE, status.METRICS_FILE)}
    longest = max(len(data.splitlines()[-1]) for data in contents.values())
    for cut in sorted({1, 2, 3, *range(1, longest + 3, 397)}):
        for name, data in contents.items():
            (folder / name).write_bytes(data[: max(0, len(data) - cut)])
        with Node(settings, folder, seed=SEED) as node:
            node._start()
        events = [entry["event"] for entry in auditlog.read(folder / auditlog.FILE)]
        assert events[-1] == "started"
        assert auditlog.verify(folder / auditlog.FILE) is None
        whole = contents[status.METRICS_FILE][:-cut].count(b"\n") + (cut == 1)
        metrics = _journal.read(folder / status.METRICS_FILE, CRC32, name="metrics", unsealed=True)
        assert len(metrics.entries) == whole
