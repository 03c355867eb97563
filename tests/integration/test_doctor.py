"""The doctor on a database that is ill in one way: it finds that, says what to do, and finds it well afterwards."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from types import SimpleNamespace

import psycopg
import pytest
from sqlalchemy import Engine, NullPool, create_engine, event, make_url, select, text
from sqlalchemy.orm import Session

from sa_jobqueue import Job, Registry, enqueue, task
from sa_jobqueue.doctor import CHECKS, Examination, Finding, Thresholds, examine, look_at
from sa_jobqueue.doctor.checks import connection as checking
from sa_jobqueue.doctor.finding import found, worst
from sa_jobqueue.errors import ConfigurationError
from sa_jobqueue.migrations import runner, upgrade_database
from sa_jobqueue.tasks.registry import TaskName
from tests.support import ills, pooler
from tests.support.databases import connect, driver_url
from tests.support.ills import look
from tests.support.waiting import wait_until
from tests.support.working import working

Ill = Callable[[str], AbstractContextManager[None]]

DEFAULT = Thresholds()
#: What a test is to blame for that inserts rows with ids of its own, of queues that nobody serves.
INSERTED = {"queues", "sequences"}


@pytest.fixture
def database_url(database_url: str) -> str:
    """The URL past a pooler, whose sessions would be other clients' as well."""
    return pooler.direct(database_url)


@pytest.mark.parametrize(
    ("ill", "check", "thresholds", "detail", "advice"),
    [
        (
            ills.old_snapshot, "snapshot", Thresholds(snapshot=(0.0, 0.0)),
            "(a forgotten report, role postgres, idle in transaction) holds a snapshot for ",
            "SELECT pg_terminate_backend(",
        ),
        (
            ills.prepared_transaction, "snapshot", Thresholds(snapshot=(0.0, 0.0)),
            "the prepared transaction order of ", "ROLLBACK PREPARED 'order of ",
        ),
        (
            ills.dead_rows, "dead-rows", Thresholds(dead_rows=(1_000, 100_000)),
            "unique_key has 120,000 dead rows and 0 live rows", "VACUUM sa_jobqueue.unique_key",
        ),
        (
            ills.dead_rows, "bloat", Thresholds(bloat_ratio=(2.0, 4.0), bloat_bytes=(1_000_000, 4_000_000)),
            "times the estimated need of its rows", "VACUUM FULL sa_jobqueue.unique_key",
        ),
        (ills.dead_rows, "vacuum", DEFAULT, "autovacuum is off for unique_key", "RESET (autovacuum_enabled)"),
        (ills.no_autovacuum, "vacuum", DEFAULT, "autovacuum is off for job", "ALTER TABLE sa_jobqueue.job RESET"),
        (ills.invalid_index, "indexes", DEFAULT, "one_of_each is not valid", "DROP INDEX CONCURRENTLY sa_jobqueue.one_of_each"),
        (
            ills.sequence_behind, "sequences", DEFAULT, "the next id of job is 1, and its highest id is 4,711",
            "`SELECT setval(pg_get_serial_sequence('sa_jobqueue.job', 'id'), max(id) + 100000) FROM sa_jobqueue.job`",
        ),
        (ills.no_claim_index, "indexes", DEFAULT, "missing: job_claim_idx", "sa-jobqueue migrate --sql"),
        (ills.no_claim_index, "plans", DEFAULT, "the claim: ", "ANALYZE sa_jobqueue.job"),
        (
            ills.full_notify_queue, "notify-queue", Thresholds(notify_queue=(0.0001, 0.0001)),
            "the notification queue is 0.0", "pg_terminate_backend",
        ),
        (
            ills.row_lock, "locks", Thresholds(lock_wait=(0.0, 0.0)),
            "uses job and waits for process", "SELECT pg_terminate_backend(",
        ),
        (
            ills.unserved_queue, "queues", DEFAULT,
            "due jobs that no live worker serves: images\\x1b (1)", "sa-jobqueue work --queue NAME",
        ),
        (ills.expired_lease, "leases", DEFAULT, "1 job running with an expired lease", "any worker rescues them"),
        (
            ills.forgotten_pause, "limits", DEFAULT,
            "jobs wait because of a pause: queue mail\\x1b (for 2d, 'the provider is down'; 1 due)", "`sa-jobqueue resume mail\\x1b`",
        ),
        (
            ills.lapsed_permits, "limits", DEFAULT,
            "all permits are held by jobs whose lease has expired: task a_task (2 of 2: jobs 71, 72)", "any worker rescues them",
        ),
        (ills.stray_key, "unique", DEFAULT, "as after a DELETE by hand: 'order 7' of job 4711", "a worker frees them"),
        (
            ills.waiting_in_a_circle, "workflows", DEFAULT,
            "jobs wait for each other: 7001 → 7002 → 7001", "sa-jobqueue workflow cancel ID",
        ),
        (
            ills.waiting_for_an_ended_job, "workflows", DEFAULT,
            "1 job waiting for others that have ended, as after an UPDATE by hand: 7002", "a worker releases or cancels",
        ),
        (
            ills.unread_workflow, "workflows", DEFAULT,
            "no worker has read the events of: workflow 7, the first for 3h", "start a worker",
        ),
        (
            ills.unanswered_question, "signals", DEFAULT,
            "questions without an answer: job 7001 (go\\x1b, for 8d)", "`sa-jobqueue signal NAME JSON`",
        ),
        (
            ills.overdue_jobs, "cleanup", Thresholds(overdue_rows=10),
            "10 jobs should be deleted by now, the first for 3h", "workers delete them",
        ),
        (
            ills.unknown_task, "tasks", DEFAULT,
            "no live worker knows the task: shop.send in mail", "@task(aliases=[...])",
        ),
        (
            ills.near_timeout, "timeouts", DEFAULT,
            "shop.post: the slowest 1 % of its runs reach its timeout of 2.5 s", "@task(timeout=5)",
        ),
        (
            ills.failing_task, "failures", DEFAULT,
            "shop.charge: jobs failed for good 60 of 100 times", "`sa-jobqueue retry --task shop.charge`",
        ),
        (ills.late_schedule, "schedules", DEFAULT, "no worker has enqueued due jobs of: nightly report", "start a worker"),
        (ills.failing_schedule, "schedules", DEFAULT, "nightly report (no such time zone)", "sa-jobqueue schedule list"),
        (ills.paused_schedule, "schedules", DEFAULT, "paused because its jobs failed: nightly report", "sa-jobqueue schedule resume"),
        (ills.newer_schema, "schema", DEFAULT, "has version 99", "upgrade the package"),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)  # fmt: skip
def test_an_ill_is_found_and_is_gone_when_it_is_mended(
    database_url: str, ill: Ill, check: str, thresholds: Thresholds, detail: str, advice: str
) -> None:
    """A problem with what was found and what to do; then the same check finds it well, and so do all others at the default limits."""
    with ill(database_url):
        finding = look(database_url, thresholds)[check]
        assert finding.level == "problem", finding
        assert detail in finding.detail
        assert advice in finding.advice

    def well() -> dict[str, Finding]:
        again = look(database_url, thresholds)
        assert again[check].level == "ok", again[check]
        return again

    mended = wait_until(well)
    after = mended if thresholds is DEFAULT else look(database_url)
    assert {name: one for name, one in after.items() if one.level == "problem" and name not in INSERTED} == {}
    assert all(one.advice == "" for one in after.values() if one.level == "ok")


def test_a_database_that_is_well_is_found_well(database_url: str) -> None:
    """Each check once, in the order of the list."""
    with connect(database_url) as connection:
        connection.execute(ills.WORKER, [["mail"]])
    findings = look(database_url)
    assert list(findings) == [check.name for check in CHECKS]
    assert {one.level for name, one in findings.items() if name not in {"slots", "connections"}} == {"ok"}
    plans = findings["plans"].detail
    assert "the claim reads job_claim_idx and job_pkey" in plans
    assert "the completion reads job_running_idx" in plans


def test_the_doctor_writes_nothing(database_url: str) -> None:
    """Its transaction is READ ONLY, and is rolled back. No prepared statement is left behind."""
    engine = create_engine(database_url)
    said: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda *given: said.append(given[2]))
    examine(engine, probe=False)
    assert "SET TRANSACTION READ ONLY" in said[0]
    assert any(one.startswith("PREPARE") for one in said)
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT count(*) FROM pg_prepared_statements WHERE from_sql")) == 0
        assert connection.scalar(text("SHOW transaction_read_only")) == "off"
        assert connection.scalar(text("SHOW enable_seqscan")) == "on"
    engine.dispose()


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2", "pg8000"])
def test_an_engine_of_any_driver_will_do(database_url: str, driver: str) -> None:
    """For an application that runs the checks itself, also in AUTOCOMMIT mode; only LISTEN needs psycopg 3."""
    with connect(database_url) as connection:
        connection.execute(ills.WORKER, [["mail"]])
    engine = create_engine(driver_url(database_url, driver), poolclass=NullPool, isolation_level="AUTOCOMMIT")
    findings = {one.name: one for one in examine(engine, probe=False)}
    assert "the claim reads job_claim_idx" in findings["plans"].detail
    assert {one.level for name, one in findings.items() if name not in {"slots", "connections"}} == {"ok"}


def test_names_are_quoted_where_sql_wants_that(empty_database_url: str) -> None:
    """In the commands that are shown, for another schema."""
    upgrade_database(empty_database_url, schema='My "Jobs"')
    with connect(empty_database_url) as connection:
        connection.execute('ALTER TABLE "My ""Jobs""".job SET (autovacuum_enabled = off)')
    engine = create_engine(empty_database_url, poolclass=NullPool)
    engine = engine.execution_options(schema_translate_map={"sa_jobqueue": 'My "Jobs"'})
    findings = {one.name: one for one in examine(engine, probe=False)}
    assert findings["vacuum"].advice == '`ALTER TABLE "My ""Jobs""".job RESET (autovacuum_enabled)`'
    assert "the claim reads job_claim_idx" in findings["plans"].detail


def test_a_missing_schema_ends_the_checks(empty_database_url: str) -> None:
    """What needs the tables is not asked."""
    findings = look(empty_database_url)
    assert list(findings) == ["database", "clock", "schema"]
    assert findings["schema"].advice == "run `sa-jobqueue migrate`"
    assert "is missing; version 1 is needed" in findings["schema"].detail


def test_an_older_schema_is_a_problem(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is migrated before the workers of the new release start."""
    monkeypatch.setattr(runner, "CURRENT", 2)
    finding = look(database_url)["schema"]
    assert (finding.level, finding.advice) == ("problem", "run `sa-jobqueue migrate`")
    assert "has version 1; version 2 is needed" in finding.detail


def test_a_newer_schema_that_works_is_a_notice(database_url: str) -> None:
    """As while a deployment rolls."""
    with connect(database_url) as connection:
        connection.execute("INSERT INTO sa_jobqueue.schema_version (version, compatible_with) VALUES (2, 1)")
    finding = look(database_url)["schema"]
    assert finding.level == "notice"
    assert "version 2, newer than this release's 1" in finding.detail


def test_an_old_server_and_a_wrong_clock_are_problems(monkeypatch: pytest.MonkeyPatch, database_url: str) -> None:
    """Each with what to do."""
    monkeypatch.setattr(checking, "_OLDEST_SERVER", 99)
    monkeypatch.setattr(checking, "time", SimpleNamespace(time=lambda: time.time() - 10))
    findings = look(database_url)
    assert findings["database"].detail.endswith("99 or newer is needed")
    assert "ahead of this machine" in findings["clock"].detail
    assert findings["clock"].advice.startswith("set the clocks")
    assert 9 < findings["clock"].numbers["seconds"] < 60


def test_a_read_only_database_is_a_problem(database_url: str) -> None:
    """An operator has made it so; the doctor's own transaction is READ ONLY as well, and is not meant."""
    assert look(database_url)["database"].level == "ok"
    with connect(database_url) as connection:
        name = make_url(database_url).database
        connection.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on'.encode())
    assert "read-only" in look(database_url)["database"].detail


def test_a_listen_that_hears_nothing_is_a_problem(monkeypatch: pytest.MonkeyPatch, database_url: str) -> None:
    """As behind a pooler, which gives NOTIFYs to the client that has the connection."""
    engine = create_engine(database_url, poolclass=NullPool)
    (heard,) = (one for one in examine(engine) if one.name == "wake-ups")
    assert heard.detail.startswith("a NOTIFY was heard after")
    monkeypatch.setattr(checking, "_NOTIFY_PATIENCE", 0.0)
    monkeypatch.setattr(psycopg.Connection, "notifies", lambda self, **options: iter(()))
    (deaf,) = (one for one in examine(engine) if one.name == "wake-ups")
    assert (deaf.level, deaf.detail) == ("problem", "LISTEN hears nothing")


def test_no_connection_that_listens_comes_back_to_the_pool(database_url: str) -> None:
    """The application's next transaction would be none: what it rolls back would stay."""
    engine = create_engine(database_url)
    (heard,) = (one for one in examine(engine) if one.name == "wake-ups")
    assert heard.level == "ok"
    with ExitStack() as stack:
        pooled = [stack.enter_context(engine.connect()) for _ in range(3)]
        for connection in pooled:
            assert connection.scalars(text("SELECT pg_listening_channels()")).all() == []
            raw = connection.connection.dbapi_connection
            assert isinstance(raw, psycopg.Connection)
            assert not raw.autocommit
    engine.dispose()


def test_over_another_driver_the_probe_says_how_to_leave_it_out(database_url: str) -> None:
    """All other checks can be made over any."""
    engine = create_engine(make_url(database_url).set(drivername="postgresql+psycopg2"), poolclass=NullPool)
    with pytest.raises(ConfigurationError, match=r"must use psycopg 3, .* probe=False"):
        examine(engine)
    assert {finding.name for finding in examine(engine, probe=False)} == {check.name for check in CHECKS}


def test_a_locked_table_makes_notices_and_holds_nothing_up(database_url: str) -> None:
    """As while VACUUM FULL runs: a check that has to wait for the table gives up, and the others go on."""
    with connect(database_url) as connection:
        connection.execute("BEGIN")
        connection.execute("LOCK TABLE sa_jobqueue.job IN ACCESS EXCLUSIVE MODE")
        findings = look(database_url)
    assert list(findings) == [check.name for check in CHECKS]
    assert findings["leases"].level == "notice"
    assert findings["leases"].detail.startswith("a table is locked")
    assert findings["connections"].level == "ok"


def test_a_check_that_the_server_refuses_is_said_and_the_others_go_on(database_url: str, engine: Engine) -> None:
    """A table of ours that is gone, say. Within the transaction of a caller, which goes on as well."""
    with connect(database_url) as connection:
        connection.execute("DROP TABLE sa_jobqueue.schedule CASCADE")
    with engine.begin() as connection:
        findings = {one.name: one for one in look_at(Examination(connection))}
        assert connection.scalar(text("SELECT 1")) == 1
    assert findings["schedules"].level == "problem"
    assert 'the check failed: relation "sa_jobqueue.schedule" does not exist' in findings["schedules"].detail
    assert findings["plans"].level == "ok"


def test_an_index_that_is_being_built_is_a_notice(database_url: str) -> None:
    """It is not valid yet, and will be."""
    build = "CREATE INDEX CONCURRENTLY by_task ON sa_jobqueue.job (task)"
    with connect(database_url) as building, connect(database_url) as writing:
        writing.execute("BEGIN")
        writing.execute("INSERT INTO sa_jobqueue.job (task) VALUES ('a_task')")
        thread = threading.Thread(target=building.execute, args=[build])
        thread.start()
        wait_until(lambda: look(database_url)["indexes"].level == "notice")
        assert look(database_url)["indexes"].detail == "by_task is being built"
        writing.execute("ROLLBACK")
        thread.join(30)
    assert look(database_url)["indexes"].level == "ok"


def test_an_old_snapshot_is_worse_where_rows_are_dead_already(database_url: str) -> None:
    """A report of some minutes is a notice as long as it costs nothing."""
    with ills.old_snapshot(database_url):
        limits = {"snapshot": (0.0, 1e9)}
        assert look(database_url, Thresholds(**limits))["snapshot"].level == "notice"
        assert look(database_url, Thresholds(**limits, dead_rows=(0, 10**9)))["snapshot"].level == "problem"


def test_workers_that_have_not_left_and_are_not_seen_are_a_notice(database_url: str) -> None:
    """And so is a database without workers: nothing would run there."""
    assert "no worker is alive" in look(database_url)["workers"].detail
    with connect(database_url) as connection:
        connection.execute(ills.WORKER, [["mail"]])
        assert look(database_url)["workers"].level == "ok"
        connection.execute("UPDATE sa_jobqueue.worker SET seen_at = now() - interval '5 min'")
    finding = look(database_url)["workers"]
    assert finding.level == "notice"
    assert (
        "no worker is alive; not seen for a minute, or with an expired lease, and have not left: web-1:7"
        in finding.detail
    )


def test_workers_of_several_releases_are_a_notice(database_url: str) -> None:
    """During a deployment it is right; afterwards it is not."""
    with connect(database_url) as connection:
        connection.execute(ills.WORKER, [["mail"]])
        assert look(database_url)["workers"].level == "ok"
        connection.execute(ills.WORKER, [["mail"]])
        connection.execute(
            "UPDATE sa_jobqueue.worker SET version = '2' WHERE id = (SELECT min(id::text)::uuid FROM sa_jobqueue.worker)"
        )
    finding = look(database_url)["workers"]
    assert finding.level == "notice"
    assert finding.detail.endswith("; several releases: 1 of 1, 1 of 2")


@pytest.mark.parametrize(
    ("timeout", "lease", "seconds", "said"),
    [
        (None, 60.0, 700.0, "99 % of its runs end within 29m 48s, and it has no timeout"),
        (3_600.0, 60.0, 0.3, "99 % of its runs end within 0.497 s, and its timeout is 1h"),
        (None, 7_200.0, 0.3, "99 % of its runs end within 0.497 s, and the lease is 2h"),
        (11.0, 60.0, 7.0, "99 % of its runs end within 9.95 s, and its timeout is 11 s"),
        (20.0, 60.0, 15.0, "the slowest 1 % of its runs may reach its timeout of 20 s"),
        (60.0, 60.0, 0.3, None),
    ],
)
def test_time_limits_that_fit_badly_are_notices(
    database_url: str, timeout: float | None, lease: float, seconds: float, said: str | None
) -> None:
    """No timeout for long runs; a timeout or a lease far away; a p99 that may be near the timeout, as far as a histogram tells."""
    with connect(database_url) as connection:
        connection.execute(ills.ABLE_WORKER, [lease, json.dumps({"shop.post": {"timeout": timeout, "aliases": []}})])
        ills.ran(connection, "shop.post", completed=100, seconds=seconds)
    finding = look(database_url)["timeouts"]
    assert (finding.level, finding.detail) == (
        ("notice", f"shop.post: {said}") if said else ("ok", "timeouts and leases fit the runs of 1 task")
    )


def test_few_runs_say_nothing_about_time_limits(database_url: str) -> None:
    """Nor do tasks that no worker knows."""
    with connect(database_url) as connection:
        connection.execute(ills.ABLE_WORKER, [60.0, '{"shop.post": {"timeout": 1.0}}'])
        ills.ran(connection, "shop.post", completed=19, seconds=2.0)
        ills.ran(connection, "shop.gone", completed=100, seconds=2.0)
    assert look(database_url)["timeouts"].detail == "too few runs were counted yet"


def test_outcomes_that_came_too_late_are_a_notice(database_url: str) -> None:
    """Their jobs ran twice."""
    with connect(database_url) as connection:
        ills.ran(connection, "shop.post", completed=10, seconds=2.0)
        connection.execute("UPDATE sa_jobqueue.stat SET lost = 2")
    finding = look(database_url)["failures"]
    assert (finding.level, finding.detail) == ("notice", "2 outcomes came too late to be written")


def test_what_a_real_worker_counts_and_knows_is_found(database_url: str, registry: Registry) -> None:
    """A job of a task that it does not know, which it has given back; and its own tasks, which it does know."""

    @task(name="shop.post", registry=registry)
    def post() -> None: ...

    engine = create_engine(database_url)
    with working(database_url, registry), Session(engine) as session:
        session.add_all([enqueue(post), enqueue(TaskName("shop.send"))])
        session.commit()
        wait_until(lambda: look(database_url)["tasks"].level == "problem")
        assert look(database_url)["tasks"].detail == "no live worker knows the task: shop.send in default"
        (left,) = session.scalars(select(Job).where(Job.task == "shop.send"))
        session.delete(left)
        session.commit()
        finding = wait_until(lambda: (one := look(database_url)["tasks"]).level == "ok" and one)
        assert finding.detail == "every queued task is known to a worker of its queue"
    engine.dispose()


def test_jobs_that_an_application_does_not_know_are_a_problem(database_url: str) -> None:
    """Before it is deployed, whatever the workers of today know."""
    with connect(database_url) as connection:
        connection.execute(
            "INSERT INTO sa_jobqueue.job (task, queue) VALUES ('shop.send', 'mail'), ('shop.old', 'mail')"
        )
    engine = create_engine(database_url, poolclass=NullPool)
    by_name = {one.name: one for one in examine(engine, probe=False, tasks={"shop.send", "shop.new"})}
    assert by_name["tasks"].level == "problem"
    assert by_name["tasks"].detail == "the application of --app does not have: shop.old"


def test_a_worker_that_holds_back_is_a_notice(database_url: str) -> None:
    """With what it said."""
    with connect(database_url) as connection:
        connection.execute(ills.ABLE_WORKER, [60.0, "{}"])
        connection.execute("UPDATE sa_jobqueue.worker SET pressure = 'snapshot of 5m', schema_version = 7")
    finding = look(database_url)["workers"]
    assert finding.level == "notice"
    assert finding.detail.endswith("some expect version 7 of the schema; some hold back: snapshot of 5m")


@pytest.mark.parametrize(
    ("column", "detail"),
    [
        ("claims", "the database refused to let 1 job be claimed, job 1 by: column job.claims does not exist"),
        ("priority", "within the last minute the database refused claims: column job.priority does not exist"),
    ],
)
def test_claims_that_the_database_refuses_are_a_problem(database_url: str, column: str, detail: str) -> None:
    """The worker says it with the next sign of life, of jobs or of whole claims: what the doctor asks may succeed where a claim does not."""
    registry = Registry()
    with connect(database_url) as connection:
        connection.execute("INSERT INTO sa_jobqueue.job (task) VALUES ('a_task')")
        connection.execute(f"ALTER TABLE sa_jobqueue.job RENAME {column} TO something_else".encode())
        with working(database_url, registry, lease=3.0):
            finding = wait_until(lambda: _problem(look(database_url)["workers"]))
            connection.execute(f"ALTER TABLE sa_jobqueue.job RENAME something_else TO {column}".encode())
    assert detail in finding.detail


def _problem(finding: Finding) -> Finding | None:
    return finding if finding.level == "problem" else None


def test_the_worst_thing_that_a_check_finds_comes_first() -> None:
    """And an advice that holds for several is given once."""
    both = found("x", "well", ("notice", "a", "do"), ("problem", "b", "do"), seconds=1.0, rows=None)
    assert both == Finding("x", "problem", "b; a", "do", {"seconds": 1.0})
    assert found("x", "well") == Finding("x", "ok", "well")
    assert worst([]) == "ok"
    assert worst(["notice", "problem", "ok"]) == "problem"


def test_a_workflow_that_is_behind_for_a_minute_is_a_notice(database_url: str) -> None:
    """A worker that lives should have read it; without one, what an operator did is not read either."""
    with ills.unread_workflow(database_url), connect(database_url) as connection:
        connection.execute("UPDATE sa_jobqueue.job SET finished_at = now() - interval '50 s' WHERE id = 7001")
        assert look(database_url)["workflows"].level == "ok"
        connection.execute("UPDATE sa_jobqueue.job SET finished_at = now() - interval '90 s' WHERE id = 7001")
        connection.execute("INSERT INTO sa_jobqueue.workflow (id) VALUES (8)")
        connection.execute("INSERT INTO sa_jobqueue.workflow_event (workflow_id, job_id) VALUES (8, -8)")
        alone = look(database_url)["workflows"]
        connection.execute(ills.WORKER, [["mail"]])
        served = look(database_url)["workflows"]
    assert (alone.level, served.level) == ("notice", "notice")
    assert alone.detail.startswith("no worker has read the events of: workflows 7, 8, the first for 1m")
    assert alone.advice == "start a worker: any worker advances all workflows"
    assert served.detail.startswith("no worker has read the events of: workflow 7, the first for 1m")
    assert "see the workers' log" in served.advice


def test_a_workflow_that_is_paused_for_a_day_is_named_and_no_problem(database_url: str) -> None:
    """What is not read in it is no matter; and it is named beside a problem, too."""
    with connect(database_url) as connection:
        connection.execute("INSERT INTO sa_jobqueue.workflow (id, paused_at) VALUES (9, now() - interval '25 h')")
        connection.execute("INSERT INTO sa_jobqueue.workflow (id, paused_at) VALUES (10, now() - interval '23 h')")
        connection.execute("INSERT INTO sa_jobqueue.workflow_event (workflow_id, job_id) VALUES (9, -9)")
    finding = look(database_url)["workflows"]
    assert (finding.level, finding.detail) == (
        "ok", "no job waits for an ended job; paused for more than 1d: workflow 9",
    )  # fmt: skip
    with ills.waiting_in_a_circle(database_url):
        assert look(database_url)["workflows"].detail.endswith("7001; paused for more than 1d: workflow 9")
