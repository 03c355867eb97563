"""Variations of a test that are too many for each change: `nox -s slow` runs them."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
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


def crossed(*lists: Iterable[Any]) -> list[ParameterSet]:
    """All combinations of one value of each list: enough of them for each value to be there for each change, the others nightly."""
    columns = [list(values) for values in lists]
    daily = {
        tuple((row + place * (row // len(column))) % len(column) for place, column in enumerate(columns))
        for row in range(max(map(len, columns)))
    }
    return [
        pytest.param(
            *(column[at] for column, at in zip(columns, places, strict=True)),
            marks=() if places in daily else pytest.mark.nightly,
        )
        for places in product(*(range(len(column)) for column in columns))
    ]


def is_nightly() -> bool:
    """Whether there is time: with `--hypothesis-profile=nightly`."""
    return settings.get_current_profile_name() == "nightly"


def examples(count: int, nightly: int) -> settings:
    """How many examples Hypothesis tries: `count`, and `nightly` where there is time."""
    return settings(max_examples=nightly if is_nightly() else count)
