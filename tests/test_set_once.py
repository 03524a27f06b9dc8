"""What a promise depends on cannot be changed once it was checked, in any class that has one."""

import dataclasses
import enum
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

import pytest
import torch
from torch import nn

import proxyfl
import proxyfl.privacy
from proxyfl._setonce import SetOnce
from proxyfl.data.examples import InMemory
from proxyfl.data.tables.databases import Query
from proxyfl.data.tables.reading import Dialect
from proxyfl.federation.assembly import Part, Parts, assemble, real
from proxyfl.federation.client import Client
from proxyfl.federation.fitted import Fitted
from proxyfl.federation.learners import Mutual, Single
from proxyfl.federation.masked import MaskedSum, Plan, Player
from proxyfl.federation.methods import METHODS
from proxyfl.federation.trainers import PlainSGD
from proxyfl.node import trial
from proxyfl.node.agreement import Agreement, Record
from proxyfl.node.exchange.auditlog import AuditLog
from proxyfl.node.exchange.store import Books, Store
from proxyfl.node.members.manifest import Graph, Masked
from proxyfl.node.summing import Desk, SiteSum
from proxyfl.privacy.account import Account, Kept, LedgerPage
from proxyfl.privacy.coalition import Coalition
from proxyfl.privacy.dpsgd import DPSGD, Batch
from proxyfl.privacy.guarantee import Kind, Unit
from proxyfl.privacy.ledger import Budget, Ledger
from proxyfl.privacy.masks import Words
from proxyfl.privacy.perexample.clipper import Clipper
from proxyfl.privacy.perexample.ways import ByThemselves, OnePass
from proxyfl.privacy.sampling import sampling_for
from proxyfl.privacy.units import Units
from proxyfl.seeds import Seeded, System
from proxyfl.settings import DP, Input, Learning, Local, Optimizer, Study
from proxyfl.tasks import classification
from proxyfl.transport.memory import MemoryTransport

EXAMPLES = InMemory(torch.randn(20, 4), torch.arange(20) % 2)


def new_ledger(kind: Kind = Kind.END_TO_END) -> Ledger:
    return Ledger("a", delta=1e-3, kind=kind, simulated=False, budget=Budget(5.0))


def new_trainer(model: nn.Module | None = None) -> DPSGD:
    model = model or nn.Linear(4, 2)
    return DPSGD(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        EXAMPLES,
        dp=DP(clip_norm=1.0, noise_multiplier=1.0),
        classes=2,
        batch_size=5,
        ledger=new_ledger(),
        batches=System(),
        noise=System(),
    )


def new_plain() -> PlainSGD:
    model = nn.Linear(4, 2)
    return PlainSGD(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        Units(EXAMPLES),
        classes=2,
        sampling_rate=0.5,
        teacher_weight=0.0,
        ledger=new_ledger(Kind.NONE),
        batches=System(),
    )


def new_batch() -> Batch:
    trainer = new_trainer()
    trainer.begin_round(0, 1)
    return trainer.draw()


def new_mutual() -> Mutual:
    own = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(own.parameters(), lr=0.1)
    return Mutual(own, optimizer, new_trainer(), classes=2, alpha=0.5)


def new_client() -> Client:
    parts = Parts(None, Part(nn.Linear(4, 2), Optimizer("sgd")))
    local = Local("a", learning=Learning(batch_size=5))
    study = Study("s", input=Input((4,), ("0", "1")))
    return assemble(study, local, EXAMPLES, METHODS["avgpush"], real(), parts=parts)


def new_account(folder: Path) -> Account:
    return Account.open(folder / "account", delta=1e-6, budget=5.0, unit=Unit.RECORD)


def new_plan() -> Plan:
    return Plan("f", "m", ("a", "b"), (5, 5), 1, Coalition(colluders=1, quorum=2))


def new_agreement() -> Agreement[Words]:
    record = Record(proxy="0" * 64, roster=("a", "b", "c"))
    return Agreement(
        "a", record.roster, quorum=2, version=1, record=record, start=1, key="00", colluders=1
    )


def new_desk(folder: Path) -> Desk:
    agreed = trial.lay_out(folder, sites=3, rounds=2, seed=0, template=trial.quick_site()).manifest
    agreed = dataclasses.replace(agreed, graph=Graph(masked=Masked(1, 3)))
    me = agreed.names()[0]
    books = Books(Store(None), federation="f", me=me, version=1, rounds=2)
    desk = Desk(books, me, agreed, size=10, log=AuditLog(folder / "audit.jsonl"))
    desk.open(Record(proxy="p", roster=agreed.names()), b"", agreed, 1)
    return desk


def new_site_sum(folder: Path) -> SiteSum:
    """A site's part in masked sums, before it has met anybody."""
    agreed = trial.lay_out(folder, sites=3, rounds=2, seed=0, template=trial.quick_site()).manifest
    agreed = dataclasses.replace(agreed, graph=Graph(masked=Masked(1, 3)))
    books = Books(Store(None), federation="f", me="a", version=1, rounds=2)
    exchange: Any = SimpleNamespace(books=books)
    courier: Any = None
    reach: Any = None
    log = AuditLog(folder / "audit.jsonl")
    return SiteSum(
        new_client(), agreed, exchange, courier, reach, log, patience=1.0, check=lambda: None
    )


def one_by_one() -> ByThemselves:
    class Branching(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x + 1 if float(x.sum()) == 0.5 else x)

    clipper = Clipper(Branching(4, 2))
    found = clipper.prepare((4,))
    assert isinstance(found, ByThemselves)
    return found


def one_pass() -> OnePass:
    found = Clipper(nn.Linear(4, 2)).prepare((4,))
    assert isinstance(found, OnePass)
    return found


PROMISING: dict[str, Callable[[Path], object]] = {
    "DPSGD": lambda _: new_trainer(),
    "Batch": lambda _: new_batch(),
    "Ledger": lambda _: new_ledger(),
    "Budget": lambda _: new_ledger().budget,
    "Account": new_account,
    "Kept": lambda _: Kept(_, ("staff",), "study"),
    "LedgerPage": lambda folder: new_account(folder).page(("staff",), new_ledger(), study="study"),
    "Clipper": lambda _: Clipper(nn.Linear(4, 2)),
    "OnePass": lambda _: one_pass(),
    "Program": lambda _: one_pass().program,
    "ByThemselves": lambda _: one_by_one(),
    "Units": lambda _: Units(EXAMPLES),
    "Sampling": lambda _: sampling_for(5, 20),
    "Seeded": lambda _: Seeded(0, "noise"),
    "System": lambda _: System(),
    "PlainSGD": lambda _: new_plain(),
    "Single": lambda _: Single(new_trainer()),
    "Mutual": lambda _: new_mutual(),
    "Fitted": lambda _: Fitted("logistic", EXAMPLES, classes=2, seed=0, trainer=new_trainer()),
    "Client": lambda _: new_client(),
    "MaskedSum": lambda _: MaskedSum(MemoryTransport(), new_plan(), {}),
    "Player": lambda _: Player(new_client(), 0, 0),
    "Agreement": lambda _: new_agreement(),
    "Desk": new_desk,
    "SiteSum": new_site_sum,
    "Query": lambda _: Query("sqlite:///cohort.sqlite", "SELECT 1"),
    "Dialect": lambda _: Dialect(),
    "Task": lambda _: classification(("0", "1")),
    "DP": lambda _: DP(),
    "InMemory": lambda _: EXAMPLES,
}

STATE = {
    "Client": {"id", "weight", "tail"},
    "Ledger": {"page"},
    "Player": {"losses", "seconds", "step", "steps"},
    "Desk": {"agreement", "batch", "digest", "federation", "names", "present", "total", "version"},
    "SiteSum": {"manifest", "taking_part"},
    "Agreement": {"is_last", "record", "waits_since", "willing"},
}
"""Attributes that no promise depends on; a ledger's page can be given once."""


@pytest.mark.filterwarnings("ignore:.*computed by itself:UserWarning")
@pytest.mark.parametrize("kind", PROMISING)
def test_no_public_attribute_can_be_assigned(kind: str, tmp_path: Path) -> None:
    """Every attribute, property and method of an object with a promise: an assignment of whatever
    value raises AttributeError and leaves it as it was, and so does a deletion."""
    thing = PROMISING[kind](tmp_path)
    assert type(thing).__name__ == kind
    names = [name for name in dir(thing) if not name.startswith("_")]
    tried = 0
    for name in names:
        if name in STATE.get(kind, ()):
            continue
        before = inspect.getattr_static(thing, name)
        with pytest.raises(AttributeError):
            setattr(thing, name, 17)
        with pytest.raises(AttributeError):
            delattr(thing, name)
        assert inspect.getattr_static(thing, name) is before
        tried += 1
    assert tried


def test_private_attributes_of_dpsgd_are_set_once() -> None:
    """The norm that is clipped to, the sources of randomness and the clipper are not replaced by
    accident, and neither is the class."""
    trainer = new_trainer()
    for name in set(vars(trainer)) - DPSGD._changing:
        with pytest.raises(AttributeError):
            setattr(trainer, name, 17)
    with pytest.raises(AttributeError):
        trainer.__class__ = DPSGD
    with pytest.raises(TypeError):
        trainer._clipper.views[torch.zeros(1)] = torch.zeros(1)  # type: ignore[index]


def test_a_ledger_is_kept_in_one_account(tmp_path: Path) -> None:
    """A page is given once: a second one would forget what the first account counts."""
    account = new_account(tmp_path)
    ledger = Ledger(
        "a", delta=1e-3, kind=Kind.END_TO_END, simulated=False, path=tmp_path / "ledger.jsonl"
    )
    Kept(account.folder, ("staff",), "study").keep(ledger)
    page = ledger.page
    assert isinstance(page, LedgerPage)
    with pytest.raises(AttributeError, match="set once"):
        ledger.page = account.page(("patients",), ledger, study="other")
    assert ledger.page is page


def classes() -> Iterator[type[Any]]:
    """All classes of the room ``privacy``."""
    for module in pkgutil.walk_packages(proxyfl.privacy.__path__, "proxyfl.privacy."):
        found = importlib.import_module(module.name)
        for value in vars(found).values():
            if isinstance(value, type) and value.__module__ == module.name:
                yield value


OTHERS = {
    **dict.fromkeys(("Product", "Materialised", "Outer", "Lookup"), "the gradients of one batch"),
    "State": "a picture, made and thrown away within one check",
    "_Recorder": "runs once, while a model is recorded",
    "_Hooks": "notes calls while a model runs",
    "_AsModel": "a loss in the place of a model; nobody has it but the check",
    "_Known": "a function of autograd, which has no objects",
    "WeightsWatched": "a mode of torch, made and left within one check",
}


MADE_WITHIN = {"Contribution", "Keys", "Snapshot", "_Reach"}
"""Classes with set-once attributes whose objects only another class makes and holds."""


def is_open(each: type[Any]) -> bool:
    """Whether objects of a class accept a second assignment of their attributes."""
    frozen = dataclasses.is_dataclass(each) and each.__dataclass_params__.frozen
    by_nature = issubclass(each, enum.Enum | BaseException | tuple | str)
    interface = Protocol in each.__bases__ or inspect.isabstract(each)
    return not (frozen or by_nature or interface or issubclass(each, SetOnce))


def test_every_class_of_the_privacy_code_is_read_only() -> None:
    """Frozen dataclasses, named tuples, enumerations, exceptions, protocols, and for all others
    attributes that are set once: a class added later needs one of them, or a reason."""
    every = list(classes())
    assert len(every) > 30
    assert [each.__name__ for each in every if is_open(each) and each.__name__ not in OTHERS] == []


def test_every_class_with_set_once_attributes_is_tried() -> None:
    """A class that declares a promise by ``SetOnce``, anywhere in the package, is among those whose
    attributes are tried above, or is only inherited from."""
    for module in pkgutil.walk_packages(proxyfl.__path__, "proxyfl."):
        if module.name != "proxyfl.__main__" and "mpi" not in module.name:
            importlib.import_module(module.name)
    unseen = list(SetOnce.__subclasses__())
    names = set()
    while unseen:
        each = unseen.pop()
        unseen += each.__subclasses__()
        if each.__module__.startswith("proxyfl."):
            names.add(each.__name__)
    assert sorted(names - set(PROMISING) - set(OTHERS) - MADE_WITHIN) == []


def test_an_open_class_is_found() -> None:
    """An ordinary class and an unfrozen dataclass are told apart from their read-only likes."""

    class Ordinary:
        pass

    @dataclasses.dataclass
    class Unfrozen:
        value: int = 0

    class Guarded(SetOnce):
        pass

    assert [is_open(each) for each in (Ordinary, Unfrozen, Guarded)] == [True, True, False]
