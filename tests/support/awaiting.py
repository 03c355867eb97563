"""Waiting for the end of jobs in tests: who is said to wait, and `wait_for` over each driver."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import psycopg
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.ext.asyncio import create_async_engine

from sa_jobqueue import JobEnd, wait_for
from tests.support import pooler
from tests.support.databases import driver_url
from tests.support.factory import make_job

PATIENCE = 30.0

#: The drivers that are told of ends.
TOLD = ["psycopg", "psycopg2", "async psycopg", "asyncpg"]


def awaited(engine: Engine) -> set[int]:
    """The jobs whose end is to be told."""
    with engine.connect() as connection:
        return set(connection.scalars(text("SELECT job_id FROM sa_jobqueue.awaited")))


def running(engine: Engine, **columns: Any) -> int:
    """A running job, committed."""
    with engine.begin() as connection:
        return make_job(connection, "running", **columns)


def waiting_over(driver: str, **options: Any) -> Callable[[str, int], JobEnd]:
    """Waits for a job of this database, over one of `TOLD` or pg8000, by an engine of its own with these options."""
    name = driver.removeprefix("async ")

    def block(url: str, id: int) -> JobEnd:
        address = driver_url(url, name)
        engine = create_engine(address, **{**pooler.engine_options(address), **options})
        try:
            return wait_for(engine, id, timeout=PATIENCE)
        finally:
            engine.dispose()

    async def wait(url: str, id: int) -> JobEnd:
        address = driver_url(url, name)
        engine = create_async_engine(address, **{**pooler.engine_options(address), **options})
        try:
            return await wait_for(engine, id, timeout=PATIENCE)
        finally:
            await engine.dispose()

    def run(url: str, id: int) -> JobEnd:
        return asyncio.run(wait(url, id))

    return run if driver in {"async psycopg", "asyncpg"} else block


def backends(connection: psycopg.Connection) -> set[int]:
    """The sessions of this database."""
    found = connection.execute(
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend'"
    )
    return {pid for (pid,) in found}
