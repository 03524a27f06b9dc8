"""Fixtures that several rooms of tests share."""

from tests.chromium import browser as browser
