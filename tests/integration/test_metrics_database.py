"""The metrics of the database, collected from a real one: values, limits, and what happens when it is busy or away."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from sqlalchemy import Engine, create_engine, event, func, insert, text
from sqlalchemy.ext.asyncio import AsyncEngine

from sa_jobqueue import Registry, Worker, enqueue, task
from sa_jobqueue.errors import ConfigurationError
from sa_jobqueue.metrics import QueueCollector, WorkerCollector, metrics_app, metrics_wsgi_app, parts
from sa_jobqueue.metrics.names import DATABASE, METRICS, WORKER, Metric
from sa_jobqueue.metrics.parts import Families
from sa_jobqueue.migrations.grants import Can, grant_statements
from sa_jobqueue.models import WorkerRow
from sa_jobqueue.rules.outcomes import Completed
from sa_jobqueue.sql.store import default_store
from sa_jobqueue.statements import cancel_workflows, pause_workflows
from tests.support import pooler
from tests.support.databases import Databases, connect
from tests.support.factory import make_job, make_jobs
from tests.support.limits import key, limit
from tests.support.waiting import wait_until
from tests.support.workflows import Flow
from tests.support.working import add_one, working


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No part is left out because a busy machine stands still for some seconds."""
    monkeypatch.setattr("sa_jobqueue.metrics.database._PATIENCE", timedelta(seconds=20))
    monkeypatch.setattr("sa_jobqueue.metrics.database._ALL", timedelta(seconds=60))


class Scrape(dict[tuple[str, tuple[tuple[str, str], ...]], float]):
    """The samples of one scrape, by name and labels."""

    def get_value(self, name: str, /, **labels: str) -> float | None:
        """One of them."""
        return self.get((name, tuple(sorted(labels.items()))))

    def of(self, name: str) -> dict[str, float]:
        """The samples of a metric with one label, by that."""
        return {labels[0][1]: value for (each, labels), value in self.items() if each == name}


def scrape(collector: Any) -> Scrape:
    """What a scrape brings, which must also be text that Prometheus reads."""
    registry = CollectorRegistry()
    registry.register(collector)
    assert generate_latest(registry)
    samples = [sample for family in registry.collect() for sample in family.samples]
    return Scrape({(one.name, tuple(sorted(one.labels.items()))): one.value for one in samples})


@contextmanager
def counting(engine: Engine) -> Iterator[list[str]]:
    """The statements that are sent meanwhile."""
    sent: list[str] = []

    def note(connection: Any, cursor: Any, statement: str, *rest: Any) -> None:
        sent.append(statement)

    event.listen(engine, "before_cursor_execute", note)
    try:
        yield sent
    finally:
        event.remove(engine, "before_cursor_execute", note)


def add_worker(connection: Any, *queues: str, seen: timedelta = timedelta(0)) -> None:
    """The row of a worker that was seen that long ago."""
    connection.execute(
        insert(WorkerRow).values(
            id=uuid.uuid4(), host="a", pid=1, queues=list(queues), concurrency=1, version="1", seen_at=func.now() - seen
        )
    )  # fmt: skip


def test_queues_are_counted_with_their_age_and_who_serves_them(engine: Engine) -> None:
    """Due and not, running, failed; a queue without jobs that a worker serves has zeros."""
    with engine.begin() as connection:
        make_job(connection, queue="mail", run_at=timedelta(seconds=-90))
        make_job(connection, queue="mail", run_at=timedelta(hours=1))
        make_job(connection, "running", queue="mail")
        make_job(connection, "failed", queue="index")
        add_worker(connection, "mail", "idle")
        add_worker(connection, "mail", seen=timedelta(hours=1))
    found = scrape(QueueCollector(engine, findings=False))
    assert found.of("sa_jobqueue_queued") == {"idle": 0, "index": 0, "mail": 2}
    assert found.of("sa_jobqueue_due") == {"idle": 0, "index": 0, "mail": 1}
    assert found.of("sa_jobqueue_running") == {"idle": 0, "index": 0, "mail": 1}
    assert found.of("sa_jobqueue_failed") == {"idle": 0, "index": 1, "mail": 0}
    assert found.of("sa_jobqueue_queue_workers") == {"idle": 1, "index": 0, "mail": 1}
    assert 90 <= found.of("sa_jobqueue_oldest_due_seconds")["mail"] < 200
    assert found.of("sa_jobqueue_workers") == {"live": 1, "stale": 1}


def test_limits_and_pauses_are_measured(engine: Engine) -> None:
    """Of queues and tasks; what a paused key keeps waiting is added to its queue, which may have no limits."""
    with engine.begin() as connection:
        limit(connection, "sync", running=3)
        limit(connection, "mail", paused_at=text("now()"))
        limit(connection, "a_task", owner="task", running=50, key_running=1)
        key(connection, "42", "index", paused_at=text("now()"))
        key(connection, "host", "a_task", owner="task", broken_until=text("now() + interval '1 hour'"))
        make_jobs(connection, 2, "running", queue="sync")
        make_jobs(connection, 3, queue="mail", run_at=timedelta(seconds=-1))
        make_job(connection, queue="mail", run_at=timedelta(hours=1))
        for name in ("42", "42", "43"):
            make_job(connection, queue="index", concurrency_key=name)
    found = scrape(QueueCollector(engine, findings=False))

    def of(metric: str) -> dict[str, float | None]:
        owners = {"sync": "queue", "mail": "queue", "index": "queue", "a_task": "task"}
        return {
            name: found.get_value(f"sa_jobqueue_{metric}", owner=owner, name=name) for name, owner in owners.items()
        }

    assert of("limited") == {"sync": 1, "mail": 0, "index": 0, "a_task": 1}
    assert of("paused") == {"sync": 0, "mail": 1, "index": 0, "a_task": 0}
    assert of("limit_running") == {"sync": 3, "mail": None, "index": None, "a_task": 50}
    assert of("limit_used") == {"sync": 2, "mail": None, "index": None, "a_task": 2}
    assert of("paused_due") == {"sync": 0, "mail": 3, "index": 2, "a_task": 0}
    assert found.of("sa_jobqueue_breakers_open") == {"a_task": 1}
    assert found.of("sa_jobqueue_ready_keys") == {"index": 2}


def test_without_limits_three_empty_tables_are_looked_at(engine: Engine) -> None:
    """The limits, the keys, and the index of jobs with keys. No series comes of it."""
    families = Families()
    with engine.begin() as connection:
        make_jobs(connection, 3)
        with counting(engine) as sent:
            parts.add_limits(connection, default_store, families)
    assert len(sent) == 3
    assert list(families) == []


def test_workflows_are_measured(engine: Engine) -> None:
    """By what they do; and what was not read, with the time since the job ended."""
    with engine.begin() as connection:
        flows = [Flow(connection, "a", "b: a") for _ in range(5)]
        flows[0].fail("a")
        connection.execute(pause_workflows(flows[1].id)).all()
        for flow in flows[2:4]:
            flow.end("a", Completed())
        connection.execute(
            text("UPDATE sa_jobqueue.job SET finished_at = now() - interval '90 s' WHERE status = 'completed'")
        )
        connection.execute(
            text("UPDATE sa_jobqueue.workflow SET created_at = now() - interval '1 h', deadline_at = now()")
        )
    found = scrape(QueueCollector(engine, findings=False))
    assert found.of("sa_jobqueue_workflows") == {"running": 3, "paused": 1, "failed": 1}
    assert found.get_value("sa_jobqueue_workflow_events") == 2
    assert found.get_value("sa_jobqueue_workflows_behind") == 2
    assert found.get_value("sa_jobqueue_workflows_overdue") == 4
    assert 90 <= (found.get_value("sa_jobqueue_workflow_behind_seconds") or 0) < 200
    assert 3_600 <= (found.get_value("sa_jobqueue_workflow_oldest_seconds") or 0) < 3_700
    with engine.begin() as connection:
        for flow in (*flows[2:4], flows[4]):
            flow.connection = connection
            connection.execute(cancel_workflows(flow.id)).all()
            flow.settle()
    found = scrape(QueueCollector(engine, findings=False))
    # Those whose deadline was over have failed.
    assert found.of("sa_jobqueue_workflows") == {"running": 0, "paused": 1, "failed": 4}
    assert found.get_value("sa_jobqueue_workflow_events") == 0
    assert found.get_value("sa_jobqueue_workflow_oldest_seconds") == 0
    assert found.get_value("sa_jobqueue_workflow_behind_seconds") == 0


def test_without_workflows_one_statement_looks_for_them(engine: Engine) -> None:
    """No series comes of it."""
    families = Families()
    with engine.begin() as connection:
        make_jobs(connection, 3)
        with counting(engine) as sent:
            parts.add_workflows(connection, default_store, families)
    assert len(sent) == 1
    assert list(families) == []


def test_cleanup_that_is_behind_is_measured(engine: Engine) -> None:
    """In jobs and in time."""
    with engine.begin() as connection:
        make_job(connection, "completed", purge_at=timedelta(seconds=-600))
    found = scrape(QueueCollector(engine, findings=False))
    assert found.get_value("sa_jobqueue_purge_overdue") == 1
    assert 600 <= (found.get_value("sa_jobqueue_purge_overdue_seconds") or 0) < 700


def test_every_metric_of_the_table_is_exposed_and_no_other(engine: Engine, url: str, registry: Registry) -> None:
    """With the labels that the table says; apart from standbys, which are not here."""

    @task(registry=registry, name="runs")
    def runs() -> None: ...

    with engine.begin() as connection:
        limit(connection, "mail", running=1)
        limit(connection, "calls", owner="task", running=1)
        make_job(connection, queue="mail", concurrency_key="a")
        Flow(connection, "a")
    collector = QueueCollector(engine, keep=0.0)
    with working(url, registry) as worker:
        add_one(engine, enqueue(runs))
        wait_until(lambda: worker.counts["completed"] == 1)
        wait_until(lambda: scrape(collector).of("sa_jobqueue_workers")["live"] == 1)
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql("VACUUM ANALYZE sa_jobqueue.job")
        wait_until(lambda: any(family.name == "sa_jobqueue_doctor_finding" for family in collector.collect()))
        _check([*WorkerCollector(worker).collect()], WORKER)
        _check([*collector.collect()], [one for one in DATABASE if "replication" not in one.name])


def _check(families: list[Any], expected: Any) -> None:
    """Names, kinds, help and labels."""
    by_name: dict[str, Metric] = {metric.name.removesuffix("_total"): metric for metric in METRICS}
    missing = {metric.name for metric in expected} - {by_name[family.name].name for family in families}
    assert {name for name in missing if "_io_" not in name} == set()  # the others are there from PostgreSQL 16 on
    for family in families:
        metric = by_name[family.name]
        assert (family.type, family.documentation) == (metric.kind, metric.help)
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(metric.labels)


def test_more_queues_than_two_hundred_are_added_up_as_other(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums of counts, and the largest age."""
    monkeypatch.setattr(parts, "_MOST_QUEUES", 2)
    with engine.begin() as connection:
        for number in range(5):
            make_job(connection, queue=f"q{number}", run_at=timedelta(seconds=-100 * number))
            limit(connection, f"q{number}", running=2)
    found = scrape(QueueCollector(engine, findings=False))
    assert found.of("sa_jobqueue_queued") == {"q0": 1, "q1": 1, "other": 3}
    assert found.get_value("sa_jobqueue_limit_running", owner="queue", name="other") == 6
    assert 400 <= found.of("sa_jobqueue_oldest_due_seconds")["other"] < 500


def test_scrapes_within_some_seconds_and_at_once_look_once(engine: Engine) -> None:
    """However many ask."""
    collector = QueueCollector(engine, findings=False)
    with counting(engine) as sent, ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: list(collector.collect()), range(16)))
        once = len(sent)
        list(collector.collect())
        assert len(sent) == once
    assert sum("pg_stat_database" in statement for statement in sent) == 1
    assert sum("READ ONLY" in statement for statement in sent) == 1


def test_a_database_that_is_away_is_a_metric_and_no_error(
    engine: Engine, database_url: str, databases: Databases, caplog: pytest.LogCaptureFixture
) -> None:
    """And so is its return. The log says each once."""
    if pooler.is_pooled(database_url):
        pytest.skip("PgBouncer lets its clients wait")
    collector = QueueCollector(engine, keep=0.0, findings=False)
    assert scrape(collector).get_value("sa_jobqueue_database_up") == 1
    engine.dispose()
    with databases.away(database_url):
        assert dict(scrape(collector)) == {("sa_jobqueue_database_up", ()): 0}
        assert dict(scrape(collector)) == {("sa_jobqueue_database_up", ()): 0}
    assert scrape(collector).get_value("sa_jobqueue_database_up") == 1
    assert caplog.text.count("no metrics of the database") == 1


def test_a_database_without_our_tables_is_up_and_says_what_cannot_be_read(empty_database_url: str) -> None:
    """What needs none of our tables is there."""
    engine = create_engine(empty_database_url)
    found = scrape(QueueCollector(engine, findings=False))
    engine.dispose()
    assert found.get_value("sa_jobqueue_database_up") == 1
    assert found.of("sa_jobqueue_database_read") == {
        "cleanup": 0, "jobs": 0, "limits": 0, "pressure": 1, "schedules": 0, "server": 1, "tables": 1, "workflows": 0,
    }  # fmt: skip
    assert found.get_value("sa_jobqueue_database_connections")


def test_a_locked_table_costs_its_own_part_and_soon(engine: Engine, url: str) -> None:
    """A statement waits for a lock for a quarter of a second; the other parts are there."""
    with connect(url) as other, other.transaction():
        other.execute("LOCK TABLE sa_jobqueue.schedule IN ACCESS EXCLUSIVE MODE")
        read = scrape(QueueCollector(engine, findings=False)).of("sa_jobqueue_database_read")
    assert (read["schedules"], read["jobs"], read["server"]) == (0, 1, 1)


def test_a_statement_that_takes_too_long_costs_its_own_part(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server ends it, and the rest goes on."""

    def slow(connection: Any, store: Any, families: Any) -> None:
        connection.execute(text("SELECT pg_sleep(60)"))

    def cleanup(connection: Any, store: Any, families: Any) -> None:
        connection.execute(text("SET LOCAL statement_timeout = 0"))  # a busy machine may need more than that
        parts.add_cleanup(connection, store, families)

    monkeypatch.setattr("sa_jobqueue.metrics.database._PATIENCE", timedelta(seconds=0.1))
    monkeypatch.setattr("sa_jobqueue.metrics.database.PARTS", {"slow": slow, "cleanup": cleanup})
    found = scrape(QueueCollector(engine, findings=False))
    assert found.of("sa_jobqueue_database_read") == {"cleanup": 1, "slow": 0}


def test_a_look_that_hangs_holds_up_no_other_scrape_for_long(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that does not answer at all is told as one that is away."""
    begun, go = threading.Event(), threading.Event()

    def hangs(connection: Any, store: Any, families: Any) -> None:
        begun.set()
        go.wait(60)

    monkeypatch.setattr("sa_jobqueue.metrics.database._TURN", 0.05)
    monkeypatch.setattr("sa_jobqueue.metrics.database.PARTS", {"hangs": hangs})
    collector = QueueCollector(engine, findings=False)
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(lambda: list(collector.collect()))
        assert begun.wait(30)
        assert scrape(collector).get_value("sa_jobqueue_database_up") == 0
        go.set()
        first.result()
    assert scrape(collector).get_value("sa_jobqueue_database_up") == 1


def test_a_role_that_may_only_read_is_enough(engine: Engine, url: str, databases: Databases) -> None:
    """All parts are read by a role with Can.READ, which writes nothing."""
    if pooler.is_pooled(url):
        pytest.skip("PgBouncer does not know the role")
    role = f"{databases.run}_metrics"
    with engine.begin() as connection:
        connection.execute(text(f"CREATE ROLE {role}"))
        for statement in grant_statements(role, [Can.READ]):
            connection.execute(text(statement))
    reader = create_engine(engine.url)
    event.listen(reader, "connect", lambda raw, record: raw.execute(f"SET ROLE {role}") and raw.commit())
    try:
        read = scrape(QueueCollector(reader, findings=False)).of("sa_jobqueue_database_read")
        assert set(read.values()) == {1}
    finally:
        reader.dispose()
        with engine.begin() as connection:
            connection.execute(text(f"DROP OWNED BY {role}"))
            connection.execute(text(f"DROP ROLE {role}"))


def test_an_engine_in_autocommit_is_read_in_a_transaction_all_the_same(url: str) -> None:
    """With its limits of time."""
    engine = create_engine(url, isolation_level="AUTOCOMMIT", **pooler.engine_options(url))
    found = scrape(QueueCollector(engine, findings=False))
    engine.dispose()
    assert set(found.of("sa_jobqueue_database_read").values()) == {1}


def test_the_tables_may_be_in_another_schema(engine: Engine) -> None:
    """As `schema` says."""
    found = scrape(QueueCollector(engine, schema="elsewhere", findings=False))
    assert found.of("sa_jobqueue_database_read")["jobs"] == 0


def test_an_async_engine_is_refused_with_what_to_do(async_engine: AsyncEngine) -> None:
    """A scrape comes from a thread without an event loop."""
    with pytest.raises(ConfigurationError, match=r"expected an Engine, not <.*AsyncEngine.*>.*create_engine"):
        QueueCollector(async_engine)  # type: ignore[arg-type]


def test_the_asgi_application_answers_without_blocking_the_loop(engine: Engine) -> None:
    """It looks on a thread; every path is the metrics."""
    application = metrics_app(engine, findings=False)
    sent: list[dict[str, Any]] = []
    loop_thread = threading.get_ident()
    threads: set[int] = set()
    event.listen(engine, "before_cursor_execute", lambda *_: threads.add(threading.get_ident()))

    async def ask() -> None:
        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": []}
        await application(scope, receive, send)

    asyncio.run(ask())
    assert sent[0]["status"] == 200
    assert b"sa_jobqueue_database_up 1.0" in sent[1]["body"]
    assert threads - {loop_thread} == threads != set()


def test_the_wsgi_application_answers(engine: Engine) -> None:
    """For Flask and the like."""
    said: list[str] = []
    body = metrics_wsgi_app(engine, findings=False)(
        {"REQUEST_METHOD": "GET", "PATH_INFO": "/"}, lambda status, headers: said.append(status)
    )
    assert said == ["200 OK"]
    assert b"sa_jobqueue_database_up 1.0" in b"".join(body)


def test_a_worker_that_has_not_begun_has_metrics(url: str, registry: Registry) -> None:
    """Nothing but zeros."""
    found = scrape(WorkerCollector(Worker(url, {"default": 1}, registry=registry)))
    assert found.get_value("sa_jobqueue_processes") == 0
    assert found.get_value("sa_jobqueue_claimed_total") == 0
