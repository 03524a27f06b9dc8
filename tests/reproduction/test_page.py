"""docs/research/reproduction.md: its tables are made from the recorded results, and none is
missing."""

import re

import pytest

from proxyfl.errors import RunError
from reproduction import catalogue, figures, page
from reproduction.series import Results

RECORDED = Results(catalogue.RESULTS)
TEXT = page.PAGE.read_text(encoding="utf-8") if page.PAGE.is_file() else ""


def test_tables_are_generated_and_not_typed() -> None:
    """The page is what `python -m reproduction page` writes."""
    assert page.filled(TEXT, RECORDED) == TEXT


def test_every_table_and_figure_is_on_the_page() -> None:
    assert set(re.findall(r"<!-- table: (\S+) -->", TEXT)) == set(page.TABLES)
    assert all(f"figures/{name}.png" in TEXT for name in figures.FIGURES)


def test_no_table_outside_the_markers() -> None:
    """Numbers in tables are never typed: no table stands outside generated blocks."""
    outside = re.sub(r"<!-- table: \S+ -->.*?<!-- end -->", "", TEXT, flags=re.DOTALL)
    assert not re.search(r"^\|", outside, re.MULTILINE)


def test_a_table_is_made_anew(quick: Results) -> None:
    """What stood between the markers goes; what stands around them stays."""
    text = "before\n\n<!-- table: overview -->\nold\n<!-- end -->\n\nafter\n"
    new = page.filled(text, quick)
    assert new.startswith("before\n")
    assert new.endswith("\nafter\n")
    assert "old" not in new
    assert "| [mnist](../../experiments/mnist.toml) |" in new
    assert page.filled(new, quick) == new


def test_an_unknown_table_is_refused(quick: Results) -> None:
    with pytest.raises(RunError, match=r"no table 'overvew'. Known: overview"):
        page.filled("<!-- table: overvew -->\n<!-- end -->", quick)


@pytest.mark.parametrize("name", sorted(page.TABLES))
def test_every_table_can_be_made_of_quick_results(name: str, quick: Results) -> None:
    """Rows of equal length, none without a number."""
    rows = [line for line in page.TABLES[name](quick).splitlines() if line.startswith("|")]
    assert len(rows) > 2
    assert len({row.count("|") for row in rows}) == 1
    assert all(re.search(r"\d", row) for row in rows[2:])
