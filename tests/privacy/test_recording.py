"""The recorder: what it writes down is what the model does, and it needs no compiler."""

import subprocess
import sys

import pytest
import torch
from torch import Tensor, nn

from proxyfl.privacy.perexample.recording import Untraceable, record
from proxyfl.privacy.perexample.tracing import trace
from tests.privacy.architectures import ONE_PASS, SOUND, Fn, lin, records


def run_graph(model: nn.Module, recorded: Tensor, x: Tensor) -> Tensor:
    """The graph recorded on ``recorded``, run on ``x``."""
    graph = record(model, recorded).compiled()
    result: Tensor = graph(*model.parameters(), *model.buffers(), x)
    return result


RECORDED = [name for name, entry in SOUND.items() if entry.expected == ONE_PASS]


@pytest.mark.parametrize("name", RECORDED)
def test_the_graph_is_the_model(name: str) -> None:
    """On other examples than it was recorded with, the graph gives what the model gives."""
    entry = SOUND[name]
    torch.manual_seed(0)
    model = entry.make().double().eval()
    x, _ = records(entry, 6)
    with torch.no_grad():
        found = run_graph(model, x[:3].clone(), x[3:].clone())
        torch.testing.assert_close(found, model(x[3:].clone()))


def test_gradients_stop_where_the_model_stops_them() -> None:
    """``torch.no_grad`` inside a model is part of the recording."""

    def forward(m: Fn, x: Tensor) -> Tensor:
        with torch.no_grad():
            hidden = m.a(x)
        return m.b(hidden)

    model = Fn(forward, a=lin(6, 6), b=lin())
    run_graph(model, torch.ones(2, 6), torch.randn(4, 6)).sum().backward()
    assert model.a.weight.grad is None
    assert model.b.weight.grad is not None
    assert torch.is_grad_enabled()


def test_a_constant_in_the_code_is_the_same_in_every_run() -> None:
    """A tensor that the code makes and writes to starts afresh in every run of the graph."""

    def forward(m: Fn, x: Tensor) -> Tensor:
        shift = torch.tensor([1.0, 2.0, 3.0])
        shift.mul_(2.0)
        return m.a(x) + shift

    model = Fn(forward, a=lin())
    x = torch.randn(4, 6)
    graph = record(model, torch.ones(2, 6)).compiled()
    for _ in range(3):
        assert torch.equal(graph(*model.parameters(), x), model(x))


def test_code_may_look_at_its_own_constants() -> None:
    """A number that the code itself wrote down can be read back while recording."""

    def forward(m: Fn, x: Tensor) -> Tensor:
        steps = torch.tensor([2, 3]).sum()
        return m.a(x) * int(steps)

    model = Fn(forward, a=lin())
    x = torch.randn(4, 6)
    assert torch.equal(run_graph(model, torch.ones(2, 6), x), model(x))


def test_code_may_ask_for_types() -> None:
    """A question about types is answered and leaves nothing in the graph."""

    def forward(m: Fn, x: Tensor) -> Tensor:
        dtype = torch.result_type(x, 1.0)
        return m.a(x.to(dtype)) if torch.can_cast(dtype, torch.float64) else x

    model = Fn(forward, a=lin())
    x = torch.randn(4, 6)
    assert torch.equal(run_graph(model, torch.ones(2, 6), x), model(x))


def test_operations_that_only_write_are_kept() -> None:
    """An operation without a result is done again in every run of the graph."""

    def forward(m: Fn, x: Tensor) -> Tensor:
        hidden = [m.a(x), m.b(x)]
        torch._foreach_mul_(hidden, 2.0)
        return hidden[0] + hidden[1]

    model = Fn(forward, a=lin(), b=lin())
    x = torch.randn(4, 6)
    with torch.no_grad():
        assert torch.equal(run_graph(model, torch.ones(2, 6), x), model(x))


def counted(m: Fn, x: Tensor) -> Tensor:
    return m.a(x) * int(x.sum())


def written_then_read(m: Fn, x: Tensor) -> Tensor:
    total = torch.tensor([0.0])
    total.view(1).add_(x.sum())
    return m.a(x) * float(total)


def branched(m: Fn, x: Tensor) -> Tensor:
    return m.a(x) if x.sum() > 0 else m.a(-x)


@pytest.mark.parametrize("forward", [counted, written_then_read, branched])
def test_code_that_looks_at_the_data_cannot_be_recorded(forward: object) -> None:
    """A number read out of the examples stops the recording, however it came there."""
    with pytest.raises(Untraceable, match="looks at numbers that change"):
        record(Fn(forward, a=lin()), torch.ones(2, 6))


def test_a_number_taken_past_the_recorder_is_seen() -> None:
    """What leaves torch and comes back differs between the two recordings, and tracing stops."""

    def forward(m: Fn, x: Tensor) -> Tensor:
        highest = torch.from_numpy(x.detach().numpy().max(axis=0))
        return m.a(x - highest)

    with pytest.raises(Untraceable, match="depends on the examples"):
        trace(Fn(forward, a=lin()), lambda n: torch.arange(6.0 * n).view(n, 6))


def test_the_model_is_left_as_it_was() -> None:
    """Recording writes to no buffer, draws from no generator and leaves no gradients."""

    def forward(m: Fn, x: Tensor) -> Tensor:
        m.seen.add_(1.0)
        return nn.functional.dropout(m.a(x), 0.5)

    model = Fn(forward, a=lin())
    model.register_buffer("seen", torch.zeros(3))
    state = torch.get_rng_state()
    record(model, torch.ones(2, 6))
    assert torch.equal(torch.get_rng_state(), state)
    assert not model.seen.any()
    assert model.a.weight.grad is None


def test_no_compiler_is_imported() -> None:
    """The first clipper of a process does not wait for torch's compiler."""
    code = (
        "import sys, torch\n"
        "from proxyfl.privacy.perexample.validation import checked_clipper\n"
        "checked_clipper(torch.nn.Linear(6, 3), (6,))\n"
        "print([name for name in sys.modules if name in "
        "('torch._dynamo', 'torch._inductor')])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
