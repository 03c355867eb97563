"""The pages that add up, where rows say what they like, and where the tables are elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest
from sqlalchemy import Connection, Engine, create_engine, insert, select

from sa_jobqueue import companions_of
from sa_jobqueue.dashboard import Access
from sa_jobqueue.migrations import OwnTable, upgrade_database
from sa_jobqueue.statements import pause, set_limit
from tests.dashboard.test_hostile import BAD
from tests.support import own_jobs
from tests.support.browsing import Seen, Viewer
from tests.support.busy_scene import add_stats, make_worker
from tests.support.factory import make_job
from tests.support.failures import noted
from tests.support.limits import key, limit

PATHS = ["/", "/?window=24h", "/queues", "/limits", "/workers", "/database"]


def fill(connection: Connection) -> None:
    """Each text that a row has is hostile."""
    worker = make_worker(connection, host=BAD, queues=[BAD], version=BAD, pressure=BAD)
    error = {"type": f"mod.{BAD}", "message": BAD, "attempt": 1}
    make_job(connection, "failed", queue=BAD, task=BAD, errors=[error])
    make_job(connection, "running", queue=BAD, task=BAD, worker=str(worker), concurrency_key=BAD)
    make_job(connection, queue=BAD, task=BAD, concurrency_key=BAD)
    limit(connection, BAD, running=1, key_running=1)
    limit(connection, BAD, owner="task", running=1)
    key(connection, BAD, BAD, running=1)
    connection.execute(pause(BAD, reason=BAD))
    connection.execute(pause(BAD, key=BAD, reason=BAD))
    add_stats(connection, BAD, BAD)


def test_what_rows_of_workers_limits_and_counts_say_is_text(engine: Engine) -> None:
    """In each page, in what refreshes it, and for whoever may do everything."""
    with engine.begin() as connection:
        fill(connection)
    failures: list[str] = []
    for access in (Access.ADMIN, Access(can=Access.ADMIN.can, queues=[BAD])):
        viewer = Viewer(engine, access)
        for path, fragment in product(PATHS, (False, True)):
            answer = viewer.get(path, fragment=fragment)
            with noted(failures, answer.url):
                assert answer.status_code == 200, answer.text
                seen = Seen(answer.text)
                assert not [
                    found for _, found in seen.elements for name in found if name.startswith("on") or name == "style"
                ]
                assert seen.all("img") == []
                assert "<script>alert" not in answer.text
                assert path == "/database" or "<script>alert(1)</script>" in seen.text
    assert not failures, "\n".join(failures)


@pytest.mark.parametrize(
    "action",
    ["pause", "resume", "open_breaker", "close_breaker", "set_limit", "remove_limit", "cancel_queue", "drain_worker"],
)
def test_what_a_form_says_is_text(engine: Engine, action: str) -> None:
    for fields in (
        {"owner": BAD, "name": BAD, "key": BAD, "running": BAD, "rate": BAD, "weight": BAD, "queue": BAD, "worker": BAD, "next": BAD},
        {"owner": "queue", "name": BAD, "key": BAD, "reason": BAD, "running": "1"},
    ):  # fmt: skip
        answer = Viewer(engine).send(action, fields)
        assert answer.status_code in {200, 303, 400}
        assert "<script>alert" not in answer.text
        assert Seen(answer.text).all("img") == []


@pytest.fixture
def own_engine(empty_database_url: str) -> Iterator[Engine]:
    """A database with both: the package's tables, and a job table of the application's with its companions."""
    made = create_engine(empty_database_url)
    with made.begin() as connection:
        upgrade_database(connection)
        own_jobs.Tenant.__table__.create(connection)  # type: ignore[attr-defined]
        OwnTable(own_jobs.Job).create(connection)
        connection.execute(insert(own_jobs.Tenant), [{"name": "acme"}])
    yield made
    made.dispose()


def test_a_job_table_of_the_applications_own_is_shown_alone(own_engine: Engine) -> None:
    """With its workers, limits and counts, and nothing of the package's table."""
    beside = companions_of(own_jobs.Job)
    with own_engine.begin() as connection:
        make_job(connection, queue="packages")
        make_worker(connection, host="packages-host")
        limit(connection, "packages", running=1)
        connection.exec_driver_sql(
            "INSERT INTO own_queue.job (queue, task, tenant_id) SELECT 'own', 'own_task', id FROM own_tenant"
        )
        connection.execute(set_limit("own", running=3, limit=beside.limit, limit_key=beside.key))
    viewer = Viewer(own_engine, job=own_jobs.Job)
    failures: list[str] = []
    for path in PATHS:
        page = viewer.see(path)
        with noted(failures, path):
            assert "packages" not in page.html
            assert path == "/workers" or "own" in page.text
            if path == "/database":
                assert "could not be looked at" not in page.text
                assert "own_queue" in page.text
    assert not failures, "\n".join(failures)


def test_what_is_done_is_done_to_the_applications_own_tables(own_engine: Engine) -> None:
    beside = companions_of(own_jobs.Job)
    viewer = Viewer(own_engine, job=own_jobs.Job)
    with own_engine.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO own_queue.job (queue, task, tenant_id) SELECT 'own', 'own_task', id FROM own_tenant"
        )
    viewer.do("pause", name="own")
    viewer.do("set_limit", name="own", running="3", key_rate="5/s")
    assert "Cancelled 1 job of queue own." in viewer.do("cancel_queue", queue="own").text
    with own_engine.connect() as connection:
        table = beside.limit.__table__
        found = connection.execute(select(table.c.running, table.c.paused_at)).one()
        assert found.running == 3
        assert found.paused_at is not None
        assert connection.exec_driver_sql("SELECT count(*) FROM sa_jobqueue.job_limit").scalar_one() == 0
        assert connection.exec_driver_sql("SELECT count(*) FROM own_queue.audit").scalar_one() == 3
