"""Predicts from raw columns with an exported model. Needs numpy, and onnxruntime or torch.

    python predict.py patients.csv            a line with the probability of each class or finding,
                                              with the value, or with the probability to be free of
                                              the event at the end of each interval

Keep it in the folder that `proxyfl node export` wrote, next to encoding.json and private.onnx (or
private.pt2). The file is UTF-8, comma separated, and its first row names the columns; others than
the model's are ignored. A value that cannot be is an error with its row. `features` is the
definition of the encoding, for your own software.
"""

import csv
import datetime
import json
import sys
from pathlib import Path

import numpy as np

DAYS = {"days": 1.0, "weeks": 7.0, "months": 365.25 / 12, "years": 365.25}


def canonical(text):
    """Without spaces around it; a whole number without decimals."""
    text = text.strip()
    whole, dot, decimals = text.partition(".")
    is_whole = dot and not decimals.strip("0") and whole.lstrip("+-").isdecimal()
    return whole if is_whole else text


def day(text, formats):
    """A date as days since the year 1."""
    for form in formats:
        try:
            return float(datetime.datetime.strptime(text.strip(), form).toordinal())
        except ValueError:
            continue
    raise ValueError(f"expected a date as {' or '.join(formats)}, got {text!r}")


def measured(column, row):
    """The number or interval of a row; None if it is missing."""
    text = row[column["column"]]
    if canonical(text) in column["missing"]:
        return None
    if column["kind"] == "number":
        return float(text)
    if "until_date" in column:
        end = float(datetime.date.fromisoformat(column["until_date"]).toordinal())
    else:
        until = column["until"]
        if canonical(row[until["column"]]) in until["missing"]:
            return None
        end = day(row[until["column"]], until["formats"])
    return (end - day(text, column["formats"])) / DAYS[column["unit"] or "years"]


def of_measured(column, row):
    value = measured(column, row)
    low, high = column["range"]
    missing = value is None
    if missing:
        value = column["fill"]
    else:
        least, most = column["limits"]
        slips = any(a <= value <= b for a, b in column["slips"])
        if not least <= value <= most or slips:
            raise ValueError(f"expected a value around {low:g} to {high:g}, got {value:g}")
        value = min(max(value, low), high)
    if column["encoding"] == "bins":
        at = sum(value >= knot for knot in column["knots"])
        shown = not missing or column["fills_bins"]
        values = [float(shown and i == at) for i in range(len(column["knots"]) + 1)]
    else:
        values = [2 * (value - low) / (high - low) - 1]
        values += [max(value - knot, 0.0) / (high - knot) for knot in column["knots"]]
    return values, missing


def of_category(column, row):
    text = canonical(row[column["column"]])
    missing = text in column["missing"]
    values = [0.0] * (len(column["values"]) + column["other"])
    if not missing:
        known = [text in spellings for spellings in column["values"]]
        if any(known):
            values[known.index(True)] = 1.0
        elif column["other"]:
            values[-1] = 1.0
        else:
            raise ValueError(f"no known value: {text!r}")
    return values, missing


def of_yes_no(column, row):
    raw = canonical(row[column["column"]])
    if raw in column["missing"]:
        return [0.0], True
    text = raw.lower()
    if text in column["yes"]:
        return [1.0], False
    if text in column["no"]:
        return [-1.0], False
    raise ValueError(f"expected a yes or a no, got {raw!r}")


def features(encoding, row):
    """The inputs of the model for a row: column name -> text."""
    inputs = []
    for column in encoding["columns"]:
        kinds = {"category": of_category, "yes/no": of_yes_no}
        try:
            values, missing = kinds.get(column["kind"], of_measured)(column, row)
        except (KeyError, ValueError) as problem:
            raise ValueError(f"column {column['column']!r}: {problem}") from None
        inputs += values
        if column["indicator"]:
            inputs.append(float(missing))
    return inputs


def logits(folder, inputs):
    """What the model says, by whichever program can be run here."""
    try:
        import onnxruntime

        session = onnxruntime.InferenceSession(str(folder / "private.onnx"))
        return session.run(None, {session.get_inputs()[0].name: inputs})[0]
    except ImportError:
        import torch

        program = torch.export.load(folder / "private.pt2").module()
        return program(torch.from_numpy(inputs)).detach().numpy()


def predictions(task, outputs):
    """What the model's outputs stand for: a number for each heading."""
    if task["kind"] == "regression":
        low, high = task["range"]
        return np.clip(low + (outputs + 1) / 2 * (high - low), low, high)
    if task["kind"] == "multilabel":
        return np.exp(-np.logaddexp(0, -outputs))
    if task["kind"] == "time-to-event":
        return np.exp(-np.logaddexp(0, outputs).cumsum(1))
    shares = np.exp(outputs - outputs.max(1, keepdims=True))
    return shares / shares.sum(1, keepdims=True)


def main(path):
    folder = Path(__file__).resolve().parent
    encoding = json.loads((folder / "encoding.json").read_text(encoding="utf-8"))
    rows = []
    with open(path, newline="", encoding="utf-8-sig") as file:  # noqa: PTH123
        for number, row in enumerate(csv.DictReader(file), 2):
            try:
                rows.append(features(encoding, row))
            except ValueError as problem:
                raise SystemExit(f"{path} row {number}, {problem}") from None
    if not rows:
        raise SystemExit(f"{path}: expected rows, got none.")
    outputs = logits(folder, np.array(rows, dtype=np.float32)).astype(np.float64)
    rows = predictions(encoding["task"], outputs).tolist()
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(encoding["headings"])
    writer.writerows([[f"{number:.6f}" for number in row] for row in rows])


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    main(sys.argv[1])
