"""Ready plots for notebooks. The one home of plotly's Python interface; the report draws in the
browser instead."""

from typing import TYPE_CHECKING

import plotly.graph_objects as go
from plotly.graph_objects import Figure as Figure

from proxyfl.measures import title_of
from proxyfl.privacy.guarantee import shown
from proxyfl.records.palette import DASHES, looks

if TYPE_CHECKING:
    import pandas

    from proxyfl.records.frames import Runs


def accuracy(runs: "Runs", measure: str) -> go.Figure:
    """Mean over clients and seeds of every model's score, with a band of one standard deviation."""
    figure = go.Figure()
    metrics = runs.metrics
    for method, (colour, _) in looks(metrics["method"]).items():
        rows = metrics[metrics["method"] == method]
        for role, dash in DASHES.items():
            column = f"{role}_{measure}"
            if column in rows and rows[column].notna().any():
                by_round = rows.dropna(subset=[column]).groupby("round")[column]
                _band(
                    figure,
                    by_round.mean(),
                    by_round.std().fillna(0.0),
                    colour,
                )
                _line(figure, by_round.mean(), f"{method}, {role}", colour, dash)
    title = "Mean over clients and seeds; bands: one standard deviation"
    return _titled(figure, title, "round", title_of(measure))


def gain(runs: "Runs", measure: str) -> go.Figure:
    """The gain of each client over ``alone``, in points, one mark per run."""
    figure = go.Figure()
    gains = runs.gains
    column = f"{measure}_gain"
    for method, (colour, _) in looks(gains["method"]).items():
        rows = gains[gains["method"] == method].dropna(subset=[column])
        if method == "alone" or rows.empty:
            continue
        hover = []
        costs = zip(rows["epsilon"], rows["epsilon_kind"], strict=True)
        for epsilon, kind in costs:
            hover.append(f"epsilon {shown(epsilon)} ({kind})")
        marks = {"color": colour, "size": 10}
        figure.add_scatter(
            x=100 * rows[column],
            y=rows["name"],
            mode="markers",
            name=method,
            text=hover,
            marker=marks,
        )
    figure.add_vline(x=0, annotation_text="alone")
    title = "What each client gains over training alone"
    return _titled(figure, title, f"points of {title_of(measure)}", "client")


def epsilon(runs: "Runs", _measure: str) -> go.Figure:
    """The largest epsilon over clients as rounds go by, per method, with its kind in the name."""
    figure = go.Figure()
    metrics = runs.metrics
    best = metrics[["epsilon_rdp", "epsilon_pld"]].min(axis=1)
    colours = looks(metrics["method"])
    by_kind = metrics.assign(best=best).groupby(
        ["method", "epsilon_kind"], sort=False
    )
    for (method, kind), rows in by_kind:
        if kind != "none":
            largest = rows.groupby("round")["best"].max()
            _line(
                figure, largest, f"{method} ({kind})", colours[method][0], "solid"
            )
    return _titled(figure, "Epsilon, largest over clients", "round", "epsilon")


PLOTS = {"accuracy": accuracy, "gain": gain, "epsilon": epsilon}
"""Every plot by its name."""


def _line(
    figure: go.Figure,
    values: "pandas.Series",
    name: str,
    colour: str,
    dash: str,
) -> None:
    rounds = [number + 1 for number in values.index]
    line = {"color": colour, "dash": dash}
    figure.add_scatter(x=rounds, y=values, mode="lines", name=name, line=line)


def _band(
    figure: go.Figure,
    mean: "pandas.Series",
    spread: "pandas.Series",
    colour: str,
) -> None:
    rounds = [number + 1 for number in mean.index]
    edge = {
        "mode": "lines",
        "line": {"width": 0},
        "showlegend": False,
        "hoverinfo": "skip",
    }
    figure.add_scatter(x=rounds, y=mean + spread, **edge)
    figure.add_scatter(
        x=rounds,
        y=mean - spread,
        fill="tonexty",
        fillcolor=_faint(colour),
        **edge,
    )


def _titled(figure: go.Figure, title: str, x: str, y: str) -> go.Figure:
    return figure.update_layout(
        title=title,
        xaxis_title=x,
        yaxis_title=y,
        template="plotly_white",
    )


def _faint(colour: str) -> str:
    red, green, blue = bytes.fromhex(colour.lstrip("#"))
    return f"rgba({red},{green},{blue},0.12)"
