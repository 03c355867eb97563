"""Many small checks in one test, which then fails with a list of those that fail.

failures: list[str] = []
for path in pages:
    with noted(failures, path):
        assert path.read_text().startswith("# ")
assert not failures, "\n".join(failures)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def noted(failures: list[str], what: object) -> Iterator[None]:
    """Note `what` failed, with the reason, instead of raising the AssertionError."""
    try:
        yield
    except AssertionError as error:
        failures.append(f"{what}: {error}")
