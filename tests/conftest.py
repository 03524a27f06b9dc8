"""What holds for all tests: the same random numbers in any order, and time on a slow machine."""

import os
import random
import signal

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings

# Before any test imports grpc: it would allow TLS 1.2, and the import below would then refuse.
import proxyfl.transport.grpc  # noqa: F401
from tests.chromium import browser as browser

settings.register_profile(
    "suite", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("suite")

# A shell that starts the tests in the background has Ctrl-C ignored, and every command that a test
# starts would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# What is printed must not depend on the terminal that the tests are started from.
os.environ["COLUMNS"] = "80"
for name in ("LINES", "FORCE_COLOR", "NO_COLOR"):
    os.environ.pop(name, None)


@pytest.fixture(autouse=True)
def _same_random_numbers() -> None:
    """Each test starts with global generators in one state, whichever tests ran before it."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
