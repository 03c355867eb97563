"""Variations of a test that are too many for each change: `nox -s slow` runs them."""

from __future__ import annotations

from typing import Any

import pytest
from _pytest.mark import ParameterSet
from hypothesis import settings


def nightly(*values: Any) -> list[ParameterSet]:
    """Parameters that only the nightly run has, one for each of `values`."""
    return [pytest.param(value, marks=pytest.mark.nightly) for value in values]


def nightly_sets(*sets: tuple[Any, ...]) -> list[ParameterSet]:
    """The same of parameters that have several values each."""
    return [pytest.param(*values, marks=pytest.mark.nightly) for values in sets]


def is_nightly() -> bool:
    """Whether there is time: with `--hypothesis-profile=nightly`."""
    return settings.get_current_profile_name() == "nightly"


def examples(count: int, nightly: int) -> settings:
    """How many examples Hypothesis tries: `count`, and `nightly` where there is time."""
    return settings(max_examples=nightly if is_nightly() else count)
