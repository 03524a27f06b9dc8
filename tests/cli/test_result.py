"""What a result says: accuracies, gains, and a summary at the end that does not flatter."""

import io
from dataclasses import asdict
from pathlib import Path

import pytest
from rich.console import Console

from proxyfl.cli.terminal.result import show_result, verdicts
from proxyfl.errors import ConfigError
from proxyfl.federation.exchange import Traffic
from proxyfl.federation.learners import Losses
from proxyfl.federation.methods import Method
from proxyfl.federation.rounds import ClientRound
from proxyfl.privacy.guarantee import Epsilon, Kind
from proxyfl.records.row import row_of
from proxyfl.records.run import Run
from tests.scores import score_of


def record(client: int, scores: dict, kind: Kind, epsilon: float = 1.5) -> ClientRound:
    cost = epsilon if kind is not Kind.NONE else float("inf")
    return ClientRound(
        round=9,
        client=client,
        name=f"client-{client}",
        present=3,
        expected=3,
        steps=2,
        losses=Losses(),
        scores={role: score_of([[n, 100 - n], [0, 0]]) for role, n in scores.items()},
        epsilon=Epsilon(cost + 1, cost, 1e-3, kind),
        traffic=Traffic(),
        weight=1.0,
        seconds={},
    )


def result(
    alone: list[int],
    joined: list[int],
    *,
    kind: Kind = Kind.END_TO_END,
    epsilon: float = 1.5,
    names: tuple[str, ...] = ("client-0", "client-1", "client-2"),
    path: Path | None = None,
    **more: list[ClientRound],
) -> Run:
    """A run in which clients reach so many percent alone and with proxyfl."""
    final = {
        "alone": [record(i, {"private": n}, Kind.NONE) for i, n in enumerate(alone)],
        "proxyfl": [
            record(i, {"private": n, "proxy": 20, "received": 30}, kind, epsilon)
            for i, n in enumerate(joined)
        ],
    } | more
    rows = []
    for method, records in final.items():
        for one in records:
            rows.append(row_of(method, one) | {"name": names[one.client]})
    clients = [{"name": name, "examples": 5} for name in names]
    summary = {"finished": True, "clients": clients}
    return Run(path, {"rounds": 10, "methods": list(final)}, rows, summary)


def without_alone(found: Run) -> Run:
    """The same run without the method ``alone``."""
    rows = [row for row in found.rows if row["method"] != "alone"]
    return Run(None, {"rounds": 10}, rows, found.summary)


def shown(found: Run, width: int = 80, **options) -> str:
    out = io.StringIO()
    show_result(found, Console(file=out, width=width, **options))
    return out.getvalue()


def test_gains() -> None:
    """A gain is the kept model's accuracy less that of ``alone``; None without it."""
    found = result([50, 60, 70], [60, 55, 70])
    assert [found.gain("proxyfl", i) for i in range(3)] == pytest.approx([0.1, -0.05, 0.0])
    assert found.accuracy("proxyfl", 1) == 0.55
    assert without_alone(found).gain("proxyfl", 0) is None


@pytest.mark.parametrize(
    ("method", "client", "said"),
    [
        ("proxyfl", 99, "client 99. Known: 0, 1, 2"),
        ("fml", 0, "method 'fml'. Known: alone, proxyfl"),
    ],
)
def test_what_is_not_there_is_named(method: str, client: int, said: str) -> None:
    """Asking for a client or a method that the run does not have lists those that it has."""
    with pytest.raises(ConfigError, match=said):
        result([50] * 3, [60] * 3).gain(method, client)


def test_a_pooled_method_is_everybodys() -> None:
    """Under ``joint`` every client has the one model's accuracy."""
    found = result([50] * 3, [50] * 3, joint=[record(0, {"proxy": 80}, Kind.END_TO_END)])
    assert [found.gain("joint", i) for i in range(3)] == pytest.approx([0.3] * 3)


@pytest.mark.parametrize(
    ("alone", "joined", "sentence"),
    [
        (
            [50, 60, 70],
            [60, 65, 80],
            "3 of 3 clients end above training alone, 0 below; on average they gain 8.3",
        ),
        (
            [50, 60, 70],
            [40, 50, 71],
            "1 of 3 clients end above training alone, 2 below; on average they lose 6.3",
        ),
        (
            [50, 60, 70],
            [50, 60, 70],
            "0 of 3 clients end above training alone, 0 below; on average they neither gain",
        ),
        (
            [50, 60, 70],
            [45, 65, 70],
            "1 of 3 clients end above training alone, 1 below; on average they neither gain",
        ),
    ],
)
def test_the_verdict_is_honest(alone, joined, sentence) -> None:
    """Joining that loses is said to lose, one that changes nothing to do neither, with the
    range."""
    (verdict,) = verdicts(result(alone, joined))
    assert sentence in verdict
    gains = [b - a for a, b in zip(alone, joined, strict=True)]
    assert verdict.endswith(f"({min(gains):+.1f} to {max(gains):+.1f}).")


def test_a_loss_is_shown() -> None:
    """The printed summary has each client's loss with its sign, and the sentence."""
    text = shown(result([50, 60, 70], [40, 50, 71]))
    assert "-10.0" in text
    assert "+1.0" in text
    assert "on average they lose 6.3 points" in " ".join(text.split())


@pytest.mark.parametrize("kind", [Kind.END_TO_END, Kind.CONDITIONAL])
def test_an_epsilon_is_never_without_its_kind(kind: Kind) -> None:
    """In 80 columns the table has every epsilon beside its whole kind, and the kind explained
    below."""
    lines = shown(result([50] * 3, [60] * 3, kind=kind)).splitlines()
    rows = [line for line in lines if "1.50" in line]
    assert len(rows) == 3
    assert all(f" {kind} " in row for row in rows)
    assert any(line.startswith(f"{kind}: ") for line in lines)
    assert not any("…" in line for line in lines)


def test_no_dp_is_said() -> None:
    """Without DP nothing looks like a guarantee: the proxy's epsilon is infinite, the private model
    was not shared."""
    lines = shown(result([50] * 3, [60] * 3, kind=Kind.NONE)).splitlines()
    (proxy,) = [line for line in lines if "proxy " in line and "│" in line]
    assert "inf" in proxy
    assert "no DP" in proxy
    (alone,) = [line for line in lines if line.startswith("│ alone")]
    assert "not shared" in alone


@pytest.mark.parametrize(("exchange", "label"), [("mean", "no DP"), ("none", "not shared")])
def test_what_an_exchange_moves_is_shared(exchange: str, label: str) -> None:
    """A custom method's only model that is kept as "private" is shared if an exchange moves it."""
    mine = [record(i, {"private": 60}, Kind.NONE) for i in range(3)]
    found = result([50] * 3, [60] * 3, mine=mine)
    method = asdict(Method("mine", "single", exchange, dp=False, keeps="private"))
    summary = {**(found.summary or {}), "methods": {"mine": {"method": method}}}
    lines = shown(Run(None, found.settings, found.rows, summary)).splitlines()
    (line,) = [line for line in lines if line.startswith("│ mine") and "private" in line]
    assert label in line


@pytest.mark.parametrize(("epsilon", "said"), [(86.8, True), (4.4, False)])
def test_a_weak_guarantee_is_called_weak(epsilon: float, said: bool) -> None:
    """An epsilon above ten is said to rule out very little."""
    assert ("weak guarantee" in shown(result([50] * 3, [60] * 3, epsilon=epsilon))) is said


def test_a_simulation_is_called_one() -> None:
    """The end of every run says that its noise can be recomputed."""
    assert "A simulation" in shown(result([50] * 3, [60] * 3))


def test_without_alone_it_is_asked_for() -> None:
    """Where ``alone`` did not run, the summary says that nothing was compared."""
    found = without_alone(result([50] * 3, [60] * 3))
    assert "Not compared with training alone" in shown(found)


def test_names_are_shown_as_they_are() -> None:
    """A site whose name looks like markup keeps its name, and so does the folder."""
    names = ("[north]", "[/]", "south")
    text = shown(result([50] * 3, [60] * 3, names=names, path=Path("runs/[red]a")))
    assert "[north]" in text
    assert "[/]" in text
    assert "runs/[red]a" in text


def test_no_colour_where_none_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    """With NO_COLOR a terminal gets no colour; without it gains are coloured."""
    found = result([50] * 3, [60] * 3)
    assert "\x1b[32m" in shown(found, force_terminal=True, color_system="standard")
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[32m" not in shown(found, force_terminal=True, color_system="standard")
