"""The privacy settings of a run."""

from dataclasses import dataclass

from proxyfl._validate import choice, number, whole
from proxyfl.errors import ConfigError
from proxyfl.privacy.guarantee import Unit
from proxyfl.simulation.perclient import PerClientFloat, PerClientInt, check_each

# The home of the accountants takes seconds to load. A test compares them.
ACCOUNTANTS = ("pld", "rdp")


@dataclass(frozen=True)
class Privacy:
    """DP-SGD of what is shared."""

    enabled: bool = True
    """`false` trains every method without DP: for ablations only."""
    noise_multiplier: PerClientFloat = 4.0
    """Standard deviation of the noise in units of `clip_norm`, per client."""
    clip_norm: PerClientFloat = 1.0
    """Largest norm of one unit's gradient, per client."""
    unit: str = "record"
    """The unit that is protected: one `record`, or a `group`: a person with all of their records.
    With `group`, batch_size, examples and sampling_rate count persons, whom the data must name."""
    max_per_group: int | None = None
    """With `group`: records of a person in one step, drawn anew each time; absent: all of them."""
    max_physical_batch_size: int | None = None
    """Records whose gradients are computed at a time, which bounds memory; a larger batch is worked
    through in slices and gets its noise once. Absent: the whole batch at a time."""
    delta: PerClientFloat | None = None
    """The guarantee's delta, per client; absent: 1 / examples."""
    sampling_rate: PerClientFloat | None = None
    """Probability that an example is in a batch, per client; absent: batch_size / examples."""
    examples: PerClientInt | None = None
    """Public number of examples that the rate, delta and a round's length follow from, per client;
    absent: the true one."""
    budget: PerClientFloat | None = None
    """Largest epsilon, per client: who would exceed it with the next step leaves; absent: none."""
    accountant: str = "pld"
    """The accountant that keeps the budget: `pld` or `rdp`."""
    account: str | None = None
    """The folder of an account (see `proxyfl ledger`): what real releases have spent on the same
    records counts towards every budget. A run of a simulation is entered as one, and counts for
    nobody else."""

    def __post_init__(self) -> None:
        choice("privacy.accountant", self.accountant, ACCOUNTANTS)
        choice("privacy.unit", self.unit, tuple(Unit))
        if self.max_per_group is not None:
            whole("privacy.max_per_group", self.max_per_group)
            if self.unit != "group":
                raise ConfigError(
                    f"privacy.max_per_group={self.max_per_group} is for privacy.unit = 'group', "
                    f"got {self.unit!r}. Set the unit, or leave max_per_group out."
                )
        if self.max_physical_batch_size is not None:
            whole("privacy.max_physical_batch_size", self.max_physical_batch_size)
        check_each(number, "privacy.budget", self.budget, above=0)
        check_each(
            number, "privacy.noise_multiplier", self.noise_multiplier, above=0
        )
        check_each(number, "privacy.clip_norm", self.clip_norm, above=0)
        check_each(number, "privacy.delta", self.delta, above=0, below=1)
        check_each(
            number, "privacy.sampling_rate", self.sampling_rate, above=0, at_most=1
        )
        check_each(whole, "privacy.examples", self.examples)
        if self.sampling_rate is not None and self.examples is not None:
            raise ConfigError(
                "Expected privacy.sampling_rate or privacy.examples, got both. The rate alone is "
                "enough."
            )
        if self.sampling_rate is not None and self.delta is None:
            raise ConfigError(
                "With privacy.sampling_rate, privacy.delta must be set: its default 1/n would "
                "follow from the data. Use 1/(10 n) for a rounded n, or less."
            )
