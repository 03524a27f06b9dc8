"""An exported encoding: predictions from raw columns without this package."""

import csv
import io
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch

from proxyfl.cli.commands.predict import SAID
from proxyfl.data.tables import schema as schemas
from proxyfl.data.tables.encoding import encode
from proxyfl.data.tables.faults import Tally
from proxyfl.data.tables.reading import read
from proxyfl.node.programs import write_encoding, write_programs
from tests.waiting import PATIENCE

SCHEMA = """
name = "every kind of column"
[label]
column = "died"
classes = ["alive", "dead"]
[columns.age]
type = "number"
range = [18, 100]
[columns.height]
type = "number"
unit = "cm"
range = [100, 220]
encoding = "hinges"
knots = [150, 180]
indicator = false
[columns.glucose]
type = "number"
range = [2, 20]
encoding = "bins"
knots = [5, 8]
[columns.pressure]
type = "number"
range = [80, 200]
encoding = "bins"
knots = [120]
fill = 110
[columns.sex]
type = "category"
values = ["f", "m"]
written = {f = ["0", "female"], m = ["1"]}
[columns.ward]
type = "category"
values = ["a", "b"]
unknown = "other"
[columns.smoker]
type = "yes/no"
missing = ["9"]
[columns.born]
type = "date"
until = "seen"
range = [18, 100]
formats = ["%d.%m.%Y", "%Y-%m-%d"]
[columns.seen]
type = "date"
"""

TABLE = """\
age,height,glucose,pressure,sex,ward,smoker,born,seen
50,170,5,130,f,a,yes,1.2.1950,2015-06-01
,149.5,,NA,1.0,c,9,,2015-06-01
18.5,220,19.99,200,m,b,F,1990-12-31,2020-01-01
101,100,2,80,female,,TRUE,1940-01-01,
?,181,8,120,0,b,0,1930-05-05,2015-06-01
"""


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    """A model on the schema's features as programs, with the encoding next to them."""
    (tmp_path / "schema.toml").write_text(SCHEMA)
    schema = schemas.read(tmp_path / "schema.toml")
    (tmp_path / "new.csv").write_text(TABLE)
    (part,) = read(tmp_path / "new.csv")
    found, faults = encode(schema, part, Tally(), labelled=False)
    assert not faults
    torch.manual_seed(0)
    model = torch.nn.Linear(found.x.shape[1], 2)
    inputs = torch.from_numpy(found.x)
    out = tmp_path / "out"
    out.mkdir()
    write_programs(model, inputs, out)
    write_encoding(schema, out)
    np.save(tmp_path / "expected.npy", model(inputs).softmax(1).detach().numpy())
    return tmp_path


def predict(place: Path, *, without: str = "") -> subprocess.CompletedProcess[str]:
    """Runs the exported predict.py where neither this package nor ``without`` can be imported."""
    code = (
        "import runpy, sys\n"
        f"for name in ('proxyfl', {without!r}): sys.modules[name] = None\n"
        f"sys.argv = ['predict.py', {str(place / 'new.csv')!r}]\n"
        f"runpy.run_path({str(place / 'out' / 'predict.py')!r}, run_name='__main__')\n"
    )
    line = [sys.executable, "-c", code]
    return subprocess.run(line, capture_output=True, text=True, timeout=PATIENCE, cwd=place)


@pytest.mark.parametrize("without", ["torch", "onnxruntime"])
def test_raw_columns_are_enough(exported: Path, without: str) -> None:
    """Every kind of column, gaps and spellings: the model's own probabilities, by ONNX without
    torch and by torch without ONNX."""
    pytest.importorskip("onnxruntime")
    done = predict(exported, without=without)
    assert done.returncode == 0, done.stderr
    header, *rows = csv.reader(io.StringIO(done.stdout))
    assert header == ["alive", "dead"]
    expected = np.load(exported / "expected.npy")
    np.testing.assert_allclose(np.array(rows, dtype=float), expected, atol=2e-6)


TASKS = {
    "regression": 'task = "regression"\ncolumn = "value"\nrange = [2, 10]',
    "multilabel": 'task = "multilabel"\nfindings = ["edema", "mass"]',
    "time-to-event": 'task = "time-to-event"\ncolumn = "days"\nevent = "died"\nunit = "days"\n'
    "intervals = [60, 200, 500]",
}


@pytest.mark.parametrize("kind", TASKS)
def test_predictions_of_every_task(
    tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """predict.py makes of outputs what ``proxyfl predict`` makes of them: a value within its range,
    the probability of each finding, or survival at the end of each interval."""
    columns = '[columns.a]\ntype = "number"\nrange = [-1, 1]\nindicator = false\n'
    schema = schemas.parse(tomllib.loads(f'name = "t"\n[label]\n{TASKS[kind]}\n{columns}'))
    task = schema.label.outcome
    (tmp_path / "new.csv").write_text("a\n-1\n-0.2\n0.6\n1\n")
    torch.manual_seed(0)
    model = torch.nn.Linear(1, task.outputs)
    with torch.no_grad():
        model.weight.mul_(3)
    write_encoding(schema, tmp_path)
    place = tmp_path / "predict.py"
    program = runpy.run_path(str(place))
    outputs = model(torch.tensor([[-1.0], [-0.2], [0.6], [1.0]])).detach()
    program["main"].__globals__["logits"] = lambda folder, inputs: outputs.numpy()
    program["main"].__globals__["__file__"] = str(place)
    program["main"](str(tmp_path / "new.csv"))
    header, *rows = csv.reader(io.StringIO(capsys.readouterr().out))
    answer = SAID[kind](outputs, task)
    assert header == list(answer.columns)
    expected = []
    for row in answer.rows:
        (numbers,) = row.values()
        expected.append(numbers if isinstance(numbers, list) else [numbers])
    np.testing.assert_allclose(np.array(rows, dtype=float), expected, atol=3e-6)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("5000,170,5,130,f,a,yes,1.2.1950,2015-06-01", "row 2, column 'age': expected a value"),
        ("50,1.70,5,130,f,a,yes,1.2.1950,2015-06-01", "row 2, column 'height': expected a value"),
        ("50,170,5,130,x,a,yes,1.2.1950,2015-06-01", "row 2, column 'sex': no known value"),
        ("50,170,5,130,f,a,maybe,1.2.1950,2015-06-01", "row 2, column 'smoker': expected a yes"),
        ("50,170,5,130,f,a,yes,yesterday,2015-06-01", "row 2, column 'born': expected a date"),
    ],
)
def test_what_cannot_be_is_refused(exported: Path, row: str, said: str) -> None:
    """As by the package itself, with the row as a spreadsheet counts."""
    (exported / "new.csv").write_text(f"{TABLE.splitlines()[0]}\n{row}\n")
    done = predict(exported)
    assert done.returncode == 1
    assert said in done.stderr
