"""Solving for what the accountants take as given: the noise, or the number of steps, that a target
epsilon allows.

Guarantees: what is returned respects the target by the accountant named; nothing is rounded in the
other direction."""

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache

from proxyfl import _validate
from proxyfl.errors import ConfigError
from proxyfl.privacy.accounting import Segment, epsilon_of, pld_of
from proxyfl.privacy.coalition import Coalition

_SMALLEST_NOISE, _LARGEST_NOISE = 1e-2, 1e6
_MOST_STEPS = 10**8
_MOST_LEFT = 2**20
_DIGITS = 4
# The search itself runs on a grid coarser than that of the result: a PLD on the finest one takes a
# third of a second.
_COARSER = 4.0


def noise_for(
    epsilon: float,
    *,
    sampling_rate: float,
    steps: int,
    delta: float,
    accountant: str = "pld",
    coalition: Coalition | None = None,
) -> float:
    """The smallest noise multiplier, to four significant digits, that keeps ``steps`` steps within
    ``epsilon``.

    Rounded up: the target is respected, and a multiplier smaller by a thousandth would break it.
    """
    _validate.number("epsilon", epsilon, above=0)
    _validate.whole("steps", steps)

    @cache
    def cost(noise: float, coarser: float = _COARSER) -> float:
        segment = Segment(sampling_rate, noise, steps, coalition)
        return epsilon_of([segment], delta, accountant, coarser=coarser)

    # after this cost(low) > epsilon >= cost(high), a factor of two apart
    low = high = 1.0
    while cost(high) > epsilon:
        low, high = high, high * 2
        if high > _LARGEST_NOISE:
            raise ConfigError(
                f"No noise multiplier up to {_LARGEST_NOISE:.0e} keeps {steps} steps within "
                f"epsilon={epsilon} at "
                f"delta={delta} by the {accountant} accountant. Use a larger epsilon or delta, or "
                f"the pld accountant."
            )
    while low == high or cost(low) <= epsilon:
        low, high = low / 2, low
        if low < _SMALLEST_NOISE:
            raise ConfigError(
                f"Expected an epsilon that asks for noise, got epsilon={epsilon}: a noise "
                f"multiplier of {high:.3g} "
                f"keeps {steps} steps within it. Such an epsilon protects nobody; choose one "
                f"below 10."
            )
    from scipy import optimize  # takes half a second to load

    # stands in for a cost of 0, which has no logarithm
    least = min(1e-9, epsilon / 2)
    # On logarithms, where epsilon is nearly a straight line.
    root = optimize.brentq(
        lambda x: math.log(max(cost(math.exp(x)), least) / epsilon),
        math.log(low),
        math.log(high),
        xtol=5e-5,
    )
    return _smallest(math.exp(root), lambda noise: cost(noise, 1.0) <= epsilon)


def steps_for(
    epsilon: float,
    *,
    sampling_rate: float,
    noise_multiplier: float,
    delta: float,
    accountant: str = "pld",
    coalition: Coalition | None = None,
) -> int:
    """The largest number of steps within ``epsilon``; 0 if not even one fits."""
    _validate.number("epsilon", epsilon, above=0)

    def fits(steps: int) -> bool:
        segment = Segment(sampling_rate, noise_multiplier, steps, coalition)
        return epsilon_of([segment], delta, accountant) <= epsilon

    high = 1
    while fits(high):
        high *= 2
        if high > _MOST_STEPS:
            raise ConfigError(
                f"More than {_MOST_STEPS:.0e} steps fit epsilon={epsilon} with "
                f"noise_multiplier={noise_multiplier} and "
                f"sampling_rate={sampling_rate}: in practice there is no limit. Check that the "
                f"values are those meant."
            )
    return most(fits, high // 2, high - 1)


def steps_left(spent: Iterable[Segment], setting: Segment, *, delta: float, budget: float) -> int:
    """The number of steps of this ``setting`` that fit the ``budget`` in addition to all that was
    ``spent``, up to 2^20; 0 if it is spent. By PLD."""
    before = tuple(spent)

    def fits(steps: int) -> bool:
        more = replace(setting, steps=steps)
        return pld_of((*before, more), delta) <= budget

    if not fits(0):
        return 0
    high = 1
    while high < _MOST_LEFT and fits(high):
        high *= 2
    return most(fits, high // 2, high)


def most(fits: Callable[[int], bool], low: int, high: int) -> int:
    """The largest number in [``low``, ``high``] that ``fits``, given that ``low`` does and that
    fitting is monotone."""
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def _smallest(noise: float, fits: Callable[[float], bool]) -> float:
    """The smallest number of four significant digits that ``fits``, looked for around ``noise``."""
    exponent = math.floor(math.log10(noise)) - _DIGITS + 1

    def rounded(count: int) -> float:
        # Through text, so that the float is the one nearest to the decimal number shown.
        return float(f"{count}e{exponent}")

    count = math.ceil(noise / 10.0**exponent)
    while not fits(rounded(count)):
        count += 1
    while fits(rounded(count - 1)):
        count -= 1
    return rounded(count)
