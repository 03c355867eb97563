"""Commands in a database whose only jobs are those of the application's own table."""

from __future__ import annotations

import pytest
from sqlalchemy import create_engine

from sa_jobqueue import Registry
from sa_jobqueue.cli import application
from sa_jobqueue.migrations import OwnTable
from tests.support.cli import output, refused
from tests.support.own_jobs import SCHEMA, Job, Tenant


@pytest.fixture
def url(empty_database_url: str) -> str:
    engine = create_engine(empty_database_url)
    with engine.begin() as connection:
        Tenant.__table__.create(connection)  # type: ignore[attr-defined]
        OwnTable(Job).create(connection)
    engine.dispose()
    return empty_database_url


def test_a_command_without_the_schema_says_which_there_is(url: str) -> None:
    """Its user has forgotten --schema, and need not migrate anything."""
    said = refused("list", url=url)
    assert "the job queue's schema 'sa_jobqueue' of database " in said
    assert (
        f"is missing, but there is '{SCHEMA}' (--schema {SCHEMA}); version 1 is needed: run `sa-jobqueue migrate`"
        in said
    )
    assert "no jobs" in output("list", "--schema", SCHEMA, url=url).lower() or not output(
        "list", "--schema", SCHEMA, url=url
    )


def test_a_worker_without_the_registry_says_which_there_is(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--app` names a module, and the tasks in it are of another registry than the default one."""
    monkeypatch.setattr(application, "default_registry", Registry())  # other tests' modules have filled it
    assert refused("work", "--app", "tests.support.own_jobs", url=url) == (
        "error: --app tests.support.own_jobs: no task is declared there in the default registry; name yours, "
        "--app tests.support.own_jobs:registry\n"
    )
