"""The ledger: nothing is spent that is not on record, and the record survives whatever stops the
program."""

import errno
import json
import math
import os
import warnings
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxyfl.errors import BudgetExhausted, ConfigError, PrivacyError, RunError
from proxyfl.privacy import journal
from proxyfl.privacy.accounting import AccountingWarning, Segment, epsilon
from proxyfl.privacy.guarantee import Computation, Gradients, Kind, Relation
from proxyfl.privacy.ledger import Budget, Charge, Ledger

CHARGES = st.lists(
    st.tuples(
        st.integers(0, 9),
        st.integers(0, 6),
        st.sampled_from([1 / 3, 1.0]),
        st.sampled_from([1.0, 2.0]),
    ),
    max_size=6,
)


def opened(path: Path | None = None, *, simulated: bool = False, **options: object) -> Ledger:
    settings = {"delta": 1e-5, "kind": Kind.END_TO_END} | options
    return Ledger("north", simulated=simulated, path=path, **settings)  # type: ignore[arg-type]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.jsonl"


class TestAuthority:
    """Steps and releases need a charge."""

    def test_steps_are_authorised_by_a_charge(self) -> None:
        """As many steps as were charged can be taken, and not one more."""
        ledger = opened()
        with pytest.raises(PrivacyError, match=r"north .*charge\("):
            ledger.take(0.1, 1.0)
        ledger.charge(1, 2, 0.1, 1.0)
        ledger.take(0.1, 1.0)
        ledger.take(0.1, 1.0)
        with pytest.raises(PrivacyError, match=r"charge\("):
            ledger.take(0.1, 1.0)

    def test_untaken_steps_lapse_and_stay_charged(self) -> None:
        """Steps left from a round cannot be taken in the next, and are not refunded."""
        ledger = opened()
        ledger.charge(1, 5, 0.1, 1.0)
        ledger.charge(2, 1, 0.1, 1.0)
        ledger.take(0.1, 1.0)
        with pytest.raises(PrivacyError):
            ledger.take(0.1, 1.0)
        assert ledger.steps == 6

    @pytest.mark.parametrize(("rate", "noise"), [(0.2, 1.0), (0.05, 1.0), (0.1, 0.5), (0.1, 2.0)])
    def test_a_step_has_the_settings_that_were_charged(self, rate: float, noise: float) -> None:
        """A step at another sampling rate or noise than was charged is refused and uses up
        nothing."""
        ledger = opened()
        ledger.charge(1, 1, 0.1, 1.0)
        with pytest.raises(PrivacyError, match=r"north, round 1: .* is not the one charged"):
            ledger.take(rate, noise)
        assert ledger.take(0.1, 1.0) == Charge(1, 1, 0.1, 1.0)

    def test_release_needs_the_round_on_record(self) -> None:
        """A proxy leaves only for a round that is on record; a round of no steps is enough."""
        ledger = opened()
        with pytest.raises(PrivacyError, match="north must not leave: round 3"):
            ledger.check_release(3)
        ledger.charge(3, 0, 0.1, 1.0)
        ledger.check_release(3)
        with pytest.raises(PrivacyError, match="round 4"):
            ledger.check_release(4)

    def test_without_dp(self) -> None:
        """A client without DP has an infinite epsilon, nothing to charge, and no release to
        check."""
        ledger = opened(kind=Kind.NONE)
        assert ledger.epsilon().best == math.inf
        ledger.check_release(0)
        with pytest.raises(PrivacyError, match="without DP"):
            ledger.charge(0, 1, 0.1, 1.0)

    @pytest.mark.parametrize(
        "charge",
        [
            (-1, 1, 0.1, 1.0),
            (1, -1, 0.1, 1.0),
            (1, 1, 0.0, 1.0),
            (1, 1, 0.1, 0.0),
            (1, 1, 0.1, 10**400),
            (1, 1, 10**400, 1.0),
        ],
    )
    def test_bad_charges_are_refused(
        self, charge: tuple[int, int, float, float], path: Path
    ) -> None:
        """A charge with a value out of range is refused and leaves no trace."""
        ledger = opened(path)
        before = path.read_bytes()
        with pytest.raises(ConfigError):
            ledger.charge(*charge)
        assert (ledger.steps, path.read_bytes()) == (0, before)


class TestCost:
    """What the record says."""

    def test_epsilon_is_that_of_all_charges(self) -> None:
        """Epsilon composes every charge, and carries the ledger's delta and kind."""
        ledger = opened(kind=Kind.CONDITIONAL)
        ledger.charge(1, 4, 0.1, 1.0)
        ledger.charge(2, 4, 0.1, 1.0)
        ledger.charge(3, 2, 0.2, 2.0)
        assert ledger.segments() == (Segment(0.1, 1.0, 8), Segment(0.2, 2.0, 2))
        assert ledger.epsilon() == epsilon(
            [Segment(0.1, 1.0, 8), Segment(0.2, 2.0, 2)], 1e-5, Kind.CONDITIONAL
        )

    def test_real_ledgers_charge_repeats(self) -> None:
        """A repeated round has fresh noise and is charged again."""
        ledger = opened()
        ledger.charge(1, 4, 0.1, 1.0)
        ledger.charge(1, 4, 0.1, 1.0)
        assert ledger.steps == 8

    def test_a_real_ledger_states_all_that_was_spent(self, path: Path) -> None:
        """A real ledger that goes back to an earlier round after a restart states the later rounds'
        cost too, in every round and never less than before."""
        ledger = opened(path)
        for round in range(6):
            ledger.charge(round, 4, 0.1, 1.0)
        spent = ledger.epsilon().best
        again = Ledger.read(path)
        for round in range(2, 6):
            again.charge(round, 4, 0.1, 1.0)
            stated = again.epsilon(through=round)
            assert stated == again.epsilon()
            assert stated.best > spent
            spent = stated.best
        assert again.steps == 40

    def test_a_simulation_states_what_an_uninterrupted_one_would(self) -> None:
        """A simulated ledger states for a repeated round the cost up to that round."""
        ledger = opened(simulated=True)
        ledger.charge(0, 4, 0.1, 1.0)
        first = ledger.epsilon()
        ledger.charge(1, 4, 0.1, 1.0)
        assert ledger.epsilon(through=0) == first

    def test_simulations_replay_for_free(self, path: Path) -> None:
        """A resumed simulation repeats its noise: the same charge is recorded once, and its steps
        can be taken."""
        opened(path, simulated=True).charge(1, 4, 0.1, 1.0)
        before = path.read_bytes()
        ledger = Ledger.read(path)
        ledger.charge(1, 4, 0.1, 1.0)
        for _ in range(4):
            ledger.take(0.1, 1.0)
        assert (ledger.steps, path.read_bytes()) == (4, before)
        ledger.charge(1, 5, 0.1, 1.0)
        assert ledger.steps == 9

    @settings(max_examples=5)
    @given(charges=CHARGES)
    def test_epsilon_never_falls(self, charges: list[tuple[int, int, float, float]]) -> None:
        """No charge makes epsilon smaller, by either accountant."""
        ledger = opened()
        before = ledger.epsilon()
        for charge in charges:
            ledger.charge(*charge)
            after = ledger.epsilon()
            assert after.rdp >= before.rdp
            # Grids get coarser as epsilon grows; rounding between two of them is the only slack.
            assert after.pld >= before.pld * (1 - 1e-9)
            before = after


@pytest.mark.filterwarnings("ignore::proxyfl.privacy.accounting.AccountingWarning")
class TestManySteps:
    """Numbers of steps that nobody takes, but that a file can hold."""

    @pytest.mark.parametrize("steps", [10**16, 10**30, 10**299])
    def test_the_cost_of_many_steps_is_a_number(self, path: Path, steps: int) -> None:
        """Epsilon grows with the steps and is printed, and the file is read back. For full batches
        the Gaussian's own Renyi divergence is the oracle: at least order 1.1's for each step."""
        ledger = opened(path)
        ledger.charge(1, steps, 1.0, 1.0)
        spent = Ledger.read(path).epsilon()
        assert float(Fraction(11, 20) * steps) <= spent.best < math.inf
        assert f"epsilon {spent.best:.1e}"[:10] in str(spent)

    def test_more_than_a_float_holds_is_infinite(self, path: Path) -> None:
        """Nothing is promised then, and that is what is said."""
        ledger = opened(path)
        ledger.charge(1, 10**400, 0.1, 4.0)
        again = Ledger.read(path, budget=Budget(5.0))
        assert again.epsilon().best == math.inf
        assert "epsilon inf" in str(again.epsilon())
        assert again.affordable_steps(0.1, 4.0, 10**30) == 0
        with pytest.raises(BudgetExhausted, match="from inf to inf"):
            again.charge(2, 1, 0.1, 4.0)


class TestBudget:
    """A budget is never exceeded."""

    @pytest.mark.parametrize("accountant", ["pld", "rdp"])
    def test_affordable_steps_fit_and_one_more_does_not(self, accountant: str, path: Path) -> None:
        """What is called affordable can be charged; one step more raises and writes nothing."""
        ledger = opened(path, budget=Budget(2.0, accountant))
        ledger.charge(1, 10, 0.1, 1.5)
        n = ledger.affordable_steps(0.1, 1.5, 1000)
        assert 0 < n < 1000
        before = path.read_bytes()
        with pytest.raises(BudgetExhausted, match=r"north, round 2: .* above the budget of 2\."):
            ledger.charge(2, n + 1, 0.1, 1.5)
        assert (path.read_bytes(), ledger.steps) == (before, 10)
        with pytest.raises(PrivacyError):
            ledger.take(0.1, 1.0)
        ledger.charge(2, n, 0.1, 1.5)
        assert getattr(ledger.epsilon(), accountant) <= 2.0
        assert ledger.affordable_steps(0.1, 1.5, 1000) == 0

    def test_limits(self) -> None:
        """Without a budget, or with a generous one, the limit is affordable; with a spent one
        nothing is."""
        assert opened().affordable_steps(1.0, 0.1, 7) == 7
        assert opened(budget=Budget(50.0)).affordable_steps(0.1, 5.0, 7) == 7
        assert opened(budget=Budget(0.01)).affordable_steps(1.0, 0.5, 7) == 0

    def test_a_spent_budget_counts_after_a_restart(self, path: Path) -> None:
        """A ledger read with a smaller budget than was spent allows no step, but still lets others'
        proxies pass."""
        opened(path).charge(1, 50, 0.1, 1.0)
        ledger = Ledger.read(path, budget=Budget(0.5))
        assert ledger.affordable_steps(0.1, 1.0, 10) == 0
        with pytest.raises(BudgetExhausted):
            ledger.charge(2, 1, 0.1, 1.0)
        ledger.charge(2, 0, 0.1, 1.0)
        ledger.check_release(2)

    @pytest.mark.parametrize(
        ("value", "accountant"), [(0.0, "pld"), (math.inf, "pld"), (1.0, "moments")]
    )
    def test_bad_budgets_are_refused(self, value: float, accountant: str) -> None:
        """A budget that is none is refused."""
        with pytest.raises(ConfigError):
            Budget(value, accountant)


class TestReceipt:
    """A checkpoint knows what was charged, and a ledger that forgot it is refused."""

    def test_a_ledger_that_grew_is_accepted(self, path: Path) -> None:
        """All that was charged by the checkpoint is on record, whatever came later."""
        ledger = opened(path)
        ledger.charge(0, 4, 0.1, 1.0)
        receipt = ledger.receipt()
        ledger.charge(1, 4, 0.1, 1.0)
        Ledger.read(path).demand(receipt)

    def test_lost_charges_are_found(self, path: Path) -> None:
        """A ledger that is new, cut, or holds other charges than the checkpoint knows is refused
        with a remedy."""
        ledger = opened(path)
        ledger.charge(0, 4, 0.1, 1.0)
        shorter = path.read_bytes()
        ledger.charge(1, 4, 0.1, 1.0)
        receipt = ledger.receipt()
        path.write_bytes(shorter)
        other = opened()
        other.charge(0, 4, 0.1, 1.0)
        other.charge(1, 3, 0.1, 1.0)
        for lost in (Ledger.read(path), opened(), other):
            with pytest.raises(PrivacyError, match=r"north had been charged for 2 .* a backup"):
                lost.demand(receipt)

    @pytest.mark.parametrize(
        "other",
        [
            {"delta": 1e-4},
            {"kind": Kind.CONDITIONAL},
            {"simulated": True},
            {"relation": Relation.ADD_OR_REMOVE},
        ],
    )
    def test_a_ledger_of_other_settings_is_not_continued(
        self, path: Path, other: dict[str, object]
    ) -> None:
        """A ledger is continued only for the client, delta, kind and relation it was opened for."""
        settings: dict[str, Any] = {"delta": 1e-5, "kind": Kind.END_TO_END, "simulated": False}
        Ledger.at(path, "north", **settings).charge(0, 4, 0.1, 1.0)
        assert Ledger.at(path, "north", **settings).steps == 4
        with pytest.raises(PrivacyError, match="client='north', expected 'south'"):
            Ledger.at(path, "south", **settings)
        with pytest.raises(PrivacyError, match=f"{next(iter(other))}="):
            Ledger.at(path, "north", **(settings | other))

    def test_the_relation_is_on_record(self, path: Path) -> None:
        """A ledger's header names the relation, and a header from before it did means zero-out."""
        opened(path, relation=Relation.ADD_OR_REMOVE)
        assert Ledger.read(path).epsilon().relation is Relation.ADD_OR_REMOVE
        older = path.with_name("older.jsonl")
        header = {"version": 1, "client": "a", "delta": 0.1, "kind": "none", "simulated": True}
        journal.create(older, header, durable=False)
        assert Ledger.read(older).relation is Relation.ZERO_OUT


class TestFile:
    """The file is the truth."""

    @settings(max_examples=30)
    @given(charges=CHARGES, simulated=st.booleans())
    def test_replay_equals_memory(
        self,
        charges: list[tuple[int, int, float, float]],
        simulated: bool,
        tmp_path_factory: pytest.TempPathFactory,
    ) -> None:
        """A ledger read from its file is the ledger that wrote it, after every charge."""
        path = tmp_path_factory.mktemp("ledger") / "ledger.jsonl"
        ledger = opened(path, simulated=simulated, kind=Kind.CONDITIONAL)
        for charge in charges:
            ledger.charge(*charge)
            again = Ledger.read(path)
            assert again.charges == ledger.charges
        again = Ledger.read(path)
        assert (again.client, again.delta, again.kind, again.simulated) == (
            "north",
            1e-5,
            Kind.CONDITIONAL,
            simulated,
        )

    def test_charge_is_in_the_file_before_the_first_step(self, path: Path) -> None:
        """When ``charge`` returns, another reader finds it; the lines are plain JSON."""
        ledger = opened(path)
        ledger.charge(1, 4, 0.1, 1.0)
        assert Ledger.read(path).charges == (Charge(1, 4, 0.1, 1.0),)
        assert json.loads(path.read_text().splitlines()[1])["steps"] == 4

    def test_real_charges_reach_the_disk(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A real ledger syncs each charge; a simulated one does not wait for the disk."""
        synced: list[int] = []
        monkeypatch.setattr(os, "fsync", synced.append)
        ledger = opened(path)
        before = len(synced)
        ledger.charge(1, 1, 0.1, 1.0)
        assert len(synced) == before + 1
        opened(path.with_name("simulated.jsonl"), simulated=True).charge(1, 1, 0.1, 1.0)
        assert len(synced) == before + 1

    @pytest.mark.filterwarnings("ignore::proxyfl.privacy.accounting.AccountingWarning")
    def test_stop_at_any_byte_of_a_charge(self, path: Path) -> None:
        """Wherever a write stops, the file says at least what was spent, and the ledger goes on
        from there."""
        ledger = opened(path)
        ledger.charge(1, 4, 0.1, 1.0)
        start = path.stat().st_size
        # Longer than the line that will replace its rest.
        ledger.charge(2, 3, 1 / 3, 1.0)
        data = path.read_bytes()
        for cut in range(start, len(data) + 1):
            path.write_bytes(data[:cut])
            again = Ledger.read(path)
            # Before the last byte of the line was written, charge had not returned, so its 3 steps
            # were not taken.
            spent = 7 if cut == len(data) else 4
            assert again.steps >= spent
            assert again.steps == (7 if cut >= len(data) - 1 else 4)
            again.charge(3, 5, 0.1, 1.0)
            final = Ledger.read(path)
            assert final.charges == again.charges
            assert path.read_bytes().endswith(b"}\n")

    def test_unfinished_line_is_reported_and_reading_changes_nothing(self, path: Path) -> None:
        """An unfinished line gives a warning that says what it means, and stays until the next
        charge."""
        opened(path).charge(1, 4, 0.1, 1.0)
        torn = path.read_bytes()[:-5]
        path.write_bytes(torn)
        with pytest.warns(AccountingWarning, match="before any step of it ran"):
            Ledger.read(path)
        assert path.read_bytes() == torn

    def test_any_other_damage_is_refused(self, path: Path) -> None:
        """Every change of a byte, and every lost or repeated line but the last, is found."""
        ledger = opened(path)
        for round in (1, 2, 3):
            ledger.charge(round, 4, 0.1, 1.0)
        data = path.read_bytes()
        lines = data.splitlines(keepends=True)
        damaged = [b"".join(lines[:i] + lines[i + 1 :]) for i in range(3)]
        damaged += [
            b"".join([*lines, lines[-1]]),
            b"".join([lines[0], lines[2], lines[1], lines[3]]),
            data + b"\n",
        ]
        damaged += [
            data.replace(b'"steps": 4', b'"steps": 1', 1),
            data.replace(b"end-to-end", b"conditional"),
        ]
        damaged += [
            data[:i] + b"9" + data[i + 1 :]
            for i in range(0, len(data), 7)
            if data[i : i + 1] not in b"9 "
        ]
        for content in damaged:
            path.write_bytes(content)
            with pytest.raises(PrivacyError):
                Ledger.read(path)

    def test_no_flipped_bit_loses_a_charge(self, path: Path) -> None:
        """Each single bit of the file turned over, line breaks included: the ledger is refused, or
        says what it said before."""
        ledger = opened(path)
        ledger.record_gradients(Gradients(Computation.VMAPPED, "div: depends on how many"))
        ledger.charge(1, 4, 0.1, 1.0)
        ledger.charge(2, 5, 0.1, 1.0)
        whole = path.read_bytes()
        for at in range(len(whole) * 8):
            changed = bytearray(whole)
            changed[at // 8] ^= 1 << at % 8
            path.write_bytes(changed)
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", AccountingWarning)
                    again = Ledger.read(path)
            except PrivacyError:
                continue
            assert again.charges == ledger.charges
            assert again.gradients == ledger.gradients

    def test_a_new_ledger_never_replaces_one(self, path: Path) -> None:
        """Opening a new ledger where one exists is refused and says how to continue it."""
        opened(path).charge(1, 4, 0.1, 1.0)
        before = path.read_bytes()
        with pytest.raises(PrivacyError, match=r"Ledger\.read"):
            opened(path)
        assert path.read_bytes() == before

    def test_two_writers_are_found(self, path: Path) -> None:
        """Of two programs with the same ledger, the second to charge is stopped, and the file stays
        whole."""
        one = opened(path)
        other = Ledger.read(path)
        one.charge(1, 4, 0.1, 1.0)
        with pytest.raises(PrivacyError, match="something else writes"):
            other.charge(1, 4, 0.1, 1.0)
        with pytest.raises(PrivacyError, match="no step left"):
            other.take(0.1, 1.0)
        assert Ledger.read(path).steps == 4

    def test_full_disk(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A charge that cannot be written authorises nothing, leaves no rest, and can be tried
        again."""
        ledger = opened(path)
        before = path.read_bytes()
        write = os.write

        def half(descriptor: int, data: bytes) -> int:
            if len(data) < 60:
                raise OSError(errno.ENOSPC, "No space left on device")
            return write(descriptor, data[: len(data) // 2])

        with monkeypatch.context() as patch:
            patch.setattr(os, "write", half)
            with pytest.raises(RunError, match="No space left"):
                ledger.charge(1, 4, 0.1, 1.0)
        assert path.read_bytes() == before
        with pytest.raises(PrivacyError, match="no step left"):
            ledger.take(0.1, 1.0)
        ledger.charge(1, 4, 0.1, 1.0)
        assert Ledger.read(path).steps == 4

    def test_missing_folder_and_file(self, path: Path) -> None:
        """A folder or file that is not there is an error that names it."""
        with pytest.raises(RunError, match=r"Cannot write the ledger .*nowhere"):
            opened(path.parent / "nowhere" / "ledger.jsonl")
        with pytest.raises(RunError, match=r"Cannot read the ledger .*ledger\.jsonl"):
            Ledger.read(path)

    @pytest.mark.parametrize(
        ("header", "message"),
        [
            (
                {"version": 99, "client": "a", "delta": 0.1, "kind": "none", "simulated": True},
                "version 99",
            ),
            (
                {"version": 1, "client": "a", "delta": 0.1, "kind": "maybe", "simulated": True},
                "maybe",
            ),
            (
                {"version": 1, "client": "a", "delta": 7, "kind": "none", "simulated": True},
                "delta=7",
            ),
            (
                {"version": 1, "client": "a", "delta": 10**400, "kind": "none", "simulated": True},
                "finite number for delta",
            ),
            (
                {"version": 1, "client": 5, "delta": 0.1, "kind": "none", "simulated": True},
                "client is 5",
            ),
            (
                {"version": 1, "client": "a", "delta": 0.1, "kind": "none", "simulated": "false"},
                "simulated is 'false'",
            ),
            ({"version": 1}, "client"),
        ],
    )
    def test_foreign_headers_are_refused(
        self, path: Path, header: dict[str, object], message: str
    ) -> None:
        """A header of another version, or with values that make no sense, is refused."""
        journal.create(path, header, durable=False)
        with pytest.raises(PrivacyError, match=message):
            Ledger.read(path)

    def test_unfinished_header(self, path: Path) -> None:
        """A file is created whole, so one that stops within its first line was damaged; it is not
        taken for an unused one."""
        opened(path)
        path.write_bytes(path.read_bytes()[:-10])
        with pytest.raises(PrivacyError, match="what was spent is not known"):
            Ledger.read(path)


@pytest.mark.parametrize("simulated", [False, True])
def test_what_a_lost_copy_has_spent_is_on_record_whatever_the_budget(
    path: Path, simulated: bool
) -> None:
    """It counts in full, also for a round that is on record already; it authorises no step, and
    leaves nothing of the budget."""
    budget = Budget(epsilon((Segment(0.1, 1.0, 12),), 1e-5, Kind.END_TO_END).pld)
    ledger = opened(path, simulated=simulated, budget=budget)
    ledger.charge(0, 10, 0.1, 1.0)
    ledger.record_spent(0, 10, 0.1, 1.0)
    assert ledger.steps == 20
    assert ledger.epsilon().pld > budget.epsilon
    assert ledger.affordable_steps(0.1, 1.0, 5) == 0
    again = Ledger.read(path, budget=budget)
    assert again.steps == 20
    with pytest.raises(PrivacyError, match="no step left"):
        again.take(0.1, 1.0)
