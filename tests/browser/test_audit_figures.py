"""The audit's figures on the page, drawn from a real audit and a real attack."""

import shutil
from pathlib import Path

from proxyfl._files import write_json
from proxyfl.audit.finding import audit
from proxyfl.audit.membership import as_dict, attack
from proxyfl.records.reading import ADDITIONS
from tests.audit.settings import small
from tests.audit.test_membership import made
from tests.browser.conftest import written
from tests.chromium import Tab

AXIS = "() => document.querySelector('#membership .chart').layout.xaxis.type"
BARS = "() => Array.from(document.querySelector('#audit .chart').data[0].x)"


def test_an_audit_and_membership_inference_are_drawn(
    tab: Tab, runs: list[Path], tmp_path: Path
) -> None:
    """The bars are the audit's numbers, the curves lie on log axes, and nothing complains."""
    folder = Path(shutil.copytree(runs[0], tmp_path / "audited"))
    found = audit(small(rounds=10), canaries=40).as_dict()
    rates = as_dict(attack(made(1.0)), federations=24, client=0)
    write_json(folder / ADDITIONS["audit"], found)
    write_json(folder / ADDITIONS["membership"], rates)
    tab.open(written([folder], tmp_path / "page.html").as_uri())
    tab.chart("audit")
    bars = tab.page.evaluate(BARS)
    assert bars[-1] == found["epsilon"]
    assert bars[-2] == found["step_by_step"]["lower_bound"]
    assert bars[0] == found["ceiling"]
    names = [trace["name"] for trace in tab.chart("membership")]
    assert names == [row["target"] for row in rates["targets"]] + ["guessing"]
    assert tab.page.evaluate(AXIS) == "log"
    assert tab.complaints == []
