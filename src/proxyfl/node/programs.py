"""A model as programs that need nothing of this package, and its schema's encoding next to them.

    private.pt2           torch.export: inputs -> logits, for a batch of any size
    private.onnx          ONNX, with the extra ``onnx``: the same, for any ONNX runtime
    private.pt            TorchScript, which PyTorch has deprecated; it leaves with release 0.3
    encoding.json         how the raw columns of a table become the inputs
    predict.py            a program that predicts from a CSV file with raw columns; it needs numpy
                          and onnxruntime (or torch), and its text is the encoding's definition

Guarantee: every program was run on real inputs, in batches of two sizes, and gives the model's
logits up to rounding, with the public prevalence put back where a balance had taken it out; one
that does not is removed and an error.
"""

import json
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from proxyfl._files import write_json, write_text
from proxyfl.data.tables.features import SLIPS, feature_names, limits
from proxyfl.data.tables.schema import Column, Schema, as_table, canonical, is_date
from proxyfl.errors import ModelError, RunError
from proxyfl.federation.home import Home, spread
from proxyfl.federation.prevalence import NOTHING, Meaning, headings
from proxyfl.models.estimators import UNSEEN, Pickled

_CLOSE = 1e-3
"""The largest difference of two logits that is rounding."""


class Plain(nn.Module):
    """A kept model without branches on values: which classes its estimator has never seen is a
    property of the model, and so a constant of the program."""

    def __init__(self, home: Home, inputs: Tensor) -> None:
        super().__init__()
        self.home = home
        self.is_blind = False
        if home.own is not None:
            own = home.own(inputs[:1].flatten(1).clone())
            self.is_blind = bool((own <= UNSEEN / 2).any())

    def forward(self, x: Tensor) -> Tensor:
        home = self.home
        own_weight, proxy_weight = home.weights
        if home.own is None:
            return self._received(x)
        own = home.own(x.flatten(1)) - home.get_buffer("shift")
        if home.received is None:
            logits: Tensor = own * own_weight
        elif self.is_blind:
            logits = spread(own, self._received(x), own_weight, proxy_weight, own <= UNSEEN / 2)
        else:
            logits = own_weight * own + proxy_weight * self._received(x)
        return logits

    def _received(self, x: Tensor) -> Tensor:
        received = self.home.received
        if received is None:
            raise ModelError(
                f"The model {self.home.name!r} listens to a proxy, and this file has none."
            )
        logits: Tensor = received(x)
        return logits


class Prevalent(nn.Module):
    """A model with the public prevalence put back: the softmax of its outputs is for it."""

    def __init__(self, model: nn.Module, meaning: Meaning) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("offsets", torch.tensor(meaning.offsets, dtype=torch.float32))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.model(x)
        return logits + self.get_buffer("offsets")


def write_programs(
    model: nn.Module, inputs: Tensor, out: Path, meaning: Meaning = NOTHING
) -> tuple[list[Path], list[str]]:
    """Write the model as programs. Returns their paths, and a note for each form that is missing.

    ``inputs`` are some real examples, on which the programs are compared with the model. They put
    the public prevalence back where ``meaning`` has one."""
    if isinstance(model, Home) and isinstance(model.own, Pickled):
        return [], [
            "The model is another library's estimator, which no program can hold; "
            "private.safetensors has its pickle."
        ]
    model = model.eval()
    plain = Plain(model, inputs).eval() if isinstance(model, Home) else model
    if meaning.offsets:
        model, plain = Prevalent(model, meaning).eval(), Prevalent(plain, meaning).eval()
    with torch.no_grad():
        expected = model(inputs)
    paths = [_write_script(model, inputs, out / "private.pt")]
    notes = [
        "private.pt is TorchScript, which PyTorch has deprecated and release 0.3 will not write. "
        "Use private.pt2 or private.onnx."
    ]
    path = out / "private.pt2"
    program = _export(plain, inputs)
    torch.export.save(program, path)
    said = torch.export.load(path).module()
    _compare(path, expected, said(inputs), said(inputs[:1]))
    paths.append(path)
    try:
        paths.append(_write_onnx(plain, inputs, expected, out / "private.onnx"))
    except ImportError:
        notes.append("private.onnx needs the extra: pip install 'proxyfl[onnx]'.")
    except torch.onnx.OnnxExporterError as problem:
        reason = str(problem).strip().splitlines()[0]
        notes.append(f"private.onnx was not written: the converter cannot express it ({reason}).")
    return paths, notes


def _write_script(model: nn.Module, inputs: Tensor, path: Path) -> Path:
    jit: Any = torch.jit  # untyped in torch
    with torch.no_grad(), warnings.catch_warnings():
        # what the trace takes for constant is constant: which classes were seen, how deep trees are
        warnings.simplefilter("ignore", jit.TracerWarning)
        warnings.filterwarnings("ignore", ".*torch.jit.*", DeprecationWarning)
        warnings.filterwarnings("ignore", ".*torch.jit.*", FutureWarning)
        jit.trace(model, inputs[:1]).save(str(path))
    return path


def _export(model: nn.Module, inputs: Tensor) -> Any:
    # a batch of one would be taken for a constant
    batch = inputs if len(inputs) > 1 else inputs.expand(2, *inputs.shape[1:])
    with torch.no_grad():
        return torch.export.export(
            model, (batch.clone(),), dynamic_shapes=({0: torch.export.Dim("batch")},)
        )


def _write_onnx(model: nn.Module, inputs: Tensor, expected: Tensor, path: Path) -> Path:
    import onnxruntime
    import onnxscript  # noqa: F401  # without it torch fails with words of its own

    batch = inputs if len(inputs) > 1 else inputs.expand(2, *inputs.shape[1:])
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model,
            (batch.clone(),),
            str(path),
            dynamo=True,
            external_data=False,
            input_names=["inputs"],
            output_names=["logits"],
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            verbose=False,
        )
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name

    def said(some: Tensor) -> Tensor:
        return torch.from_numpy(session.run(None, {name: some.numpy()})[0])

    _compare(path, expected, said(inputs), said(inputs[:1]))
    return path


def _compare(path: Path, expected: Tensor, said: Tensor, first: Tensor) -> None:
    for found, right in ((said, expected), (first, expected[:1])):
        if found.shape != right.shape or not torch.allclose(found, right, _CLOSE, _CLOSE):
            path.unlink()
            raise RunError(
                f"{path.name} does not give the model's own logits, and was removed. This is a "
                "fault of the converter; private.safetensors is right. Please report it."
            )


def write_encoding(schema: Schema, out: Path, meaning: Meaning = NOTHING) -> list[Path]:
    """Write what turns raw columns into inputs, and the program that does it."""
    task = schema.label.outcome
    encoding = encoding_of(schema) | {
        "task": asdict(task),
        "headings": headings(task.headings, meaning),
    }
    write_json(out / "encoding.json", encoding)
    source = Path(__file__).with_name("predicting_alone.py").read_text(encoding="utf-8")
    write_text(out / "predict.py", source)
    return [out / "encoding.json", out / "predict.py"]


def encoding_of(schema: Schema) -> dict[str, Any]:
    """The encoding as plain data, with every default written out; ``predict.py`` defines it."""
    columns = []
    for name, column in schema.features.items():
        rule: dict[str, Any] = {"column": name, "kind": column.type, "unit": column.unit}
        rule["missing"] = sorted({"", *map(canonical, (*schema.missing, *column.missing))})
        rule["indicator"] = column.indicator
        if column.is_measured:
            rule |= _describe_measure(column)
            if column.type == "date":
                rule["formats"] = list(column.formats)
                rule |= _until(schema, column)
        elif column.type == "category":
            table = as_table(column.values, column.written)
            rule["values"] = [sorted({canonical(v), *map(canonical, table[v])}) for v in table]
            rule["other"] = column.unknown == "other"
        else:
            rule["no"] = sorted({"no", *(canonical(text).lower() for text in column.no)})
            rule["yes"] = sorted({"yes", *(canonical(text).lower() for text in column.yes)})
        columns.append(rule)
    return {
        "format": 1,
        "name": schema.name,
        "classes": list(schema.label.classes),
        "features": list(feature_names(schema)),
        "columns": json.loads(json.dumps(columns)),
    }


def _describe_measure(column: Column) -> dict[str, Any]:
    low, high = column.range
    slips = []
    if not column.possible:
        for factor in SLIPS:
            if high < factor * low:
                slips.append([low / factor, high / factor])
    return {
        "range": [low, high],
        "limits": list(limits(column)),
        "slips": slips,
        "fill": (low + high) / 2 if column.fill is None else column.fill,
        "fills_bins": column.fill is not None,
        "encoding": column.encoding,
        "knots": list(column.knots),
    }


def _until(schema: Schema, column: Column) -> dict[str, Any]:
    end = column.until or ""
    if is_date(end):
        return {"until_date": end}
    other = schema.columns[end]
    missing = sorted({"", *map(canonical, (*schema.missing, *other.missing))})
    return {"until": {"column": end, "formats": list(other.formats), "missing": missing}}
