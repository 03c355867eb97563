"""What the tests of faults share."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """What a test leaves behind goes with it, not in the midst of another."""
    yield
    gc.collect()
