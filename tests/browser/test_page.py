"""The report in a real browser: every chart has data, everything can be operated, nothing is
fetched."""

import csv
import io
from pathlib import Path
from typing import Any

import pytest

from proxyfl.records import reading as loading
from proxyfl.records.answers import Question, answer
from proxyfl.records.groups import groups
from proxyfl.records.verdict import points, verdict
from tests.browser.conftest import PHONE
from tests.chromium import new_tab

FIGURES = (
    "gains",
    "scores",
    "calibration",
    "curves",
    "epsilon",
    "graph",
    "seconds",
    "bytes",
    "helped",
    "client-classes",
    "confusion",
)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", ["desktop_several", "phone_several"])
def test_every_chart_has_data_and_nothing_is_asked_for(
    size: str, scheme: str, several: Path, request: pytest.FixtureRequest
) -> None:
    """Wide or narrow, light or dark: no console message, no request but the file, data in every
    chart, no overflow."""
    tab = request.getfixturevalue(size)
    page = tab.page
    page.evaluate("checks.reset()")
    page.emulate_media(color_scheme=scheme)
    for figure in FIGURES:
        traces = tab.chart(figure)
        assert any(trace["n"] > 0 for trace in traces), f"{figure} has no data"
    assert tab.complaints == []
    assert [url for url in tab.requests if not url.startswith(("data:", "blob:"))] == [
        several.as_uri()
    ]
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    dark = page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "dark"
    assert dark is (scheme == "dark")
    page.emulate_media(color_scheme="light")


def test_the_answer_is_that_of_the_records(shown: Any, runs: list[Path]) -> None:
    """The first thing on the page is the gain over alone, equal to what Python computes, with
    epsilon and its kind."""
    page = shown.page
    run = loading.read(runs[0])
    gains = [gain for client in run.clients if (gain := run.gain("proxyfl", client)) is not None]
    card = page.locator("#answer li[data-method=proxyfl]")
    assert float(card.get_attribute("data-gain")) == pytest.approx(
        sum(gains) / len(gains), abs=2e-4
    )
    assert "gains" in card.inner_text() or "loses" in card.inner_text()
    assert "(end-to-end)" in card.inner_text()


def test_every_epsilon_stands_beside_its_kind(compared: Any) -> None:
    """Each card that names an epsilon names a kind, and a conditional one is called that."""
    page = compared.page
    texts = page.locator("#answer .cards li").all_inner_texts()
    assert all(
        "(end-to-end)" in text or "(conditional)" in text for text in texts if "epsilon" in text
    )
    assert any("(conditional)" in text for text in texts)


def test_switching_a_method_off_changes_the_plots(shown: Any) -> None:
    """Without ProxyFL's switch its curve and its card are gone; with it they are back."""
    page = shown.page
    before = {trace["name"] for trace in shown.chart("curves")}
    page.locator("#compare summary").click()
    box = page.get_by_role("checkbox", name="proxyfl")
    box.uncheck()
    after = {trace["name"] for trace in shown.chart("curves")}
    assert before - after == {"proxyfl, private", "proxyfl, private band"}
    assert page.locator("#answer li[data-method=proxyfl]").count() == 0
    box.check()
    assert {trace["name"] for trace in shown.chart("curves")} == before


def test_macro_accuracy_is_one_choice_away(shown: Any) -> None:
    """The measure's choice changes the curve's axis and its numbers."""
    page = shown.page
    shown.chart("curves")
    read = "checks.measured()"
    before = page.evaluate(read)
    page.get_by_label("Measure").select_option("macro_accuracy")
    after = page.evaluate(read)
    assert (before[0], after[0]) == ("accuracy", "macro-accuracy")
    assert before[1] != after[1]


def test_all_models_of_a_method_can_be_shown(shown: Any) -> None:
    """Private, proxy and received models have a curve each, told apart by their dashes."""
    page = shown.page
    shown.chart("curves")
    page.locator("#curves").get_by_label("Model").select_option("all")
    dashes = page.evaluate(
        "() => document.querySelector('#curves .chart').data.filter(t => t.meta === "
        "'proxyfl').map(t => t.line.dash)"
    )
    assert dashes == ["solid", "dash", "dot"]


def test_the_slider_moves_the_graph(shown: Any) -> None:
    """By the arrow key the next round is shown: other arrows, and the client that was away is said
    to be."""
    page = shown.page
    shown.chart("graph")
    arrows = (
        "() => document.querySelector('#graph .chart').layout.annotations"
        ".map(a => [a.x, a.y, a.ax, a.ay].join())"
    )
    first = page.evaluate(arrows)
    page.locator("#graph-round").focus()
    page.keyboard.press("ArrowRight")
    assert page.evaluate(arrows) != first
    said = page.locator("#graph-words").inner_text()
    assert said.startswith("Round 2 of 4: 3 of 4 present, away: client-1")
    assert page.locator("#graph-round").get_attribute("aria-valuetext") == said


def test_the_budget_is_drawn(shown: Any) -> None:
    """A budget in the settings is a line in the chart of epsilon, named with whose it is."""
    assert any(trace["name"] == "budget 3 (4 clients)" for trace in shown.chart("epsilon"))


def test_what_was_spent_stays_spent(shown: Any) -> None:
    """Epsilon never falls, though a client was away in between."""
    page = shown.page
    shown.chart("epsilon")
    page.locator("#epsilon").get_by_label("Client").select_option("1")
    curve = page.evaluate("() => [...document.querySelector('#epsilon .chart').data[0].y]")
    assert len(curve) == 4
    assert curve == sorted(curve)


def test_groups_stand_side_by_side_and_seeds_are_pooled(compared: Any) -> None:
    """Two settings make two panels on one scale, named by what differs; two seeds make one
    curve."""
    page = compared.page
    compared.chart("curves")
    titles = page.locator("#curves .panel h4").all_inner_texts()
    assert len(titles) == 2
    assert any("learning.beta=0.3" in title for title in titles)
    ranges = page.evaluate(
        "() => [...document.querySelectorAll('#curves .chart')].map(c => "
        "c.layout.yaxis.range.join())"
    )
    assert ranges[0] == ranges[1]
    assert "2 runs (seeds 0 and 1)" in page.locator("#answer").inner_text()


def test_numbers_can_be_downloaded(shown: Any, runs: list[Path]) -> None:
    """The CSV of the gains has a line per method and client, with epsilon and kind."""
    page = shown.page
    shown.chart("gains")
    with page.expect_download() as waiting:
        page.get_by_role(
            "button", name="Download What each client gains over training alone as CSV"
        ).click()
    lines = list(csv.DictReader(io.StringIO(Path(waiting.value.path()).read_text())))
    run = loading.read(runs[0])
    found = {(line["method"], line["client"]): float(line["gain over alone"]) for line in lines}
    assert found["proxyfl", "client-2"] == pytest.approx(run.gain("proxyfl", 2), abs=2e-4)
    assert {line["kind"] for line in lines} == {"end-to-end"}
    assert len(lines) == 8


def test_every_chart_has_a_table(shown: Any) -> None:
    """Each figure can be read as a table with a caption, column headings and rows."""
    page = shown.page
    for figure in FIGURES:
        shown.chart(figure)
        page.locator(f"#{figure} summary").click()
        page.wait_for_selector(f"#{figure} caption", state="attached")
        assert page.locator(f"#{figure} tbody tr").count() > 0
        assert page.locator(f"#{figure} thead th[scope=col]").count() > 1


def test_everything_has_a_name_and_a_place(compared: Any) -> None:
    """Controls are labelled, charts described, headings descend by one, ids are unique, landmarks
    are there."""
    page = compared.page
    for figure in FIGURES:
        compared.chart(figure)
    problems = page.evaluate("checks.problems()")
    assert problems == []


def test_the_keyboard_reaches_every_control(shown: Any) -> None:
    """Tab alone goes through the skip link, the switches, every chart's controls and buttons,
    without a trap."""
    page = shown.page
    for figure in FIGURES:
        shown.chart(figure)
    page.evaluate("() => { document.activeElement.blur(); window.scrollTo(0, 0); }")
    wanted = page.evaluate("checks.controls().length")
    page.evaluate(
        "() => { window.reached = new Set(); addEventListener('focusin', () => "
        "reached.add(checks.focused())); }"
    )
    for _ in range(wanted + 30):  # with the links between them
        page.keyboard.press("Tab")
    assert set(page.evaluate("[...reached]")) >= set(range(wanted))


def test_text_can_be_read(compared: Any) -> None:
    """Text stands out from its ground by 4.5 to 1 or more, in both themes."""
    page = compared.page
    for theme in ("light", "dark"):
        page.get_by_label("Theme").select_option(theme)
        lowest = page.evaluate("checks.contrast()")
        assert lowest[0] >= 4.5, lowest


def test_the_theme_can_be_chosen(shown: Any) -> None:
    """The switch turns the page and the charts dark, whatever the system prefers."""
    page = shown.page
    shown.chart("curves")
    colour = "checks.colours()"
    light = page.evaluate(colour)
    page.get_by_label("Theme").select_option("dark")
    dark = page.evaluate(colour)
    assert light[0] != dark[0]
    assert light[1] != dark[1]


def test_printing_draws_what_was_not_looked_at(tab: Any, one: Path) -> None:
    """On paper there is every chart, whatever was scrolled to, in light colours and no wider than
    its place."""
    page = tab.open(one.as_uri())
    page.get_by_label("Theme").select_option("dark")
    dark = page.evaluate("checks.ground()")
    page.evaluate("() => window.dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate("checks.drawn()") == len(FIGURES)
    assert page.evaluate("checks.ground()") != dark
    assert page.evaluate("checks.outgrown()") == []
    page.evaluate("() => window.dispatchEvent(new Event('afterprint'))")
    assert page.evaluate("checks.ground()") == dark
    pdf = page.pdf()
    assert pdf.count(b"/Type /Page\n") > 3
    assert tab.complaints == []


def test_the_answer_comes_before_the_charts(shown: Any) -> None:
    """The headline was on the page when no chart had been drawn yet."""
    assert shown.page.evaluate("answered") == 0
    assert shown.page.evaluate("document.querySelectorAll('.chart svg').length") > 0


def test_the_page_is_small(several: Path) -> None:
    """Three runs fit into a page of less than 2 MB, with all that it needs."""
    assert several.stat().st_size < 2_000_000


def test_the_headline_is_the_verdict(shown: Any, runs: list[Path]) -> None:
    """The first screen opens with the verdict of the records, word for word, at 40 px."""
    (group,) = groups([loading.read(runs[0])])
    found = answer(group, "proxyfl", Question(group.runs[0].measure))
    assert found is not None
    headline = shown.page.locator("#headline")
    assert headline.inner_text() == verdict(found).headline
    assert headline.evaluate("one => getComputedStyle(one).fontSize") == "40px"
    assert headline.bounding_box()["y"] < 300


def test_every_client_has_its_arrow(shown: Any, runs: list[Path]) -> None:
    """The dots and arrows are the records' scores, largest gain first, and the mean last."""
    run = loading.read(runs[0])
    gains = sorted((run.gain("proxyfl", client) or 0.0 for client in run.clients), reverse=True)
    said = shown.page.locator("#hero .again b").all_inner_texts()
    assert said == [points(gain) for gain in [*gains, sum(gains) / len(gains)]]


def test_on_a_phone_the_answer_is_in_the_upper_third(browser: Any, several: Path) -> None:
    """At 390 by 844 the headline begins above 281 px, below a bar of one line."""
    with new_tab(browser, *PHONE) as opened:
        page = opened.open(several.as_uri())
        assert page.locator("#headline").bounding_box()["y"] < 844 / 3
        assert page.locator(".bar").bounding_box()["height"] < 60


def test_settings_that_differ_come_first(compared: Any, shown: Any) -> None:
    """Of several runs, what differs has a column each; what does not is said once. One run has one
    table."""
    several = compared.page.locator("#settings")
    captions = several.locator("caption").all_text_contents()
    assert captions[:3] == ["Methods", "Settings: what differs", "Settings: the same in all runs"]
    assert several.locator(".differs").first.locator("thead th").all_text_contents() == [
        "setting",
        "seed-0",
        "seed-1",
        "other",
    ]
    assert {"seed", "learning.beta"} <= set(
        several.locator(".differs tbody th").all_text_contents()
    )
    assert shown.page.locator("#settings caption").all_text_contents() == [
        "Methods",
        "Settings",
        "Environment",
    ]


def test_an_interrupted_run_is_shown_and_said_to_be(
    tab: Any, runs: list[Path], tmp_path: Path
) -> None:
    """Without a summary, and cut off in its last method, the page shows what there is and says what
    is missing."""
    from .conftest import written

    cut = tmp_path / "cut"
    cut.mkdir()
    for name in ("config.toml", "environment.json"):
        (cut / name).write_bytes((runs[0] / name).read_bytes())
    lines = (runs[0] / "metrics.jsonl").read_text().splitlines(keepends=True)
    (cut / "metrics.jsonl").write_text("".join(lines[:-6]))
    page = tab.open(written([cut], tmp_path / "cut.html").as_uri())
    assert "did not finish" in page.locator("#answer .notice").inner_text()
    assert any(trace["n"] for trace in tab.chart("curves"))
    page.locator("#confusion").scroll_into_view_if_needed()
    page.wait_for_selector("#confusion .empty")
    assert tab.complaints == []
