"""What a hostile viewer, a hostile row, or a bad day sends: it is answered in words, never with a fault of the server's."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import Connection, Engine, create_engine, func, insert, text, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import QueuePool

from sa_jobqueue.dashboard import Access
from sa_jobqueue.dashboard.database import PATIENCE, Database
from sa_jobqueue.dashboard.pages import PAGES
from sa_jobqueue.dashboard.refusals import refusal_of
from sa_jobqueue.doctor import Examination, Finding, look_at
from sa_jobqueue.doctor.examine import Check
from sa_jobqueue.models import Job, WorkerRow, WorkflowRow
from sa_jobqueue.statements import set_limit
from tests.support.browsing import Seen, Viewer
from tests.support.factory import make_job, statuses

_DEEP = "[" * 5_000 + "]" * 5_000


@pytest.fixture
def connection(engine: Engine) -> Any:
    with engine.connect() as made:
        yield made


# ---- what a request says


@pytest.mark.parametrize(
    "origin",
    ["http://[", "null", "//ops.test", "file://ops.test", "http://ops.test/x", "http://ops.test@evil.example", "http://ops.test, http://evil.example"],
)  # fmt: skip
def test_an_origin_that_is_not_quite_ours_is_refused(engine: Engine, origin: str) -> None:
    assert Viewer(engine).client.post("/act/retry", data={"id": 1}, headers={"origin": origin}).status_code == 403


@pytest.mark.parametrize(
    "args",
    ['{"a": "\\u0000"}', '{"a": "\\ud800"}', '{"a": 1e999}', '{"a": NaN}', '{"a": ' + "9" * 5_000 + "}", f'{{"a": {_DEEP}}}'],
    ids=["nul", "surrogate", "infinite", "nan", "long number", "deep"],
)  # fmt: skip
def test_arguments_that_no_row_can_have_are_refused(engine: Engine, connection: Connection, args: str) -> None:
    """As a filter, and as new arguments of a job."""
    id = make_job(connection, "failed")
    connection.commit()
    viewer = Viewer(engine)
    assert viewer.get("/jobs", args=args).status_code == 400
    assert viewer.send("retry", {"args": args, "confirmed": "yes"}).status_code == 400
    assert viewer.send("edit", {"id": id, "args": args}).status_code == 400
    assert statuses(connection)[id] == "failed"


@pytest.mark.parametrize("name", ["older_than", "newer_than"])
def test_an_age_before_all_times_is_refused(engine: Engine, name: str) -> None:
    answer = Viewer(engine).get("/jobs", **{name: "9999999d"})
    assert answer.status_code == 400
    assert "cannot take a value" in answer.text


@pytest.mark.parametrize("asked", ["0" * 19 + "1" + "9" * 5_000, "0" * 19 + "1" + "9" * 30, str(2**63), "9" * 60_000])
def test_a_number_that_is_no_id_is_looked_for_as_a_name(engine: Engine, asked: str) -> None:
    assert Viewer(engine).get("/find", q=asked).status_code == 200


# ---- what a row says


@pytest.mark.parametrize("meta", [f'{{"a": {_DEEP}}}', '{"a": 1e100000}'], ids=["deep", "long number"])
def test_a_workflow_whose_meta_cannot_be_read_is_shown(engine: Engine, connection: Connection, meta: str) -> None:
    id = connection.scalar(insert(WorkflowRow).values(name="strange").returning(WorkflowRow.id))
    connection.execute(update(WorkflowRow).values(meta=text("CAST(:meta AS jsonb)").bindparams(meta=meta)))
    connection.commit()
    assert "strange" in Viewer(engine).see(f"/workflows/{id}").text


def test_of_very_many_errors_the_last_are_shown(engine: Engine, connection: Connection) -> None:
    """A page with all of them would take seconds, each time that it refreshes itself."""
    errors = [{"attempt": number, "type": "E", "at": "2026-01-01T00:00:00Z"} for number in range(5_000)]
    id = make_job(connection, "failed", errors=errors)
    connection.commit()
    page = Viewer(engine).see(f"/jobs/{id}")
    assert "Older ones, not shown: 4,900." in page.text
    assert "Attempt 4999 " in page.text
    assert "Attempt 4900 " in page.text
    assert "Attempt 4899 " not in page.text


# ---- what is not the viewer's


@pytest.mark.parametrize(
    "access",
    [Access(can=["read"], where=Job.queue == "mine"), Access(can=["read"], queues=["mine"])],
    ids=["where", "queues"],
)
def test_the_jobs_of_others_are_not_named(engine: Engine, connection: Connection, access: Access) -> None:
    """Neither as what is run in its place, nor as what it is a duplicate of."""
    connection.exec_driver_sql("SELECT setval('sa_jobqueue.job_id_seq', 777000)")
    other = make_job(connection, "running", queue="theirs", task="slow")
    connection.execute(set_limit("slow", owner="task", running=1))
    waits = make_job(connection, "queued", queue="mine", task="slow")
    copy = make_job(connection, "cancelled", queue="mine", task="slow", duplicate_of=other)
    connection.commit()
    assert str(other) in Viewer(engine).see(f"/jobs/{copy}").text
    for id in (waits, copy):
        page = Viewer(engine, access).see(f"/jobs/{id}")
        assert str(other) not in page.html


def test_how_many_jobs_of_others_are_ahead_is_not_said(engine: Engine, connection: Connection) -> None:
    for _ in range(3):
        make_job(connection, "queued", queue="shared", task="theirs")
    id = make_job(connection, "queued", queue="shared", task="mine")
    connection.execute(
        insert(WorkerRow).values(
            id=uuid4(), host="host", pid=1, queues=["shared"], concurrency=4, version="1", started_at=func.now(), seen_at=func.now(),
            lease=60.0, schema_version=1, tasks={"mine": {}, "theirs": {}},
        )
    )  # fmt: skip
    connection.commit()
    assert "behind 3 jobs of queue shared" in Viewer(engine).see(f"/jobs/{id}").text
    access = Access(can=["read"], where=Job.task == "mine")
    assert "behind others of queue shared" in Viewer(engine, access).see(f"/jobs/{id}").text


# ---- what the database says


class _Said(Exception):
    def __init__(self, sqlstate: str) -> None:
        super().__init__(f"said {sqlstate}")
        self.sqlstate = sqlstate


@pytest.mark.parametrize(
    ("state", "what"),
    [
        ("40001", "conflict"), ("40P01", "conflict"), ("25P03", "slow"), ("25P04", "slow"), ("22008", "value"), ("54001", "value"),
        ("23505", "refused"), ("23514", "refused"), ("P0001", "refused"), ("XX001", None),
    ],
)  # fmt: skip
def test_what_the_database_refuses_has_words(state: str, what: str | None) -> None:
    """A standby gives up what is in the way of what it has to replay; a table of the application's has constraints and triggers."""
    found = refusal_of(DBAPIError("SELECT", {}, _Said(state)))
    assert (None if found is None else found.what) == what


def test_an_action_that_is_given_up_in_the_middle_says_what_was_done(engine: Engine, connection: Connection) -> None:
    for _ in range(2):
        connection.exec_driver_sql(
            "INSERT INTO sa_jobqueue.job (task, status, finished_at) SELECT 'a_task', 'failed', now() FROM generate_series(1, 1000)"
        )
    last = connection.exec_driver_sql("SELECT max(id) FROM sa_jobqueue.job").scalar()
    connection.exec_driver_sql(
        f"ALTER TABLE sa_jobqueue.job ADD CONSTRAINT not_this CHECK (id <> {last} OR status <> 'queued')"
    )
    connection.commit()
    try:
        answer = Viewer(engine).send("retry", {"status": "failed", "confirmed": "yes"})
    finally:
        connection.exec_driver_sql("ALTER TABLE sa_jobqueue.job DROP CONSTRAINT not_this")
        connection.commit()
    said = Seen(answer.text).text
    assert answer.status_code == 409
    assert "not_this" in said
    assert "a_task" not in said  # the row itself is not shown
    assert "Done before that: 1,000 jobs." in said
    assert sorted(statuses(connection).values()).count("queued") == 1_000


def test_a_check_of_the_doctor_that_takes_too_long_says_the_limit_that_it_had(connection: Connection) -> None:
    """A page gives up sooner than the command does."""

    def look(examination: Examination) -> Finding:
        examination.connection.exec_driver_sql("SET LOCAL statement_timeout = '10ms'")
        examination.connection.exec_driver_sql("SELECT pg_sleep(5)")
        raise AssertionError

    slow = Check("slow", "", look)
    (found,) = look_at(Examination(connection), checks=[slow], patience=PATIENCE)
    assert found.detail.startswith("it took longer than 2 s, and was given up")


# ---- how it is served


def test_one_connection_is_enough_for_all_pages(engine: Engine, connection: Connection) -> None:
    """No page needs a second one while it holds the first."""
    make_job(connection, "failed")
    connection.commit()
    small = create_engine(engine.url, poolclass=QueuePool, pool_size=1, max_overflow=0, pool_timeout=20)
    viewer = Viewer(small)
    paths = [page.path for page in PAGES if "{" not in page.path]
    with viewer.client as client, ThreadPoolExecutor(8) as threads:
        assert set(threads.map(lambda path: client.get(path).status_code, paths * 2)) == {200}
    small.dispose()


def test_two_event_loops_share_one_dashboard(engine: Engine) -> None:
    """As where an application serves it from two threads; also where both have more to read than may be read at once."""
    database = Database(engine)

    def serve(_: int) -> list[int]:
        async def look_often() -> list[int]:
            return await asyncio.gather(
                *(database.read(lambda one: one.scalar(text("SELECT 1 FROM pg_sleep(0.05)"))) for _ in range(12))
            )

        return asyncio.run(look_often())

    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(serve, range(2))) == [[1] * 12] * 2


@pytest.mark.parametrize("name", ["error", "subject", "id"])
def test_an_address_with_very_many_values_is_refused(engine: Engine, name: str) -> None:
    """Each is a condition of its own, and is made on the event loop of the application."""
    page = Viewer(engine).see("/jobs", expected=400, **{name: [str(number) for number in range(1, 4_901)]})
    assert f"{name}: '4,900 values' was given, expected at most 100" in page.text
