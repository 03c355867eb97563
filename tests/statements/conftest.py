"""Two connections, to show what two transactions do to each other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import Connection, Engine


@pytest.fixture
def connection(engine: Engine) -> Iterator[Connection]:
    """A connection; what it has not committed is rolled back."""
    with connected(engine) as connection:
        yield connection


@pytest.fixture
def other(engine: Engine) -> Iterator[Connection]:
    """Another one."""
    with connected(engine) as connection:
        yield connection


@contextmanager
def connected(engine: Engine) -> Iterator[Connection]:
    with engine.connect() as connection:
        # So that a statement fails if it waits where it must not.
        connection.exec_driver_sql("SET lock_timeout = '20s'")
        connection.commit()
        yield connection
