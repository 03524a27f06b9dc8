"""The benchmark of persons with several records: its parts and its arms are fair."""

import torch

from benchmarks import persons
from proxyfl.data.examples import InMemory


def lesions() -> InMemory:
    """Forty lesions of one to five images."""
    groups = torch.arange(40).repeat_interleave(torch.arange(40) % 5 + 1)
    return InMemory(torch.rand(len(groups), 3, 12, 16), groups % 2, groups)


def test_no_lesion_is_in_two_parts() -> None:
    """Training, validation and test part share no lesion, and have all of them together."""
    examples = lesions()
    found = [set(examples.groups[rows].tolist()) for rows in persons.parts(examples, 3)]
    assert [len(part) for part in found] == [24, 8, 8]
    assert len(set.union(*found)) == 40


def test_thinning_keeps_every_lesion() -> None:
    """At most so many images of a lesion stay, and at least one."""
    examples = lesions()
    rows = persons.thinned(examples, torch.arange(len(examples)), 2, seed=0)
    counts = examples.groups[rows].bincount(minlength=40)
    assert counts.min() == 1
    assert counts.max() == 2


def test_an_arm_trains_and_is_scored() -> None:
    """The arm with the person as the unit runs as the others do."""
    found = persons.scores(persons.ARMS[-1], 2.0, 0.1, lesions(), seed=0)
    assert all(0 <= score <= 1 for score in found)
