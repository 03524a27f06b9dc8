"""The benchmarks run. What they measure depends on the machine, and is not tested."""

import json
import sys
from pathlib import Path

import pytest

from benchmarks import bench, slices


@pytest.mark.slow
def test_the_bench_writes_what_it_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every table is printed, and every time is in the file."""
    monkeypatch.setattr(
        sys, "argv", ["bench", "--seconds", "0.01", "--out", str(tmp_path / "bench.json")]
    )
    bench.main()
    found = json.loads((tmp_path / "bench.json").read_text())
    small, large = {"mlp", "lenet5", "cnn1", "cnn2"}, {"vgg", "resnet18"}
    assert set(found["milliseconds"]) == small | large
    for model in ("cnn2", *large):
        ways = set(found["private_milliseconds"][model])
        assert ways == {"default", "channels last", "bfloat16"}
    assert "A step without DP" in capsys.readouterr().out


@pytest.mark.slow
def test_slices_take_less_memory() -> None:
    """A step of sixteen records peaks below 0.6 of it when they come four at a time, and below 0.4
    one at a time."""
    found = {}
    for at_once in (16, 4, 1):
        found[at_once], _ = slices.measured(at_once, batch=16, pixels=160, repeats=1)
    print(f"MB at the peak: {found}")
    assert found[4] < 0.6 * found[16]
    assert found[1] < 0.4 * found[16]
