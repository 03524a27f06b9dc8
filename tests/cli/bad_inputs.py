"""The files and folders that the bad command lines of ``bad_inputs.txt`` name."""

import gzip
import json
import os
import zipfile
from pathlib import Path

import numpy as np

GOOD = "age,pressure,label\n" + "".join(f"{30 + n},{100 + n},{n % 2}\n" for n in range(40))

SCHEMA = """\
name = "study"
person = "patient"

[label]
column = "died"
classes = ["no", "yes"]
written = {no = ["0", "nein"], yes = ["1", "ja"]}

[columns.age]
type = "number"
range = [18, 100]

[columns.side]
type = "category"
values = ["left", "right"]

[columns.seen]
type = "ignored"
"""

ROWS = "patient,age,side,seen,died\n" + "".join(
    f"p{n},{20 + n % 70},{'left' if n % 3 else 'right'},2024-01-01,{n % 2}\n" for n in range(40)
)


def lay_out(folder: Path) -> None:
    """Writes all of them into ``folder``."""
    texts = {
        "ok.csv": GOOD,
        "gap.csv": GOOD.replace("31,101", ",101"),
        "word.csv": GOOD.replace("31,101", "old,101"),
        "inf.csv": GOOD.replace("31,101", "inf,101"),
        "huge.csv": GOOD.replace("31,101", "1e300,101"),
        "semicolon.csv": GOOD.replace(",", ";"),
        "tab.csv": GOOD.replace(",", "\t"),
        "one_class.csv": GOOD.replace(",1\n", ",0\n"),
        "wide.csv": GOOD.replace("31,101,1", "31,101,1,7,7"),
        "narrow.csv": GOOD.replace("31,101,1", "31"),
        "twice.csv": GOOD.replace("age,pressure", "age,age"),
        "two_labels.csv": GOOD.replace("pressure", "label"),
        "many.csv": "age,label\n" + "".join(f"{n},class {n}\n" for n in range(60)),
        "no_label.csv": GOOD.replace("label", "outcome"),
        "upper.csv": GOOD.replace("label", "Label"),
        "empty_label.csv": GOOD.replace("31,101,1", "31,101,"),
        "only_labels.csv": "label\n0\n1\n",
        "header.csv": "age,label\n",
        "empty.csv": "",
        "quote.csv": 'age,label\n1,"0\n2,1\n',
        "text.npz": "not an archive",
        "text.parquet": "not a table",
        "text.xlsx": "not a workbook",
        "text.json": "{}",
        "bad.toml": "rounds = = 3",
        "unknown.toml": "ronds = 3\n",
        "wrong.toml": 'rounds = "three"\n',
        "ok.toml": "rounds = 1\n",
        "sweep.toml": 'config = "ok.toml"\n[grid]\nronds = [1, 2]\n',
        "schema.toml": SCHEMA,
        "notype.toml": SCHEMA.replace('type = "number"', 'type = "numbr"'),
        "norange.toml": SCHEMA.replace("range = [18, 100]", ""),
        "flip.toml": SCHEMA.replace('no = ["0", "nein"]', 'no = ["yes"]'),
        "norole.toml": SCHEMA.replace("[label]", "[lable]"),
        "backwards.toml": SCHEMA.replace("[18, 100]", "[100, 18]"),
        "oneclass.toml": SCHEMA.replace('["no", "yes"]', '["no"]'),
        "until.toml": SCHEMA.replace('type = "ignored"', 'type = "date"\nuntil = "age"'),
        "until_ignored.toml": SCHEMA
        + '\n[columns.first]\ntype = "date"\nuntil = "seen"\nrange = [0, 9]\n',
        "shares.toml": SCHEMA.replace("written =", "prevalence = [0.5, 0.9]\nwritten ="),
        "north.csv": ROWS,
        "south.csv": ROWS.replace("p", "q").replace("qatient", "patient"),
        "same_people.csv": ROWS,
        "outside.csv": ROWS.replace(",21,", ",900,"),
        "typo.csv": ROWS.replace("left", "lfet"),
        "blank_person.csv": ROWS.replace("p3,", ","),
        "extra.csv": ROWS.replace("seen", "extra"),
        "no_age.csv": ROWS.replace("age", "alter"),
        "flipped.csv": ROWS.replace(",1\n", ",maybe\n"),
        "new.csv": "age,side\n33,left\n",
        "new_wrong.csv": "alter,side\n33,left\n",
        "counts.csv": "site,patients\nnorth,200\nsouth,100\n",
        "value.toml": '[label]\ntask = "regression"\ncolumn = "hba1c"\nrange = [4, 14]\n'
        '[columns.age]\ntype = "number"\nrange = [18, 100]\n',
        "notes.txt": "hello",
        "matrix.json": "[[1]]",
        "card.txt": "no card",
        "ledger.jsonl": "{}\n",
        "terms.toml": "x = 1\n",
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "latin.csv").write_bytes(GOOD.replace("age", "größe").encode("latin-1"))
    (folder / "utf16.csv").write_bytes(GOOD.encode("utf-16"))
    (folder / "binary.csv").write_bytes(bytes(range(256)) * 8)
    with gzip.open(folder / "ok.csv.gz", "wt") as file:
        file.write(GOOD)
    with zipfile.ZipFile(folder / "zipped.zip", "w") as archive:
        archive.writestr("ok.csv", GOOD)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, 3)).astype(np.float32), np.arange(40) % 2
    np.savez(folder / "ok.npz", x=x, y=y)
    np.savez(folder / "no_y.npz", x=x)
    np.savez(folder / "short.npz", x=x, y=y[:10])
    np.savez(folder / "float_y.npz", x=x, y=y + 0.5)
    np.savez(folder / "nan.npz", x=np.full_like(x, np.nan), y=y)
    np.savez(folder / "object.npz", x=x.astype(object), y=y)
    for name in ("empty_folder", "broken", "images/cat", "images/dog", "site", "taken", "fresh"):
        (folder / name).mkdir(parents=True)
    (folder / "fresh" / "config.toml").write_text("rounds = 1\n")
    (folder / "broken" / "config.toml").write_text("rounds = 1\n")
    (folder / "broken" / "metrics.jsonl").write_text("{broken\n")
    (folder / "site" / "site.toml").write_text('name = "north"\n[private_optimizer]\n')
    (folder / "images" / "cat" / "a.png").write_text("no picture")
    (folder / "images" / "dog" / "Thumbs.db").write_text("no picture")
    (folder / "taken" / "report.html").write_text("mine")
    (folder / "locked.csv").write_text(GOOD)
    os.mkfifo(folder / "pipe.csv")
    (folder / "broken_json").mkdir()
    (folder / "broken_json" / "config.toml").write_text("rounds = 1\n")
    (folder / "broken_json" / "environment.json").write_text(json.dumps([])[:1])
