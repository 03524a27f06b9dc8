"""The records next to the ledgers of a run or a site, for a certificate."""

from pathlib import Path
from typing import Any

from proxyfl._command import command
from proxyfl.errors import RunError
from proxyfl.privacy import certificate as certificates
from proxyfl.privacy.certificate import Facts
from proxyfl.records import reading
from proxyfl.records.run import Run

_AUDIT = ("client", "epsilon", "lower_bound", "ceiling", "confidence", "method", "verdict")


def site_facts(folder: Path) -> Facts:
    """The facts of a real site, which has no record before its first start."""
    if not (folder / "config.toml").is_file():
        return certificates.NODE
    site = reading.read(folder)
    return facts_of(site, releasing(site))


def facts_of(run: Run, method: str) -> Facts:
    """The facts that a run's or a site's folder records next to its ledgers."""
    return Facts(
        method,
        released=run.method(method).shares,
        version=run.environment.get("packages", {}).get("proxyfl"),
        commit=run.environment.get("commit"),
        started=run.environment.get("started"),
        audit=_read_audit(run),
    )


def _read_audit(run: Run) -> dict[str, Any] | None:
    """The result of the audit in the run's folder, if there is one."""
    audit = run.additions.get("audit")
    if not isinstance(audit, dict):
        return None
    return {key: audit[key] for key in _AUDIT if key in audit}


def releasing(run: Run) -> str:
    """The last method whose models leave their clients."""
    for name in reversed(run.methods):
        if run.method(name).shares:
            return name
    if not run.methods:
        raise RunError(
            f"{run.path} has no record of a round, so there is nothing to certify. To begin it, "
            f"run: {command('run', (run.path or Path()) / 'config.toml')}"
        )
    raise RunError(
        f"No method of {run.path} releases models: {', '.join(run.methods)}. Name one with "
        "--method to see what its training would have cost."
    )
