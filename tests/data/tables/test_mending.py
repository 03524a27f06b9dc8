"""Faults by column and value, and what mends them."""

import tomllib

import pytest

from proxyfl.data.tables import schema as schemas
from proxyfl.data.tables.checking import check
from proxyfl.data.tables.mending import grouped

SCHEMA = """\
person = "patient"

[label]
column = "died"
classes = ["alive", "dead"]
written = {alive = ["0"], dead = ["1"]}

[columns.age]
type = "number"
range = [18, 100]
absent = "refuse"

[columns.side]
type = "category"
values = ["left", "right"]

[columns.smoker]
type = "yes/no"

[columns.seen]
type = "date"
until = "2020-12-31"
range = [0, 10]
"""

HEADER = "patient,age,side,smoker,seen,died"
GOOD = "p{},50,left,1,2019-05-01,0"

SPOILT = {
    "number": "p0,n/k,left,1,2019-05-01,0",
    "unit": "p0,999,left,1,2019-05-01,0",
    "category": "p0,50,LEFT,1,2019-05-01,0",
    "yes/no": "p0,50,left,perhaps,2019-05-01,0",
    "date": "p0,50,left,1,25.12.2019,0",
    "label": "p0,50,left,1,2019-05-01,verstorben",
}
"""Kind of fault -> a row that has it."""


def _merged(tree, toml):
    """The schema's tree with the keys of a remedy."""
    change = tomllib.loads(toml)
    for table, keys in change.items():
        if table == "columns":
            for name, ones in keys.items():
                tree["columns"].setdefault(name, {}).update(ones)
        else:
            tree[table].update(keys)
    return tree


def _groups(tmp_path, text, rows, header=HEADER):
    path = tmp_path / "north.csv"
    path.write_text("\n".join([header, *rows]), encoding="utf-8")
    agreed = schemas.parse(tomllib.loads(text))
    (file,) = check([path], agreed)
    return grouped(file.faults, agreed)


@pytest.mark.parametrize("kind", SPOILT)
def test_each_remedy_mends_what_it_names(tmp_path, kind):
    """With the lines of any one remedy in the schema, the file has no such fault."""
    rows = [GOOD.format(number) for number in range(1, 5)] + [SPOILT[kind]]
    (group,) = _groups(tmp_path, SCHEMA, rows)
    assert (group.kind, group.count, group.rows) == (kind, 1, (6,))
    assert group.remedies
    for remedy in group.remedies:
        tree = _merged(tomllib.loads(SCHEMA), remedy.toml)
        mended = schemas.to_toml(schemas.parse(tree))
        assert _groups(tmp_path, mended, rows) == []


def test_a_column_too_many_or_too_few(tmp_path):
    """A column that the schema does not name can be ignored, one that a file lacks allowed."""
    header = "patient,ward,side,smoker,seen,died"
    rows = [GOOD.format(number) for number in range(5)]
    groups = _groups(tmp_path, SCHEMA, rows, header)
    assert {(group.kind, group.column) for group in groups} == {
        ("unknown column", "ward"),
        ("absent column", "age"),
    }
    tree = tomllib.loads(SCHEMA)
    for group in groups:
        (remedy,) = group.remedies
        tree = _merged(tree, remedy.toml)
    assert _groups(tmp_path, schemas.to_toml(schemas.parse(tree)), rows, header) == []


def test_an_outcome_in_another_language_is_not_turned_round(tmp_path):
    """A word that means one class is proposed for that class alone; an unknown word for each."""
    rows = [GOOD.format(number) for number in range(1, 5)]
    (group,) = _groups(tmp_path, SCHEMA, [*rows, SPOILT["label"]])
    (remedy,) = group.remedies
    written = tomllib.loads(remedy.toml)["label"]["written"]
    assert written == {"alive": ["0"], "dead": ["1", "verstorben"]}
    (group,) = _groups(tmp_path, SCHEMA, [*rows, "p0,50,left,1,2019-05-01,worse"])
    assert [remedy.condition for remedy in group.remedies] == [
        "if it is 'alive'",
        "if it is 'dead'",
    ]


def test_values_are_counted(tmp_path):
    """One group has every value of a column that is wrong in one way, the commonest first; a
    column of many wrong values gets no list of them."""
    rows = [GOOD.format(number).replace(",50,", ",old,") for number in range(3)]
    rows += [GOOD.format(number).replace(",50,", ",new,") for number in range(3, 8)]
    rows.append(GOOD.format(99))
    (group,) = _groups(tmp_path, SCHEMA, rows)
    assert group.values == {"new": 5, "old": 3}
    assert group.rows == (2, 3, 4)
    many = [GOOD.format(number).replace(",50,", f",w{number},") for number in range(40)]
    many.append(GOOD.format(99))
    (group,) = _groups(tmp_path, SCHEMA, many)
    assert group.remedies == ()


@pytest.mark.parametrize(
    ("label", "header", "row", "condition"),
    [
        (
            'column = "hba1c"\ntask = "regression"\nrange = [4, 14]',
            "age,hba1c",
            "50,99",
            "if such values can be",
        ),
        (
            'column = "days"\ntask = "time-to-event"\nevent = "died"\nintervals = [30, 90]',
            "age,days,died",
            "50,20,ja",
            "if these words mean what they say",
        ),
        (
            'task = "multilabel"\nfindings = ["edema", "effusion"]',
            "age,edema,effusion",
            "50,1,vielleicht",
            "if it is a yes",
        ),
    ],
)
def test_outcomes_of_other_tasks_are_mended_too(tmp_path, label, header, row, condition):
    """A value, an event or a finding that the schema does not read gets its remedy."""
    text = f"[label]\n{label}\n\n[columns.age]\ntype = 'number'\nrange = [18, 100]\n"
    (group,) = _groups(tmp_path, text, [row], header)
    assert group.remedies[0].condition == condition
    tree = _merged(tomllib.loads(text), group.remedies[0].toml)
    mended = schemas.to_toml(schemas.parse(tree))
    assert _groups(tmp_path, mended, [row], header) == []
