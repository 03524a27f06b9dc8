"""A manifest whose schema has another task than classification."""

import tomllib

import pytest

from proxyfl.data.tables import schema as schemas
from proxyfl.errors import ConfigError
from proxyfl.node.members import manifest
from proxyfl.node.members.manifest import OUTCOMES, Manifest

TEXT = """
[label]
task = "time-to-event"
column = "days"
event = "died"
intervals = [30, 90]
[columns.age]
type = "number"
range = [0, 100]
"""


def agreed(**changes):
    """A manifest for the time to an event."""
    schema = schemas.parse(tomllib.loads(TEXT))
    settings = {"measure": "c_index", "input": manifest.input_of(schema), "schema": schema}
    return Manifest("a", rounds=3, **settings | changes)


def test_it_is_read_back_with_the_same_digest():
    """The task follows from the schema; earlier releases see a minor version that they lack."""
    first = agreed()
    again = manifest.parse(tomllib.loads(manifest.to_toml(first)), source="a")
    assert again == first
    assert again.digest == first.digest
    assert again.task.kind == "time-to-event"
    assert again.task.outputs == 2
    assert first.minor == OUTCOMES


def test_a_measure_of_classes_is_refused():
    """Its members could not report a gain in it."""
    with pytest.raises(ConfigError, match="none of the task time-to-event"):
        agreed(measure="accuracy")
