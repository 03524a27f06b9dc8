"""Both accountants, against the paper's numbers, each other, other libraries, exact formulas and
quadrature."""

import math
import subprocess
import sys
import warnings

import mpmath
import numpy as np
import pytest
from dp_accounting import rdp as library_rdp
from dp_accounting.dp_event import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.pld import privacy_loss_distribution
from hypothesis import given, settings
from hypothesis import strategies as st
from opacus.accountants.analysis import rdp as opacus_rdp
from scipy import integrate, optimize, stats

from proxyfl.errors import ConfigError
from proxyfl.privacy import accounting, pld, rdp
from proxyfl.privacy.accounting import (
    PAPER_ORDERS,
    AccountingWarning,
    Segment,
    epsilon,
    merged,
    pld_of,
    rdp_of,
)
from proxyfl.privacy.guarantee import Epsilon, Kind
from tests.privacy.alike import pld_epsilon, rdp_epsilon

# The paper's histopathology table (sigma = 1.4, B = 32, 30 epochs, delta = 1e-5): examples, RDP,
# PLD. The paper prints 2.36, 2.17, 2.08, 2.12, 1.00; these three decimals were computed with
# dp-accounting 0.6.0.
HISTOPATHOLOGY = [
    (2338, 2.377, 2.174),
    (2726, 2.175, 1.989),
    (2937, 2.078, 1.899),
    (2841, 2.117, 1.935),
    (10842, 1.001, 0.912),
]
SETTINGS = [
    (32 / 2338, 1.4),
    (0.25, 1.0),
    (0.25, 4.0),
    (0.9, 1.0),
    (0.999, 0.5),
    (1e-4, 0.3),
    (0.01, 0.06),
    (1e-3, 20),
]


def exact_gaussian(noise: float, steps: int, delta: float) -> float:
    """Epsilon of Gaussian noise without sampling, exactly (Balle, Wang 2018, Theorem 8)."""
    mu = math.sqrt(steps) / noise

    def excess(e: float) -> float:
        return float(
            stats.norm.cdf(mu / 2 - e / mu)
            - np.exp(e + stats.norm.logcdf(-mu / 2 - e / mu))
            - delta
        )

    return float(optimize.brentq(excess, 0, 500)) if excess(0) > 0 else 0.0


@pytest.mark.parametrize(("examples", "by_rdp", "by_pld"), HISTOPATHOLOGY)
def test_the_papers_privacy_table(examples: int, by_rdp: float, by_pld: float) -> None:
    """The ten numbers of the histopathology table come out to three decimals."""
    steps = 30 * (examples // 32)
    assert (
        round(
            rdp_epsilon(sampling_rate=32 / examples, noise_multiplier=1.4, steps=steps, delta=1e-5),
            3,
        )
        == by_rdp
    )
    assert (
        round(
            pld_epsilon(sampling_rate=32 / examples, noise_multiplier=1.4, steps=steps, delta=1e-5),
            3,
        )
        == by_pld
    )


def test_the_papers_mnist_setting() -> None:
    """MNIST as in the paper costs 86.8 by RDP, as Opacus has it, and 80.8 by PLD."""
    found = epsilon([Segment(0.25, 1.0, 1200)], 1e-3, Kind.CONDITIONAL)
    assert round(found.rdp, 1) == 86.8
    assert round(found.pld, 1) == 80.8


class TestRdp:
    """The Rényi divergence of one step."""

    @pytest.mark.parametrize(("q", "s"), SETTINGS)
    def test_dp_accounting_at_whole_orders(self, q: float, s: float) -> None:
        """At whole orders, where dp-accounting's sum is finite and exact, the integral agrees with
        it."""
        orders = (2.0, 3.0, 5.0, 12.0, 40.0, 63.0)
        found = rdp.per_step(q, s, orders)
        for order, value in zip(orders, found, strict=True):
            accountant = library_rdp.RdpAccountant([order]).compose(
                PoissonSampledDpEvent(q, GaussianDpEvent(s))
            )
            # At one order, epsilon is RDP plus a constant that depends on delta; this delta makes
            # the sum positive.
            constant = math.log1p(-1 / order) - math.log(1e-9 * order) / (order - 1)
            assert value + constant == pytest.approx(accountant.get_epsilon(1e-9), rel=1e-10)

    @pytest.mark.filterwarnings("ignore")
    @pytest.mark.parametrize(("q", "s"), SETTINGS)
    def test_opacus_at_fractional_orders(self, q: float, s: float) -> None:
        """At fractional orders, also those that dp-accounting drops, the integral agrees with
        Opacus's series."""
        orders = [1.1, 1.3, 1.7, 2.5, 4.9, 10.9]
        expected = opacus_rdp.compute_rdp(q=q, noise_multiplier=s, steps=1, orders=orders)
        np.testing.assert_allclose(rdp.per_step(q, s, tuple(orders)), expected, rtol=1e-5)

    @pytest.mark.parametrize(("q", "s"), [(0.25, 1.0), (0.25, 4.0), (0.01, 1.4), (0.9, 0.7)])
    @pytest.mark.parametrize("order", [1.1, 1.5, 3.3, 7.0])
    def test_adaptive_quadrature(self, q: float, s: float, order: float) -> None:
        """The integral agrees with scipy's adaptive quadrature of the definition."""

        def integrand(z: float) -> float:
            ratio = 1 - q + q * math.exp((2 * z - 1) / (2 * s * s))
            return float(stats.norm.pdf(z, scale=s)) * ratio**order

        ends = (-12 * s, order + 12 * s)
        value, _ = integrate.quad(
            integrand, *ends, epsabs=1e-15, epsrel=1e-13, limit=500, points=[0, order]
        )
        assert rdp.per_step(q, s, (order,))[0] == pytest.approx(
            math.log(value) / (order - 1), rel=1e-7
        )

    @pytest.mark.parametrize("q", [1e-9, 1e-4, 0.5])
    @pytest.mark.parametrize("order", [1.1, 2.5, 63.0])
    def test_integrand_against_many_digits(self, q: float, order: float) -> None:
        """The integrand keeps nine digits wherever it is tiny, huge, or the difference of nearly
        equal numbers."""
        x = np.array([-50.0, -1.0, -1e-3, 1e-3, 1.0, 9.0, 20.0, 50.0, 3000.0])
        with mpmath.workdps(80):
            u = [mpmath.mpf(q) * mpmath.expm1(mpmath.mpf(float(v))) for v in x]
            expected = [float(mpmath.log((1 + v) ** order - 1 - order * v)) for v in u]
        np.testing.assert_allclose(rdp._log_excess(q, order, x), expected, rtol=0, atol=1e-9)

    @settings(max_examples=6)
    @given(q=st.floats(1e-4, 1.0), s=st.floats(0.3, 20.0))
    def test_between_nothing_and_no_sampling(self, q: float, s: float) -> None:
        """Sampling never costs privacy, and RDP grows with the order."""
        values = rdp.per_step(q, s)
        assert np.all(values > 0)
        assert np.all(values <= np.array(PAPER_ORDERS) / (2 * s * s))
        assert np.all(np.diff(values) >= -1e-9 * values[:-1])

    def test_orders(self) -> None:
        """The orders are the paper's: 1.1 to 10.9 by tenths, and 12 to 63."""
        assert PAPER_ORDERS[:3] == (1.1, 1.2, 1.3)
        assert PAPER_ORDERS[98:100] == (10.9, 12.0)
        assert (len(PAPER_ORDERS), PAPER_ORDERS[-1]) == (151, 63.0)

    def test_says_nothing(self, capfd: pytest.CaptureFixture[str]) -> None:
        """Where dp-accounting warns about its series, nothing is printed and nothing is warned."""
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            rdp_epsilon(sampling_rate=0.2501, noise_multiplier=1.0, steps=1200, delta=1e-3)
        assert capfd.readouterr() == ("", "")


class TestPld:
    """Composition of privacy loss distributions."""

    @pytest.mark.parametrize(
        ("q", "s", "steps", "delta"),
        [(0.25, 1.0, 40, 1e-3), (0.02, 0.8, 500, 1e-5), (1.0, 10.0, 50, 1e-6), (0.5, 3.0, 1, 1e-5)],
    )
    def test_dp_accounting_composes_to_the_same(
        self, q: float, s: float, steps: int, delta: float
    ) -> None:
        """On the same grid, epsilon is the library's own to a hundred-thousandth."""
        one = privacy_loss_distribution.from_gaussian_mechanism(
            s, value_discretization_interval=1e-3, sampling_prob=q
        )
        expected = one.self_compose(steps).get_epsilon_for_delta(delta)
        assert pld.epsilon(((q, s, steps),), delta, 1e-3) == pytest.approx(expected, rel=1e-5)

    @pytest.mark.parametrize(
        ("s", "steps", "delta"),
        [
            (10.0, 1, 1e-5),
            (10.0, 100, 1e-5),
            (50.0, 10_000, 1e-6),
            (100.0, 100_000, 1e-6),
            (0.5, 3, 1e-5),
        ],
    )
    def test_never_below_the_exact_gaussian(self, s: float, steps: int, delta: float) -> None:
        """Without sampling, epsilon is at least the exact one and at most a thousandth above it."""
        exact = exact_gaussian(s, steps, delta)
        found = pld_epsilon(sampling_rate=1.0, noise_multiplier=s, steps=steps, delta=delta)
        assert exact <= found <= exact * 1.0005

    @pytest.mark.parametrize(("q", "s", "steps"), [(0.25, 1.0, 60), (0.05, 2.0, 300)])
    def test_coarser_grids_are_more_pessimistic(self, q: float, s: float, steps: int) -> None:
        """Each doubling of the interval raises epsilon, and only a little."""
        found = [pld.epsilon(((q, s, steps),), 1e-4, 2e-4 * 2**k) for k in range(4)]
        assert found == sorted(found)
        assert found[-1] < found[0] * 1.01

    def test_small_losses_get_a_finer_grid(self) -> None:
        """Where each step loses next to nothing, epsilon is within a hundredth of what a much finer
        grid gives."""
        found = pld_epsilon(sampling_rate=0.01, noise_multiplier=72.24, steps=10_000, delta=1e-6)
        finer = pld.epsilon(((0.01, 72.24, 10_000),), 1e-6, 1e-4 / 32)
        assert finer <= found <= finer * 1.01
        assert pld.epsilon(((0.01, 72.24, 10_000),), 1e-6, 1e-4) > finer * 1.03

    def test_mixed_settings_against_the_library(self) -> None:
        """Segments of different settings, sampled and not, compose as the library's do."""
        parts = [(0.1, 1.5, 30), (0.3, 4.0, 20), (1.0, 9.0, 2)]
        total = privacy_loss_distribution.identity(1e-3)
        for q, s, n in parts:
            one = privacy_loss_distribution.from_gaussian_mechanism(
                s, value_discretization_interval=1e-3, sampling_prob=q
            )
            total = total.compose(one.self_compose(n))
        assert pld.epsilon(tuple(parts), 1e-5, 1e-3) == pytest.approx(
            total.get_epsilon_for_delta(1e-5), rel=1e-5
        )

    def test_tiny_delta_falls_back_and_says_so(self) -> None:
        """A delta below what double precision can carry gives the RDP value, with a sentence that
        says why."""
        setting = {"sampling_rate": 0.01, "noise_multiplier": 2.0, "steps": 1000, "delta": 1e-13}
        with pytest.warns(AccountingWarning, match="delta=1e-13 is too small .* RDP accountant's"):
            found = pld_epsilon(**setting)
        assert found == rdp_epsilon(**setting)

    def test_failing_distribution_falls_back_and_says_so(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """If the distributions do not fit, the RDP value is given, with a sentence that says
        why."""
        monkeypatch.setattr(pld, "_LARGEST_WINDOW", 1000)
        setting = {"sampling_rate": 0.123, "noise_multiplier": 1.1, "steps": 7, "delta": 1e-5}
        with pytest.warns(AccountingWarning, match="too large to tabulate"):
            found = pld_epsilon(**setting)
        assert found == rdp_epsilon(**setting)

    @pytest.mark.parametrize("noise", [0.02, 0.1, 0.3])
    def test_little_noise(self, noise: float) -> None:
        """Almost no noise still gives a finite epsilon, below RDP's and above that of twice the
        noise."""
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found, twice = (
                epsilon([Segment(0.1, s, 10)], 1e-5, Kind.END_TO_END) for s in (noise, 2 * noise)
            )
        assert twice.pld < found.pld < found.rdp < math.inf


class TestBoth:
    """What holds for either accountant."""

    @pytest.mark.parametrize("accountant", [rdp_of, pld_of])
    def test_no_step_costs_nothing(self, accountant: object) -> None:
        """No segment, or segments of no steps, cost exactly 0."""
        assert accountant([], 1e-5) == 0.0  # type: ignore[operator]
        assert accountant([Segment(0.1, 1.0, 0)], 1e-5) == 0.0  # type: ignore[operator]

    @settings(max_examples=6)
    @given(
        steps=st.lists(st.integers(1, 400), min_size=2, max_size=4, unique=True),
        setting=st.sampled_from([(0.25, 1.0), (0.02, 0.9), (1.0, 20.0)]),
    )
    def test_monotone_in_steps(self, steps: list[int], setting: tuple[float, float]) -> None:
        """More steps never cost less."""
        for accountant in (rdp_of, pld_of):
            costs = [accountant([Segment(*setting, n)], 1e-4) for n in sorted(steps)]
            assert costs == sorted(costs)

    @pytest.mark.parametrize("accountant", [rdp_of, pld_of])
    def test_order_and_splitting_do_not_matter(self, accountant: object) -> None:
        """The same steps in another order, or in smaller portions, cost the same."""
        a, b = Segment(0.1, 1.5, 30), Segment(0.3, 4.0, 20)
        portions = [Segment(0.3, 4.0, 15), Segment(0.1, 1.5, 30), Segment(0.3, 4.0, 5)]
        assert accountant([a, b], 1e-5) == accountant(portions, 1e-5)  # type: ignore[operator]

    def test_merged(self) -> None:
        """Equal settings are added up in order of appearance, and empty segments vanish."""
        segments = [
            Segment(0.1, 1.0, 2),
            Segment(0.2, 1.0, 0),
            Segment(0.3, 1.0, 1),
            Segment(0.1, 1.0, 5),
        ]
        assert merged(segments) == (Segment(0.1, 1.0, 7), Segment(0.3, 1.0, 1))

    def test_pld_is_the_tighter(self) -> None:
        """In ordinary settings PLD is below RDP, and ``best`` is it."""
        found = epsilon([Segment(0.05, 1.2, 200)], 1e-5, Kind.END_TO_END)
        assert found.best == found.pld < found.rdp

    def test_without_sampling_both_bound_the_exact(self) -> None:
        """With rate 1 both accountants are above the exact value."""
        exact = exact_gaussian(5.0, 10, 1e-5)
        found = epsilon([Segment(1.0, 5.0, 10)], 1e-5, Kind.END_TO_END)
        assert exact <= found.pld <= found.rdp


class TestStatement:
    """The value that is printed."""

    @pytest.mark.parametrize("kind", list(Kind))
    def test_kind_is_always_named(self, kind: Kind) -> None:
        """Whatever the kind, the text names it."""
        assert str(kind) in str(epsilon([Segment(0.1, 2.0, 5)], 1e-5, kind))

    def test_text(self) -> None:
        """The text gives the smaller epsilon, delta, the kind, the relation and the unit."""
        assert (
            str(Epsilon(2.377, 2.174, 1e-5, Kind.CONDITIONAL))
            == "epsilon 2.174 at delta 1e-05 (conditional, zero-out, per record)"
        )

    def test_without_dp_epsilon_is_infinite(self) -> None:
        """Kind none is an infinite epsilon, whatever the steps."""
        assert epsilon([], 1e-5, Kind.NONE).best == math.inf

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"delta": 3}, "Expected 0 < delta < 1, got delta=3."),
            ({"delta": 0}, "delta=0"),
            ({"sampling_rate": 0}, "Expected 0 < sampling_rate <= 1, got sampling_rate=0."),
            ({"sampling_rate": 1.01}, "sampling_rate=1.01"),
            ({"noise_multiplier": 0}, "noise_multiplier=0"),
            ({"noise_multiplier": math.nan}, "noise_multiplier=nan"),
            ({"steps": -1}, "steps=-1"),
        ],
    )
    @pytest.mark.parametrize("accountant", [rdp_epsilon, pld_epsilon])
    def test_bad_values_are_named(
        self, accountant: object, change: dict[str, float], message: str
    ) -> None:
        """A value out of range is refused with its range, by both accountants."""
        setting = {
            "sampling_rate": 0.1,
            "noise_multiplier": 1.0,
            "steps": 5,
            "delta": 1e-5,
        } | change
        with pytest.raises(ConfigError) as caught:
            accountant(**setting)  # type: ignore[operator]
        assert message in str(caught.value)

    def test_bad_orders_and_accountants_are_named(self) -> None:
        """Orders of 1 or less, and unknown accountants, are refused."""
        with pytest.raises(ConfigError, match="orders"):
            rdp_of([Segment(0.1, 1.0, 5)], 1e-5, orders=(1.0, 2.0))
        with pytest.raises(ConfigError, match="Known: pld, rdp"):
            accounting.epsilon_of([], 1e-5, "moments")


@given(delta=st.floats(1e-300, 0.999), step=st.floats(1e-12, 1e3), curve=st.floats(0.2, 3))
def test_the_conversion_is_the_librarys_to_the_last_bit(delta, step, curve):
    """Epsilon from any RDP curve, tiny, large or bent, equals dp-accounting's."""
    totals = [step * order**curve for order in rdp.PAPER_ORDERS]
    theirs, _ = library_rdp.compute_epsilon(rdp.PAPER_ORDERS, totals, delta)
    assert rdp._converted(rdp.PAPER_ORDERS, totals, delta) == theirs


def test_rdp_needs_no_library():
    """An epsilon by RDP is there at once: dp-accounting takes a second to import."""
    code = (
        "import sys; from proxyfl.privacy.accounting import Segment, rdp_of; "
        "rdp_of([Segment(0.1, 1.0, 10)], 1e-5); sys.exit('dp_accounting' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_equal_records_share_one_computation(monkeypatch):
    """Clients with equal charges cost the accountants one computation between them."""
    conversions = []
    convert = rdp._converted

    def counted(*values):
        conversions.append(values)
        return convert(*values)

    monkeypatch.setattr(rdp, "_converted", counted)
    parts = [Segment(0.0371, 1.37, 11), Segment(0.0371, 1.37, 8)]
    one = rdp_of(parts, 1e-5)
    assert rdp_of(reversed(parts), 1e-5) == one
    assert rdp_of([Segment(0.0371, 1.37, 19)], 1e-5) == one
    assert len(conversions) == 1
