"""Databases without our schema, and roles without rights."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest
from sqlalchemy import Engine, NullPool, create_engine, text


@pytest.fixture
def empty_engine(empty_database_url: str) -> Iterator[Engine]:
    """An engine (psycopg) on a database of this test's own, without our schema."""
    engine = create_engine(empty_database_url, poolclass=NullPool)
    yield engine
    engine.dispose()


@pytest.fixture
def role(empty_engine: Engine) -> Iterator[str]:
    """A role that may do nothing yet. A superuser's connection becomes it by `SET ROLE`."""
    name = f"mig_{secrets.token_hex(6)}"
    with empty_engine.begin() as connection:
        connection.execute(text(f"CREATE ROLE {name}"))
    yield name
    with empty_engine.begin() as connection:
        connection.execute(text(f"DROP OWNED BY {name}"))
        connection.execute(text(f"DROP ROLE {name}"))
