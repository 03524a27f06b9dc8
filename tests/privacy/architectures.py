"""A zoo of proxies: sound ones of every kind, and unsound ones that each let records into one
another in a different way. ``measured_change`` says how far one record moves the clipped sum."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from opacus.layers import DPMultiheadAttention
from torch import Tensor, nn
from torch.nn.utils import parametrizations

VECTOR, SEQUENCE, IMAGE, IDS = (6,), (5, 6), (1, 8, 8), (5,)

ONE_PASS, VMAPPED, ONE_BY_ONE, REFUSED = ("one pass", "vmapped", "one by one", "refused")


class Fn(nn.Module):
    """Named layers and a function of (layers, x): most of the zoo in few lines."""

    def __init__(self, forward: Callable[["Fn", Tensor], Tensor], **parts: object) -> None:
        super().__init__()
        self.function = forward
        for name, part in parts.items():
            if isinstance(part, nn.Module | nn.Parameter):
                setattr(self, name, part)
            elif isinstance(part, Tensor):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


def lin(a: int = 6, b: int = 3) -> nn.Linear:
    return nn.Linear(a, b)


def patches(x: Tensor, side: int = 4) -> Tensor:
    """Squares of an image, all in one batch: (n * number, 1, side, side)."""
    cut = x.unfold(2, side, side).unfold(3, side, side)
    return cut.permute(0, 2, 3, 1, 4, 5).reshape(-1, 1, side, side)


class StraightThrough(torch.autograd.Function):
    """The sign of x with the gradient of the identity, row by row: sound."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return x.sign()

    @staticmethod
    def backward(ctx, g: Tensor) -> Tensor:
        return g


class BatchScaledGradient(torch.autograd.Function):
    """The identity, whose gradient is divided by its length over the whole batch: unsound."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx, g: Tensor) -> Tensor:
        return g / (g.norm() + 1e-9)


class PositionalEncoding(nn.Module):
    """As in PyTorch's tutorial: cut to dimension 0, which it takes for time."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("pe", torch.sin(torch.arange(50.0 * width).view(50, 1, width)))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.pe[: x.size(0)]


class LoRA(nn.Module):
    """A frozen linear layer and a low-rank addition to it."""

    def __init__(self, a: int, b: int, rank: int = 2) -> None:
        super().__init__()
        self.base = nn.Linear(a, b).requires_grad_(False)
        self.down, self.up = (nn.Linear(a, rank, bias=False), nn.Linear(rank, b, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


class MergedLoRA(nn.Module):
    """The same, the product formed first."""

    def __init__(self, a: int, b: int, rank: int = 2) -> None:
        super().__init__()
        self.base = nn.Linear(a, b).requires_grad_(False)
        self.down, self.up = (
            nn.Parameter(torch.randn(rank, a) / 3),
            nn.Parameter(torch.randn(b, rank) / 3),
        )

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.base.weight + self.up @ self.down, self.base.bias)


class Bert(nn.Module):
    """The structure of BERT: token, position and type tables, position ids in a buffer of one row,
    an attention mask made in forward, post-norm blocks, a pooler."""

    def __init__(self, width: int = 8, layers: int = 2, shared: bool = False) -> None:
        super().__init__()
        self.tokens = nn.Embedding(11, width, padding_idx=0)
        self.positions, self.types = nn.Embedding(9, width), nn.Embedding(2, width)
        self.register_buffer("position_ids", torch.arange(9).expand((1, -1)))
        self.norm = nn.LayerNorm(width)
        blocks = [Block(width) for _ in range(1 if shared else layers)]
        self.blocks = nn.ModuleList(blocks)
        self.order = [0] * layers if shared else list(range(layers))
        self.pooler, self.out = nn.Linear(width, width), nn.Linear(width, 3)

    def forward(self, ids: Tensor) -> Tensor:
        length = ids.size(1)
        types = torch.zeros(ids.shape, dtype=torch.long, device=ids.device)
        h = self.tokens(ids) + self.types(types)
        h = self.norm(h + self.positions(self.position_ids[:, :length]))
        mask = torch.ones_like(ids)[:, None, None, :].to(h.dtype)
        mask = (1.0 - mask) * -1e4
        for number in self.order:
            h = self.blocks[number](h, mask=mask)
        return self.out(torch.tanh(self.pooler(h[:, 0])))


class Block(nn.Module):
    """A transformer block written out, as in the libraries of language models."""

    def __init__(self, width: int, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.o, self.a, self.b = (
            nn.Linear(width, width),
            nn.Linear(width, 12),
            nn.Linear(12, width),
        )
        self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def split(self, t: Tensor) -> Tensor:
        return t.view(t.size(0), t.size(1), self.heads, -1).permute(0, 2, 1, 3)

    def forward(self, h: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (self.split(self.q(h)), self.split(self.k(h)), self.split(self.v(h)))
        scores = q @ k.transpose(-1, -2) / q.size(-1) ** 0.5 + mask
        mixed = (scores.softmax(-1) @ v).permute(0, 2, 1, 3).contiguous()
        h = self.n1(h + self.o(mixed.view(h.shape)))
        return self.n2(h + self.b(F.gelu(self.a(h))))


class Gpt(nn.Module):
    """The structure of GPT-2: position ids from arange, weights on the right (addmm), a causal mask
    in a buffer, the output tied to the token table."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.tokens, self.positions = (nn.Embedding(11, width), nn.Embedding(9, width))
        self.w, self.b = (
            nn.Parameter(torch.randn(width, 3 * width) / 3),
            nn.Parameter(torch.zeros(24)),
        )
        self.register_buffer(
            "bias", torch.tril(torch.ones(9, 9, dtype=torch.bool)).view(1, 1, 9, 9)
        )
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, 3)

    def forward(self, ids: Tensor) -> Tensor:
        t = ids.size(1)
        h = self.tokens(ids) + self.positions(torch.arange(t, device=ids.device).unsqueeze(0))
        size = (*h.shape[:-1], 24)
        qkv = torch.addmm(self.b, self.norm(h).view(-1, 8), self.w).view(size)
        q, k, v = (p.view(*p.shape[:-1], 2, 4).transpose(1, 2) for p in qkv.split(8, dim=2))
        scores = torch.where(self.bias[:, :, :t, :t], q @ k.transpose(-1, -2), torch.tensor(-1e4))
        h = h + (scores.softmax(-1) @ v).transpose(1, 2).reshape(h.shape)
        return self.out(h[:, -1])


class Swin(nn.Module):
    """Attention within windows: a map is cut into windows that are folded into the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.qkv, self.out = (nn.Conv2d(1, 6, 2, 2), nn.Linear(6, 18), nn.Linear(6, 3))
        self.bias = nn.Parameter(torch.randn(1, 4, 4) / 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x).permute(0, 2, 3, 1)
        b, height, width, c = h.shape
        h = torch.roll(h, shifts=(-1, -1), dims=(1, 2))
        w = h.view(b, height // 2, 2, width // 2, 2, c).permute(0, 1, 3, 2, 4, 5)
        w = w.contiguous().view(-1, 4, c)
        q, k, v = self.qkv(w).reshape(-1, 4, 3, c).unbind(2)
        w = (q @ k.transpose(1, 2) + self.bias).softmax(-1) @ v
        w = w.view(b, height // 2, width // 2, 2, 2, c).permute(0, 1, 3, 2, 4, 5)
        return self.out(w.reshape(b, height * width, c).mean(1))


class Vit(nn.Module):
    """Patches by a strided convolution, a class token, learned positions, an encoder layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Conv2d(1, 8, 4, 4)
        self.cls, self.pos = (
            nn.Parameter(torch.randn(1, 1, 8)),
            nn.Parameter(torch.randn(1, 5, 8)),
        )
        self.layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True)
        self.out = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x).flatten(2).transpose(1, 2)
        h = torch.cat([self.cls.expand(x.shape[0], -1, -1), h], 1) + self.pos
        return self.out(self.layer(h)[:, 0])


class KeywordLayer(nn.Module):
    """A layer that is called by keyword, as the models of the great libraries are."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 6)

    def forward(self, *, hidden: Tensor, scale: float = 1.0) -> Tensor:
        return self.fc(hidden) * scale


class NoisyLayer(nn.Module):
    """A layer with a parameter of its own and dropout inside."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(6))

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x * self.scale, 0.3, self.training)


class Attend(nn.Module):
    """Self-attention of the given kind over what it takes for time."""

    def __init__(self, layer: nn.Module, time_major: bool) -> None:
        super().__init__()
        self.layer, self.out, self.time_major = layer, nn.Linear(6, 3), time_major

    def forward(self, x: Tensor) -> Tensor:
        h = x.transpose(0, 1) if self.time_major else x
        h = self.layer(h, h, h)[0]
        return self.out(h).mean(0 if self.time_major else 1)


class Recurrent(nn.Module):
    """A recurrent layer of the given kind, its last state classified."""

    def __init__(self, layer: nn.Module, width: int, time_major: bool = False) -> None:
        super().__init__()
        self.layer, self.out, self.time_major = (layer, nn.Linear(width, 3), time_major)

    def forward(self, x: Tensor) -> Tensor:
        h = self.layer(x.transpose(0, 1) if self.time_major else x)[0]
        return self.out(h[-1] if self.time_major else h[:, -1])


class Branching(nn.Module):
    """Looks at the data to choose its way; each example by itself is fine."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.out = lin(6, 6), lin(6, 6), lin()

    def forward(self, x: Tensor) -> Tensor:
        rows = [self.a(r) if float(r.sum()) > 0 else self.b(r) for r in x]
        return self.out(torch.stack(rows))


class Counting(nn.Module):
    """Counts its calls in an attribute and scales by the count."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.calls = lin(), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.fc(x) * (1 + 0.1 * self.calls)


class Remembering(nn.Module):
    """Adds the mean of the batch before."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.last = lin(), None

    def forward(self, x: Tensor) -> Tensor:
        shift = 0 if self.last is None else self.last
        self.last = x.detach().mean(0)
        return self.fc(x + shift)


class Queue(nn.Module):
    """A memory bank of earlier examples in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.bank = lin(), []

    def forward(self, x: Tensor) -> Tensor:
        self.bank.append(x.detach()[0])
        return self.fc(x + torch.stack(self.bank).mean(0))


class Running(nn.Module):
    """An exponential mean of the batches, in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = lin()
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            with torch.no_grad():
                self.mean.mul_(0.9).add_(0.1 * x.mean(0))
        return self.fc(x - self.mean)


EARLIER: list[Tensor] = []


class Global(nn.Module):
    """Keeps the last batch in a variable of its module's file."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = lin()
        EARLIER.clear()

    def forward(self, x: Tensor) -> Tensor:
        shift = EARLIER[-1] if EARLIER else 0
        EARLIER.append(x.detach().mean(0))
        return self.fc(x + shift)


class Hooked(nn.Module):
    """A gradient hook that divides by the gradient's length over the whole batch."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.out = lin(6, 6), lin()

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x)
        if h.requires_grad:
            h.register_hook(lambda g: g / (g.norm() + 1e-9))
        return self.out(h)


def module_hooked() -> nn.Module:
    model = nn.Sequential(lin(6, 6), nn.Tanh(), lin())
    model[1].register_full_backward_hook(lambda m, i, o: (i[0] / (i[0].norm() + 1e-9),))
    return model


def tied() -> nn.Module:
    model = Fn(
        lambda m, x: m.out(m.tokens(x).mean(1))[:, :3], tokens=nn.Embedding(7, 4), out=lin(4, 7)
    )
    model.out.weight = model.tokens.weight
    return model


def frozen() -> nn.Module:
    model = nn.Sequential(lin(6, 5), nn.ReLU(), lin(5, 3))
    model[0].weight.requires_grad_(False)
    return model


ADJACENCY = torch.tensor([[0.5, 0.5, 0, 0, 0], [0.3, 0.4, 0.3, 0, 0], [0, 0.3, 0.4, 0.3, 0],
                          [0, 0, 0.3, 0.4, 0.3], [0, 0, 0, 0.5, 0.5]])  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """One architecture: how to make it, what it is fed, and what must become of it."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    expected: str
    ids: int = 0
    draws: bool = False


def old_weight_norm() -> nn.Module:
    return nn.Sequential(torch.nn.utils.weight_norm(lin(6, 5)), nn.ReLU(), lin(5, 3))


SOUND: dict[str, Entry] = {
    "linear": Entry(lambda: lin(), VECTOR, ONE_PASS),
    "MLP": Entry(lambda: nn.Sequential(lin(6, 5), nn.ReLU(), lin(5, 3)), VECTOR, ONE_PASS),
    "CNN": Entry(
        lambda: nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(), lin(36, 3)
        ),
        IMAGE,
        ONE_PASS,
    ),
    "CNN, GroupNorm": Entry(
        lambda: nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), lin(144, 3)
        ),
        IMAGE,
        ONE_PASS,
    ),
    "GroupNorm after Linear": Entry(
        lambda: nn.Sequential(lin(6, 8), nn.GroupNorm(2, 8), nn.ReLU(), lin(8, 3)), VECTOR, ONE_PASS
    ),
    "LayerNorm": Entry(lambda: nn.Sequential(nn.LayerNorm(6), lin()), VECTOR, ONE_PASS),
    "RMSNorm": Entry(lambda: nn.Sequential(nn.RMSNorm(6), lin()), VECTOR, ONE_PASS),
    "InstanceNorm": Entry(
        lambda: nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.InstanceNorm2d(4, affine=True), nn.Flatten(), lin(144, 3)
        ),
        IMAGE,
        ONE_PASS,
    ),
    "1D convolution": Entry(
        lambda: Fn(lambda m, x: m.out(m.c(x).mean(2)), c=nn.Conv1d(5, 4, 3), out=lin(4, 3)),
        SEQUENCE,
        ONE_PASS,
    ),
    "grouped, dilated convolution": Entry(
        lambda: nn.Sequential(
            nn.Conv2d(1, 4, 3, dilation=2), nn.Conv2d(4, 4, 2, groups=4), nn.Flatten(), lin(36, 3)
        ),
        IMAGE,
        ONE_PASS,
    ),
    "transposed convolution": Entry(
        lambda: nn.Sequential(nn.ConvTranspose2d(1, 2, 2), nn.Flatten(), lin(162, 3)),
        IMAGE,
        ONE_PASS,
    ),
    "squeeze and excite": Entry(
        lambda: Fn(
            lambda m, x: m.out(
                (m.c(x) * m.s(m.c(x).mean((2, 3))).sigmoid()[:, :, None, None]).flatten(1)
            ),
            c=nn.Conv2d(1, 4, 3),
            s=lin(4, 4),
            out=lin(144, 3),
        ),
        IMAGE,
        ONE_PASS,
    ),
    "weight-standardised convolution": Entry(
        lambda: Fn(
            lambda m, x: m.out(F.conv2d(x, (m.w - m.w.mean()) / m.w.std()).flatten(1)),
            w=nn.Parameter(torch.randn(4, 1, 3, 3)),
            out=lin(144, 3),
        ),
        IMAGE,
        ONE_PASS,
    ),
    "patch network, pooled logits": Entry(
        lambda: Fn(
            lambda m, x: m.out(patches(x).flatten(1)).view(x.size(0), -1, 3).mean(1), out=lin(16, 3)
        ),
        IMAGE,
        ONE_PASS,
    ),
    "patch network, convolution": Entry(
        lambda: Fn(
            lambda m, x: m.out(m.c(patches(x)).relu().flatten(1)).view(len(x), -1, 3).mean(1),
            c=nn.Conv2d(1, 4, 2),
            out=lin(36, 3),
        ),
        IMAGE,
        ONE_PASS,
    ),
    "patch network, attention pooling": Entry(
        lambda: Fn(
            lambda m, x: m.out(
                (
                    m.a(m.f(patches(x).flatten(1))).view(x.size(0), 4, 1).softmax(1)
                    * m.f(patches(x).flatten(1)).view(x.size(0), 4, 5)
                ).sum(1)
            ),
            f=lin(16, 5),
            a=lin(5, 1),
            out=lin(5, 3),
        ),
        IMAGE,
        ONE_PASS,
    ),
    "time-major, pooled": Entry(
        lambda: Fn(
            lambda m, x: m.out(m.a(x.transpose(0, 1)).tanh()).mean(0), a=lin(6, 4), out=lin(4, 3)
        ),
        SEQUENCE,
        ONE_PASS,
    ),
    "time-major, flattened": Entry(
        lambda: Fn(
            lambda m, x: m.out(m.a(x.transpose(0, 1).reshape(-1, 6)).tanh()).view(5, -1, 3).mean(0),
            a=lin(6, 4),
            out=lin(4, 3),
        ),
        SEQUENCE,
        ONE_PASS,
    ),
    "LSTM": Entry(lambda: Recurrent(nn.LSTM(6, 4, batch_first=True), 4), SEQUENCE, ONE_PASS),
    "LSTM, time-major": Entry(
        lambda: Recurrent(nn.LSTM(6, 4), 4, time_major=True), SEQUENCE, ONE_PASS
    ),
    "GRU, two layers": Entry(
        lambda: Recurrent(nn.GRU(6, 4, num_layers=2, batch_first=True), 4), SEQUENCE, ONE_PASS
    ),
    "RNN, bidirectional": Entry(
        lambda: Recurrent(nn.RNN(6, 4, bidirectional=True, batch_first=True), 8), SEQUENCE, ONE_PASS
    ),
    "MultiheadAttention": Entry(
        lambda: Attend(nn.MultiheadAttention(6, 2, batch_first=True), False), SEQUENCE, ONE_PASS
    ),
    "MultiheadAttention, time-major": Entry(
        lambda: Attend(nn.MultiheadAttention(6, 2), True), SEQUENCE, ONE_PASS
    ),
    "Opacus DPMultiheadAttention, pooled": Entry(
        lambda: Attend(DPMultiheadAttention(6, 2), True), SEQUENCE, ONE_PASS
    ),
    "transformer encoder": Entry(
        lambda: Fn(
            lambda m, x: m.out(m.e(x).mean(1)),
            e=nn.TransformerEncoder(
                nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True), 2
            ),
            out=lin(),
        ),
        SEQUENCE,
        ONE_PASS,
    ),
    "ViT": Entry(Vit, IMAGE, ONE_PASS),
    "BERT": Entry(Bert, IDS, ONE_PASS, ids=11),
    "ALBERT (shared block)": Entry(lambda: Bert(shared=True), IDS, ONE_PASS, ids=11),
    "GPT-2": Entry(Gpt, IDS, ONE_PASS, ids=11),
    "Swin": Entry(Swin, IMAGE, ONE_PASS),
    "graph layer, fixed graph": Entry(
        lambda: Fn(
            lambda m, x: m.b((m.adj @ m.a(x)).relu()).mean(1),
            a=lin(6, 4),
            b=lin(4, 3),
            adj=ADJACENCY,
        ),
        SEQUENCE,
        ONE_PASS,
    ),
    "graph attention, learned graph": Entry(
        lambda: Fn(
            lambda m, x: m.b(
                torch.einsum("nij,njd->nid", (m.a(x) @ m.a(x).mT).softmax(-1), x)
            ).mean(1),
            a=lin(6, 4),
            b=lin(),
        ),
        SEQUENCE,
        ONE_PASS,
    ),
    "LoRA": Entry(lambda: nn.Sequential(LoRA(6, 5), nn.Tanh(), lin(5, 3)), VECTOR, ONE_PASS),
    "LoRA, merged": Entry(
        lambda: nn.Sequential(MergedLoRA(6, 5), nn.Tanh(), lin(5, 3)), VECTOR, ONE_PASS
    ),
    "spectral norm": Entry(
        lambda: nn.Sequential(parametrizations.spectral_norm(lin(6, 5)), nn.ReLU(), lin(5, 3)),
        VECTOR,
        ONE_PASS,
    ),
    "weight norm": Entry(
        lambda: nn.Sequential(parametrizations.weight_norm(lin(6, 5)), nn.ReLU(), lin(5, 3)),
        VECTOR,
        ONE_PASS,
    ),
    "weight norm, old form": Entry(old_weight_norm, VECTOR, ONE_PASS),
    "tied embedding": Entry(tied, IDS, ONE_PASS, ids=7),
    "embedding, padded": Entry(
        lambda: Fn(
            lambda m, x: m.out(m.e(x)).mean(1), e=nn.Embedding(7, 4, padding_idx=2), out=lin(4, 3)
        ),
        IDS,
        ONE_PASS,
        ids=7,
    ),
    "reused layer": Entry(
        lambda: Fn(lambda m, x: m.out(m.a(m.a(x).tanh()).tanh()), a=lin(6, 6), out=lin()),
        VECTOR,
        ONE_PASS,
    ),
    "weight used behind the layer": Entry(
        lambda: Fn(lambda m, x: m.a(x) + F.linear(x.square(), m.a.weight), a=lin()),
        VECTOR,
        ONE_PASS,
    ),
    "root parameter": Entry(
        lambda: Fn(lambda m, x: m.fc(x) * m.scale, fc=lin(), scale=nn.Parameter(torch.ones(3))),
        VECTOR,
        ONE_PASS,
    ),
    "parameter without dimensions": Entry(
        lambda: Fn(lambda m, x: m.fc(x) * m.t.exp(), fc=lin(), t=nn.Parameter(torch.tensor(0.3))),
        VECTOR,
        ONE_PASS,
    ),
    "PReLU": Entry(lambda: nn.Sequential(lin(6, 5), nn.PReLU(5), lin(5, 3)), VECTOR, ONE_PASS),
    "called by keyword": Entry(
        lambda: Fn(lambda m, x: m.out(m.k(hidden=x, scale=2.0)), k=KeywordLayer(), out=lin()),
        VECTOR,
        ONE_PASS,
    ),
    "dropout": Entry(
        lambda: nn.Sequential(lin(6, 8), nn.Dropout(0.5), lin(8, 3)), VECTOR, ONE_PASS, draws=True
    ),
    "dropout in a custom layer": Entry(
        lambda: nn.Sequential(NoisyLayer(), lin()), VECTOR, ONE_PASS, draws=True
    ),
    "in-place activation": Entry(
        lambda: Fn(lambda m, x: m.b(m.a(x).relu_()), a=lin(6, 5), b=lin(5, 3)), VECTOR, ONE_PASS
    ),
    "squeeze()": Entry(
        lambda: Fn(lambda m, x: m.b(m.a(x.unsqueeze(1)).squeeze()), a=lin(6, 5), b=lin(5, 3)),
        VECTOR,
        ONE_PASS,
    ),
    "frozen weight": Entry(frozen, VECTOR, ONE_PASS),
    "unused parameter": Entry(lambda: Fn(lambda m, x: m.a(x), a=lin(), b=lin()), VECTOR, ONE_PASS),
    "siamese, joined batches": Entry(
        lambda: Fn(
            lambda m, x: (m.a(torch.cat([x[:, :3], x[:, 3:]])).view(2, -1, 3)).prod(0), a=lin(3, 3)
        ),
        VECTOR,
        ONE_PASS,
    ),
    "mixture of experts": Entry(
        lambda: Fn(
            lambda m, x: torch.einsum("nk,kdc,nd->nc", m.g(x).softmax(1), m.w, x),
            g=lin(6, 4),
            w=nn.Parameter(torch.randn(4, 6, 3)),
        ),
        VECTOR,
        ONE_PASS,
    ),
    "hypernetwork": Entry(
        lambda: Fn(lambda m, x: (x.unsqueeze(1) @ m.h(x).view(-1, 6, 3)).squeeze(1), h=lin(6, 18)),
        VECTOR,
        ONE_PASS,
    ),
    "deep sets": Entry(
        lambda: Fn(lambda m, x: m.b(m.a(x).relu().sum(1)), a=lin(6, 5), b=lin(5, 3)),
        SEQUENCE,
        ONE_PASS,
    ),
    "bilinear layer": Entry(
        lambda: Fn(lambda m, x: m.b(x[:, :3], x[:, 3:]), b=nn.Bilinear(3, 3, 3)), VECTOR, ONE_PASS
    ),
    "picked by row number": Entry(
        lambda: Fn(
            lambda m, x: m.out(m.a(x)[torch.arange(len(x)), torch.zeros(len(x), dtype=torch.long)]),
            a=lin(6, 4),
            out=lin(4, 3),
        ),
        SEQUENCE,
        VMAPPED,
    ),
    "layer on a constant of three rows": Entry(
        lambda: Fn(
            lambda m, x: m.a(x) + m.q(m.table).mean(0), a=lin(), q=lin(), table=torch.eye(3, 6)
        ),
        VECTOR,
        ONE_PASS,
    ),
    "branches on the data": Entry(Branching, VECTOR, ONE_BY_ONE),
    "straight-through backward": Entry(
        lambda: Fn(lambda m, x: m.b(StraightThrough.apply(m.a(x))), a=lin(6, 5), b=lin(5, 3)),
        VECTOR,
        ONE_BY_ONE,
    ),
}

UNSOUND: dict[str, Entry] = {
    "BatchNorm1d": Entry(
        lambda: nn.Sequential(lin(6, 4), nn.BatchNorm1d(4), lin(4, 3)), VECTOR, REFUSED
    ),
    "BatchNorm2d": Entry(
        lambda: nn.Sequential(nn.BatchNorm2d(1), nn.Flatten(), lin(64, 3)), IMAGE, REFUSED
    ),
    "BatchNorm without statistics": Entry(
        lambda: nn.Sequential(lin(6, 4), nn.BatchNorm1d(4, track_running_stats=False), lin(4, 3)),
        VECTOR,
        REFUSED,
    ),
    "functional batch norm": Entry(
        lambda: Fn(
            lambda m, x: m.b(F.batch_norm(m.a(x), None, None, training=True)),
            a=lin(6, 4),
            b=lin(4, 3),
        ),
        VECTOR,
        REFUSED,
    ),
    "InstanceNorm with statistics": Entry(
        lambda: nn.Sequential(
            nn.InstanceNorm2d(1, track_running_stats=True), nn.Flatten(), lin(64, 3)
        ),
        IMAGE,
        REFUSED,
    ),
    "Embedding(max_norm)": Entry(
        lambda: Fn(lambda m, x: m.e(x).mean(1), e=nn.Embedding(7, 3, max_norm=0.1)),
        IDS,
        REFUSED,
        ids=7,
    ),
    "Embedding(scale_grad_by_freq)": Entry(
        lambda: Fn(lambda m, x: m.e(x).mean(1), e=nn.Embedding(7, 3, scale_grad_by_freq=True)),
        IDS,
        REFUSED,
        ids=7,
    ),
    "centred by the batch mean": Entry(
        lambda: Fn(lambda m, x: m.a(x - x.mean(0)), a=lin()), VECTOR, REFUSED
    ),
    "scaled by a detached batch deviation": Entry(
        lambda: Fn(lambda m, x: m.a(x / (x.detach().std(0) + 1)), a=lin()), VECTOR, REFUSED
    ),
    "cumulative sum over the batch": Entry(
        lambda: Fn(lambda m, x: m.a(x.cumsum(0)), a=lin()), VECTOR, REFUSED
    ),
    "softmax over the batch": Entry(
        lambda: Fn(lambda m, x: m.b(m.a(x).softmax(0)), a=lin(6, 6), b=lin()), VECTOR, REFUSED
    ),
    "sorted over the batch": Entry(
        lambda: Fn(lambda m, x: m.a(x.sort(0)[0]), a=lin()), VECTOR, REFUSED
    ),
    "sees its neighbour": Entry(
        lambda: Fn(lambda m, x: m.a(x + x.roll(1, 0)), a=lin()), VECTOR, REFUSED
    ),
    "compared with all": Entry(
        lambda: Fn(lambda m, x: m.a((x @ x.T).softmax(1) @ x), a=lin()), VECTOR, REFUSED
    ),
    "thresholded by the batch maximum": Entry(
        lambda: Fn(lambda m, x: m.a(x * (x > x.max() * 0.5)), a=lin()), VECTOR, REFUSED
    ),
    "FiLM from the batch mean": Entry(
        lambda: Fn(lambda m, x: m.a(x) * m.f(x.mean(0)), a=lin(), f=lin()), VECTOR, REFUSED
    ),
    "convolution along the batch": Entry(
        lambda: Fn(lambda m, x: m.a(m.c(x.T).T), c=nn.Conv1d(6, 6, 3, padding=1), a=lin()),
        VECTOR,
        REFUSED,
    ),
    "GroupNorm over the folded batch": Entry(
        lambda: Fn(lambda m, x: m.a(F.group_norm(x.reshape(1, -1, 1), 1).view(x.shape)), a=lin()),
        VECTOR,
        REFUSED,
    ),
    "rows scrambled by view": Entry(
        lambda: Fn(lambda m, x: m.a(x.view(6, -1).T + 0 * x), a=lin()), VECTOR, REFUSED
    ),
    "attention across the batch": Entry(
        lambda: Fn(
            lambda m, x: m.out(m.l(x, x, x)[0].mean(1)), l=nn.MultiheadAttention(6, 2), out=lin()
        ),
        SEQUENCE,
        REFUSED,
    ),
    "recurrent across the batch": Entry(lambda: Recurrent(nn.LSTM(6, 4), 4), SEQUENCE, REFUSED),
    "mixup in training": Entry(
        lambda: Fn(lambda m, x: m.a(0.5 * (x + x.flip(0)) if m.training else x), a=lin()),
        VECTOR,
        REFUSED,
    ),
    "branch on the batch": Entry(
        lambda: Fn(lambda m, x: m.a(x) if float(x.mean()) > 0 else m.b(x), a=lin(), b=lin()),
        VECTOR,
        ONE_BY_ONE,
    ),
    "cross-example gate at zero": Entry(
        lambda: Fn(
            lambda m, x: m.a(x) + m.gate * m.b(x.mean(0)),
            a=lin(),
            b=lin(),
            gate=nn.Parameter(torch.zeros(())),
        ),
        VECTOR,
        REFUSED,
    ),
    "position code by batch index": Entry(
        lambda: Fn(
            lambda m, x: m.a(x + 20 * m.code[: len(x)]),
            a=lin(),
            code=torch.sin(torch.arange(60.0).view(10, 6) ** 2),
        ),
        VECTOR,
        VMAPPED,
    ),
    "tutorial PositionalEncoding, batch-first": Entry(
        lambda: nn.Sequential(PositionalEncoding(6), nn.Flatten(), lin(30, 3)), SEQUENCE, VMAPPED
    ),
    "scaled by the batch size": Entry(
        lambda: Fn(lambda m, x: m.a(x) / len(x), a=lin()), VECTOR, VMAPPED
    ),
    "branch on the batch size": Entry(
        lambda: Fn(lambda m, x: m.a(x) if len(x) % 2 else m.b(x), a=lin(), b=lin()), VECTOR, VMAPPED
    ),
    "constant of the batch's length": Entry(
        lambda: Fn(
            lambda m, x: m.a(x * (m.table if len(x) == 6 else 1)),
            a=lin(),
            table=torch.arange(6.0).view(6, 1) * 3,
        ),
        VECTOR,
        ONE_PASS,
    ),
    "mixing in the backward pass only": Entry(
        lambda: Fn(
            lambda m, x: m.b((h := m.a(x)) + h.mean(0) - h.mean(0).detach()), a=lin(6, 6), b=lin()
        ),
        VECTOR,
        VMAPPED,
    ),
    "custom backward over the batch": Entry(
        lambda: Fn(lambda m, x: m.b(BatchScaledGradient.apply(m.a(x))), a=lin(6, 6), b=lin()),
        VECTOR,
        ONE_BY_ONE,
    ),
    "tensor hook over the batch": Entry(Hooked, VECTOR, ONE_BY_ONE),
    "module hook over the batch": Entry(module_hooked, VECTOR, ONE_BY_ONE),
    "running mean in a buffer": Entry(Running, VECTOR, REFUSED),
    "call counter": Entry(Counting, VECTOR, REFUSED),
    "remembers the last batch": Entry(Remembering, VECTOR, REFUSED),
    "memory bank in a list": Entry(Queue, VECTOR, REFUSED),
    "memory in a global": Entry(Global, VECTOR, REFUSED),
}


def records(entry: Entry, n: int, seed: int = 1) -> tuple[Tensor, Tensor]:
    """``n`` records of very different sizes, in float64, and labels."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(3, (n,), generator=generator)
    if entry.ids:
        return torch.randint(entry.ids, (n, *entry.shape), generator=generator), y
    x = torch.randn(n, *entry.shape, generator=generator, dtype=torch.float64)
    scale = torch.logspace(-1, 1, n, dtype=torch.float64).view(-1, *[1] * len(entry.shape))
    return x * scale, y


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(logits, y, reduction="none")


def measured_change(clipper, entry: Entry, clip_norm: float = 1e-2, n: int = 7) -> float:
    """By how many C one record more or less moves the clipped sum, at most over the records: in a
    first call, and in a second one that a memory of the first could reach."""
    x, y = records(entry, n)
    worst = 0.0
    buffers = {name: b.clone() for name, b in clipper.model.named_buffers()}
    for left_out in range(n):
        rest = [i for i in range(n) if i != left_out]
        sums = []
        for chosen in (list(range(n)), rest):
            totals = []
            for name, buffer in clipper.model.named_buffers():
                buffer.copy_(buffers[name])
            for rows in (chosen, rest):
                part = x[rows], y[rows]
                totals.append(clipper.clip(*part, cross_entropy, clip_norm).total.clone())
            sums.append(torch.stack(totals))
        change = (sums[0] - sums[1]).norm(dim=1)
        worst = max(worst, float(change[0]), float(change.norm()))
    return worst / clip_norm
