"""What an epsilon says beside its number, and how the number is printed."""

import math
import subprocess
import sys
from decimal import Decimal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from proxyfl.errors import ConfigError
from proxyfl.privacy.guarantee import (
    Epsilon,
    Kind,
    Relation,
    brief,
    kind_of,
    largest,
    shown,
    upward,
)

EPSILONS = st.floats(min_value=1e-12, max_value=1e6)


@pytest.mark.parametrize(
    ("dp", "beta", "kind"),
    [
        (True, 0.0, Kind.END_TO_END),
        (True, 1e-9, Kind.CONDITIONAL),
        (True, 1.0, Kind.CONDITIONAL),
        (False, 0.0, Kind.NONE),
        (False, 0.5, Kind.NONE),
    ],
)
def test_the_kind_follows_from_dp_and_the_teacher(dp: bool, beta: float, kind: Kind) -> None:
    """Without DP there is no guarantee; any weight of a private teacher makes it conditional."""
    assert kind_of(dp=dp, teacher_weight=beta) is kind


def test_a_teacher_weight_out_of_range_is_refused() -> None:
    """A beta outside [0, 1] is an error, not a kind."""
    with pytest.raises(ConfigError, match="beta"):
        kind_of(dp=True, teacher_weight=-0.1)


@pytest.mark.parametrize("word", [*Kind, *Relation])
def test_every_word_is_explained(word: Kind | Relation) -> None:
    """Each kind and each relation has a sentence that begins with its name."""
    assert word.sentence.startswith(f"{word}: ")
    assert word.sentence.endswith(".")


@given(EPSILONS, st.integers(0, 6))
@example(0.1, 3)
@example(6.4401, 2)
def test_a_printed_epsilon_is_never_below_the_number(value: float, decimals: int) -> None:
    """What is printed is at least the number, at most one step above it, and never zero."""
    text = shown(value, decimals)
    number, step = Decimal(repr(value)), Decimal(1).scaleb(-decimals)
    if text.startswith("<"):
        assert number < Decimal(text[1:]) == step
    else:
        assert number <= Decimal(text) < number + step
        assert Decimal(text) > 0


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (1e-9, "<0.001"), (0.001, "0.001"), (3.2631, "3.264"), (math.inf, "inf")],
)
def test_printed_epsilons(value: float, text: str) -> None:
    """Examples: nothing spent, a tiny epsilon, an exact one, one that is rounded up, none."""
    assert shown(value) == text


@given(st.floats(min_value=1e-4, max_value=9999))
def test_a_brief_epsilon_has_five_characters(value: float) -> None:
    """A table's column of five characters holds every epsilon that people choose."""
    assert len(brief(value)) <= 5


@given(EPSILONS, st.integers(1, 8))
def test_significant_digits_are_rounded_up(value: float, digits: int) -> None:
    """A number for a chart is at least the exact one and within one unit of its last digit."""
    assert value <= upward(value, digits) <= value * (1 + 10.0 ** (1 - digits)) * (1 + 1e-12)


def test_zero_and_infinity_have_no_digits() -> None:
    """Nothing spent and no bound stay what they are."""
    assert upward(0.0) == 0.0
    assert upward(math.inf) == math.inf


def test_an_epsilon_prints_with_its_kind_relation_and_unit() -> None:
    """The text of an epsilon names delta, the kind, the neighbours it compares and the unit."""
    made = Epsilon(2.0, 1.2341, 1e-5, Kind.END_TO_END, Relation.ADD_OR_REMOVE)
    promise = "end-to-end, add-or-remove, per record"
    assert str(made) == f"epsilon 1.235 at delta 1e-05 ({promise})"
    assert "infinite" in str(Epsilon(math.inf, math.inf, 1e-5, Kind.NONE))


def test_the_largest_epsilon_promises_least() -> None:
    """Of several clients' epsilons the one with the largest bound is reported."""
    low = Epsilon(2.0, 1.0, 1e-5, Kind.END_TO_END)
    high = Epsilon(1.5, 3.0, 1e-5, Kind.END_TO_END)
    assert largest([low, high]) is high


def test_a_guarantee_needs_no_torch() -> None:
    """Records and tables name guarantees without loading torch."""
    script = "import sys, proxyfl.privacy.guarantee; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
