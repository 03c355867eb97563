"""The trigger `job_wake`: it notifies the workers that wait, and is silent otherwise, for every role and every queue's name."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import Engine, create_engine, select, text
from sqlalchemy.exc import ProgrammingError
from sqlalchemy.orm import Session

from sa_jobqueue.migrations import upgrade_database
from sa_jobqueue.models import Job
from sa_jobqueue.rules.lifecycle import JobStatus
from sa_jobqueue.statements import cancel_jobs
from sa_jobqueue.util.schema import GATES
from tests.support.databases import connect
from tests.support.nightly import nightly
from tests.support.waiting import PATIENCE

STRANGE = [
    "mail",
    "it's",
    'a "quoted" queue',
    "%s %I :name {brace} \\ $$ $body$",
    "sa_jobqueue.gate_3; DROP TABLE job",
    " ",
    "zeile\numbruch\t",
    "\x01",
    "Ünïcödé",
    "😀" * 200,
]

OPEN = """
    SELECT setval(to_regclass(quote_ident({schema}) || '.gate_' || gate),
                  ceil(extract(epoch FROM clock_timestamp() + {until} * interval '1 second'))::bigint)
    FROM (VALUES ((hashtext({queue}) & 15)::text), ('any')) AS g (gate)
"""


class Waiter:
    """A worker's side: opens gates, listens, and says which queues it was woken for."""

    def __init__(self, url: str, schema: str = "sa_jobqueue") -> None:
        self.connection = connect(url)
        self.schema = schema
        row = self.connection.execute(
            "SELECT 'sa_jobqueue_' || to_regclass(quote_ident(%s) || '.job')::oid", [schema]
        ).fetchone()
        assert row is not None
        self.channel: str = row[0]
        self.connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self.channel)))

    def open(self, *queues: str, until: float = 60) -> None:
        for queue in queues:
            self.connection.execute(sql.SQL(OPEN).format(schema=self.schema, queue=queue, until=until))

    def woken(self) -> list[str]:
        """The queues of all notifications so far: they come in order, so a last one of our own ends the wait."""
        end = f"end {secrets.token_hex(8)}"
        self.connection.execute("SELECT pg_notify(%s, %s)", [self.channel, end])
        heard: list[str] = []
        for notification in self.connection.notifies(timeout=PATIENCE):
            if notification.payload == end:
                return heard
            heard.append(notification.payload)
        raise AssertionError(f"our own notification did not come; before it {heard}")


@pytest.fixture
def waiter(database_url: str) -> Iterator[Waiter]:
    waiter = Waiter(database_url)
    yield waiter
    waiter.connection.close()


@pytest.fixture
def producer(database_url: str) -> Iterator[psycopg.Connection]:
    with connect(database_url) as connection:
        yield connection


@pytest.fixture
def producer_role(database_url: str) -> Iterator[str]:
    """A role that may use the schema and insert jobs, and nothing else."""
    name = f"mig_{secrets.token_hex(6)}"
    with connect(database_url) as connection:
        connection.execute(
            f"CREATE ROLE {name}; GRANT USAGE ON SCHEMA sa_jobqueue TO {name}; GRANT INSERT ON sa_jobqueue.job TO {name}"
        )
        yield name
        connection.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")


def insert(
    connection: psycopg.Connection,
    *queues: str,
    columns: Mapping[str, object] | None = None,
    schema: str = "sa_jobqueue",
) -> None:
    """One INSERT statement for all the queues."""
    extra = dict(columns or {})
    names = sql.SQL(", ").join(map(sql.Identifier, ("task", "queue", *extra)))
    row = sql.SQL("({})").format(sql.SQL(", ").join([sql.Placeholder()] * (2 + len(extra))))
    connection.execute(
        sql.SQL("INSERT INTO {} ({}) VALUES {}").format(
            sql.Identifier(schema, "job"), names, sql.SQL(", ").join([row] * len(queues))
        ),
        [value for queue in queues for value in ("t", queue, *extra.values())],
    )


def test_a_job_that_is_due_soon_lets_workers_set_a_timer(waiter: Waiter, producer: psycopg.Connection) -> None:
    """An INSERT of a job that is due in ten seconds, and an UPDATE of `run_at`; not what claims and completions write."""
    waiter.open("mail")
    insert(producer, "mail", columns={"run_at": datetime.now(UTC) + timedelta(minutes=1)})
    producer.execute("UPDATE sa_jobqueue.job SET status = 'running', claimed_at = now(), lease_expires_at = now()")
    assert waiter.woken() == []
    insert(producer, "mail", columns={"run_at": datetime.now(UTC) + timedelta(seconds=5)})
    assert waiter.woken() == ["(due)"]
    producer.execute("UPDATE sa_jobqueue.job SET run_at = now()")
    assert waiter.woken() == ["(due)"]


def test_a_closed_gate_wakes_no_worker(waiter: Waiter, producer: psycopg.Connection) -> None:
    """A gate that was never opened is closed, also while another one is open."""
    insert(producer, *STRANGE)
    waiter.open(other_gate(waiter, *STRANGE))
    insert(producer, *STRANGE)
    assert waiter.woken() == []


@pytest.mark.parametrize("queue", STRANGE)
def test_an_open_gate_wakes_its_worker(waiter: Waiter, producer: psycopg.Connection, queue: str) -> None:
    """Whatever the queue is called."""
    waiter.open(queue)
    insert(producer, queue)
    assert waiter.woken() == [queue]


def test_a_duplicate_wakes_the_worker_that_it_has_held_back(waiter: Waiter, producer: psycopg.Connection) -> None:
    """Until its commit no worker could start the job that has its unique key."""
    unique = {"uniqueness": '{"key": "k", "scope": "queued"}'}
    insert(producer, "mail", columns=unique)
    waiter.open("mail")
    insert(producer, "mail", columns=unique)
    assert waiter.woken() == ["mail"]


def test_a_gate_closes_by_itself(waiter: Waiter, producer: psycopg.Connection) -> None:
    """It is open until a time; after it, no worker waits."""
    waiter.open("mail", until=-1)
    insert(producer, "mail")
    assert waiter.woken() == []


def test_no_gate_can_be_set_so_that_an_insert_fails(waiter: Waiter, producer: psycopg.Connection) -> None:
    """A role that may open gates can set no time that is not a timestamp."""
    for gate in (*range(GATES), "any"):
        with pytest.raises(psycopg.errors.NumericValueOutOfRange):
            producer.execute(f"SELECT setval('sa_jobqueue.gate_{gate}', 100000000000)")
        producer.execute(f"SELECT setval('sa_jobqueue.gate_{gate}', 99999999999)")
    insert(producer, "mail")
    assert waiter.woken() == ["mail"]


def test_a_gate_can_be_opened_again_and_closed(waiter: Waiter, producer: psycopg.Connection) -> None:
    """The newest word counts, also when it is an earlier time."""
    waiter.open("mail", until=-10)
    waiter.open("mail", until=60)
    insert(producer, "mail")
    assert waiter.woken() == ["mail"]
    waiter.open("mail", until=-10)
    insert(producer, "mail")
    assert waiter.woken() == []


def test_a_gate_opens_for_others_before_its_transaction_ends(waiter: Waiter, producer: psycopg.Connection) -> None:
    """It is no row: what a transaction says is in force at once, and stays when it rolls back."""
    with waiter.connection.transaction(force_rollback=True):
        waiter.open("mail")
        insert(producer, "mail")
    assert waiter.woken() == ["mail"]


@pytest.mark.parametrize(
    "columns",
    [
        {"run_at": datetime.now(UTC) + timedelta(hours=1)},
        {"status": "blocked"},
        {"status": "completed"},
    ],
    ids=["later", "blocked", "completed"],
)
def test_a_job_that_is_not_due_wakes_no_worker(
    waiter: Waiter, producer: psycopg.Connection, columns: dict[str, object]
) -> None:
    """Jobs of the future are found by polling, when they are due."""
    waiter.open("mail")
    insert(producer, "mail", columns=columns)
    assert waiter.woken() == []


def test_a_job_that_is_overdue_wakes(waiter: Waiter, producer: psycopg.Connection) -> None:
    """A job that was due long ago is as urgent as a new one."""
    waiter.open("mail")
    insert(producer, "mail", columns={"run_at": datetime.now(UTC) - timedelta(days=1)})
    assert waiter.woken() == ["mail"]


def test_many_jobs_wake_once_per_queue(waiter: Waiter, producer: psycopg.Connection) -> None:
    """One statement, 3,000 jobs, three queues: three notifications, none of them for a queue without a worker."""
    shut = other_gate(waiter, "a", "b", "c")
    waiter.open("a", "b", "c")
    insert(producer, *["a", "b", "c", shut] * 1_000)
    assert sorted(waiter.woken()) == ["a", "b", "c"]


def test_copy_wakes_too(waiter: Waiter, producer: psycopg.Connection) -> None:
    """The trigger works for every way into the table."""
    waiter.open("mail")
    with producer.cursor().copy("COPY sa_jobqueue.job (task, queue) FROM STDIN") as copy:
        for _ in range(10):
            copy.write_row(("t", "mail"))
    assert waiter.woken() == ["mail"]


def test_a_rollback_wakes_no_worker(waiter: Waiter, producer: psycopg.Connection) -> None:
    """Nor does a savepoint's; the commit wakes once for all the transaction's jobs of a queue."""
    waiter.open("mail")
    with producer.transaction(force_rollback=True):
        insert(producer, "mail")
    with producer.transaction(), producer.transaction(force_rollback=True):
        insert(producer, "mail")
    assert waiter.woken() == []
    with producer.transaction():
        insert(producer, "mail")
        insert(producer, "mail")
    assert waiter.woken() == ["mail"]


def test_an_insert_of_nothing_is_silent(waiter: Waiter, producer: psycopg.Connection) -> None:
    """The trigger runs for a statement without rows as well."""
    waiter.open("default")
    producer.execute("INSERT INTO sa_jobqueue.job (task) SELECT 't' WHERE false")
    assert waiter.woken() == []


def test_a_missing_gate_is_a_closed_one(waiter: Waiter, producer: psycopg.Connection) -> None:
    """The trigger never makes the caller's INSERT fail."""
    waiter.open("mail")
    producer.execute("DO $$ BEGIN FOR n IN 0..15 LOOP EXECUTE 'DROP SEQUENCE sa_jobqueue.gate_' || n; END LOOP; END $$")
    insert(producer, "mail")
    assert waiter.woken() == []


def test_while_all_gates_are_closed_an_insert_does_not_call_the_function(
    waiter: Waiter, producer: psycopg.Connection
) -> None:
    """Its condition is enough to know, at a small part of the cost; the gate it reads cannot be taken from it."""
    assert not calls_the_function(producer)
    waiter.open("another")
    assert calls_the_function(producer)
    waiter.open("another", until=-1)
    assert not calls_the_function(producer)
    with pytest.raises(psycopg.errors.DependentObjectsStillExist):
        producer.execute("DROP SEQUENCE sa_jobqueue.gate_any")


def calls_the_function(producer: psycopg.Connection) -> bool:
    plan = producer.execute("EXPLAIN ANALYZE INSERT INTO sa_jobqueue.job (task) VALUES ('t')").fetchall()
    return "Trigger job_wake" in str(plan)


@pytest.mark.parametrize("schema", ["My Jobs", "j" * 63, *nightly("jobs", '"', "it's")])
def test_a_schema_of_another_name_has_gates_of_its_own(database_url: str, schema: str) -> None:
    """The channel goes by the table's oid: no name is too long for it, and two schemas do not wake each other."""
    engine = create_engine(database_url)
    upgrade_database(engine, schema=schema)
    engine.dispose()
    theirs, ours = Waiter(database_url, schema), Waiter(database_url)
    elsewhere = other_gate(ours, "letters")
    theirs.open("letters")
    ours.open(elsewhere)
    with connect(database_url) as producer:
        insert(producer, "letters", elsewhere, schema=schema)
    assert theirs.woken() == ["letters"]
    assert ours.woken() == []
    theirs.connection.close()
    ours.connection.close()


def test_the_session_does_not_change_what_the_trigger_does(waiter: Waiter, producer: psycopg.Connection) -> None:
    """A search_path, a time zone, a date style of the caller's, names that shadow ours: all the same."""
    producer.execute("CREATE TABLE public.inserted (queue text, status text, run_at timestamptz)")
    producer.execute("CREATE FUNCTION public.hashtext(text) RETURNS int LANGUAGE sql RETURN 1 / 0")
    producer.execute(
        "SET search_path = public, pg_catalog; SET TimeZone = 'Pacific/Kiritimati'; SET DateStyle = 'German'"
    )
    waiter.open("mail")
    insert(producer, "mail")
    assert waiter.woken() == ["mail"]


class TestLeastPrivilege:
    def test_a_role_that_may_only_insert_wakes_workers(
        self, waiter: Waiter, producer: psycopg.Connection, producer_role: str
    ) -> None:
        """No right to read jobs, nor to the gates, nor to the function is needed."""
        waiter.open("mail")
        producer.execute(f"SET ROLE {producer_role}")
        insert(producer, "mail")
        assert waiter.woken() == ["mail"]
        for refused in ("SELECT * FROM sa_jobqueue.job", "SELECT last_value FROM sa_jobqueue.gate_0"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                producer.execute(refused)

    def test_a_role_that_may_not_read_the_latest_gate_wakes_workers(
        self, waiter: Waiter, producer: psycopg.Connection, producer_role: str
    ) -> None:
        """It is all public; where a restored dump has lost that, the function asks, with the rights of its owner."""
        producer.execute("REVOKE SELECT ON SEQUENCE sa_jobqueue.gate_any FROM PUBLIC")
        producer.execute(f"SET ROLE {producer_role}")
        insert(producer, "mail")
        assert waiter.woken() == []
        waiter.open("mail")
        insert(producer, "mail")
        assert waiter.woken() == ["mail"]

    def test_a_session_needs_to_read_what_it_added(
        self, waiter: Waiter, engine: Engine, producer: psycopg.Connection, producer_role: str
    ) -> None:
        """The ORM's INSERT returns columns, for which SELECT is needed; a delay needs nothing more."""
        waiter.open("default")
        with Session(engine) as session:
            session.execute(text(f"SET LOCAL ROLE {producer_role}"))
            session.add(Job(task="t"))
            with pytest.raises(ProgrammingError, match="permission denied"):
                session.flush()
        producer.execute(f"GRANT SELECT ON sa_jobqueue.job TO {producer_role}")
        with Session(engine) as session:
            session.execute(text(f"SET LOCAL ROLE {producer_role}"))
            session.add_all([Job(task="t"), Job(task="t", run_at=timedelta(hours=1))])
            session.commit()
            assert session.scalars(select(Job.is_scheduled).order_by(Job.id)).all() == [False, True]
        assert waiter.woken() == ["default"]

    def test_the_function_hangs_on_no_other_table(self, producer: psycopg.Connection, producer_role: str) -> None:
        """It runs with its owner's rights, and would run a cast of the other's types with them."""
        producer.execute(f"SET ROLE {producer_role}")
        producer.execute("CREATE TEMP TABLE mine (queue text, status text, run_at timestamptz)")
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="job_wake"):
            producer.execute(
                "CREATE TRIGGER mine AFTER INSERT ON mine REFERENCING NEW TABLE AS inserted "
                "FOR EACH STATEMENT EXECUTE FUNCTION sa_jobqueue.job_wake()"
            )

    def test_the_functions_are_fixed(self, producer: psycopg.Connection) -> None:
        """A fixed search_path, its temporary schema last; the function that is inlined names all by schema."""
        found = producer.execute(
            "SELECT proname, prosecdef, proconfig, has_function_privilege('public', oid, 'EXECUTE') "
            "FROM pg_proc WHERE pronamespace = 'sa_jobqueue'::regnamespace ORDER BY proname"
        ).fetchall()
        path = "search_path=pg_catalog, pg_temp"
        scans = [f"enable_{scan}=off" for scan in ("seqscan", "bitmapscan", "hashjoin", "mergejoin")]
        seek = "enable_seqscan=off"
        moving = [*scans, "enable_sort=off", "jit=off", "plan_cache_mode=force_generic_plan"]
        patience = ["lock_timeout=250ms", "TimeZone=UTC", "DateStyle=ISO"]
        assert found == [
            ("add_members", True, [path], False),
            ("advance", True, [path, *moving], False),
            ("any_awaited", False, None, True),
            (
                "cancel_members",
                False,
                [path, seek, "enable_hashjoin=off", "enable_mergejoin=off", "plan_cache_mode=force_generic_plan"],
                False,
            ),
            ("cancel_workflows", True, [path, seek], False),
            ("complete_job", False, [seek], True),
            ("complete_job", False, [seek], True),
            ("complete_member", False, [seek], True),
            ("complete_member", False, [seek], True),
            ("drop_archive_month", True, [path, *patience], False),
            ("drop_waiting", False, [path, "enable_seqscan=off", "plan_cache_mode=force_generic_plan"], True),
            ("due_at", False, None, True),
            ("enqueue_ticks", True, [path], False),
            ("fire_callbacks", False, [path, seek, "plan_cache_mode=force_generic_plan"], False),
            ("follow_up", True, [path, seek], False),
            ("forget_breakers", True, [path], False),
            ("further_correct", False, [path], True),
            ("further_full", False, [path], True),
            ("further_rates", False, [path, seek, "plan_cache_mode=force_generic_plan"], True),
            ("further_used", False, [path, "plan_cache_mode=force_generic_plan"], True),
            ("further_waits", False, [path, seek, "enable_hashjoin=on", "plan_cache_mode=force_generic_plan"], True),
            ("hold_queued", False, [path, "lock_timeout=100ms"], False),
            ("job_unique", True, [path], False),
            ("job_wake", True, [path], False),
            ("limit_changed", False, [path], False),
            ("limit_gone", False, [path], False),
            ("limit_queues", False, [path, "lock_timeout=100ms"], True),
            ("limits_changed", False, [path], True),
            ("lock_breakers", False, [path], False),
            ("make_archive_months", True, [path, *patience], False),
            ("only_operators", False, [path], False),
            ("other_keys", False, None, True),
            ("other_keys_running", False, None, True),
            ("pause_workflows", True, [path, seek], False),
            ("permits_freed", False, [path], True),
            ("pick_limited", False, [path, *scans, "jit=off", "plan_cache_mode=force_generic_plan"], True),
            ("rate_owed", False, None, True),
            ("ready_keys", False, [path, "plan_cache_mode=force_generic_plan"], True),
            ("refuse_argument", False, None, True),
            ("resume_waiting", True, [path, *scans, "jit=off", "plan_cache_mode=force_generic_plan"], False),
            ("resume_workflows", True, [path, seek], False),
            ("retry_workflow", True, [path, seek], False),
            ("schedule_changed", False, [path], False),
            ("set_breaker", True, [path], False),
            ("signal_sent", True, [path], False),
            ("take_back_children", False, [path, seek, "enable_hashjoin=off", "enable_mergejoin=off"], False),
            ("take_key", False, [path, "lock_timeout=10ms"], True),
            ("tell_breakers", True, [path], False),
            ("tell_ended", True, [path, "enable_seqscan=off"], True),
            ("tell_workers", False, None, True),
            ("tell_workflows", False, None, True),
            ("wake_queues", False, [path], False),
        ]


class TestDueAt:
    def test_a_delay_is_counted_from_the_transactions_start(self, producer: psycopg.Connection) -> None:
        """Whatever the session's notions of time."""
        producer.execute(
            "SET TimeZone = 'America/Caracas'; SET IntervalStyle = 'sql_standard'; SET DateStyle = 'SQL, DMY'"
        )
        row = producer.execute(
            "SELECT sa_jobqueue.due_at('+90.500000 seconds') = now() + interval '90.5 seconds', "
            "sa_jobqueue.due_at('2030-02-03T04:05:06.000007+00:00') = make_timestamptz(2030, 2, 3, 4, 5, 6.000007, 'UTC'), "
            "sa_jobqueue.due_at(NULL) IS NULL"
        ).fetchone()
        assert row == (True, True, True)

    def test_it_costs_nothing_but_its_expression(self, producer: psycopg.Connection) -> None:
        """It is inlined: the plan calls no function of ours."""
        plan = producer.execute(
            "EXPLAIN (VERBOSE) SELECT sa_jobqueue.due_at(given) FROM (SELECT text '+1 seconds' OFFSET 0) AS x (given)"
        ).fetchall()
        assert "due_at" not in str(plan[0])
        assert "now()" in str(plan)


def other_gate(waiter: Waiter, *queues: str) -> str:
    """The name of a queue that shares no gate with `queues`."""
    taken = gates(waiter, queues)
    return next(name for name in map(str, range(1_000)) if not gates(waiter, [name]) & taken)


def gates(waiter: Waiter, queues: Iterable[str]) -> set[int]:
    return {
        gate
        for (gate,) in waiter.connection.execute(
            "SELECT hashtext(queue) & 15 FROM unnest(%s::text[]) AS q (queue)", [list(queues)]
        )
    }


def test_a_cancel_is_told_once_and_only_where_a_job_runs(
    waiter: Waiter, producer: psycopg.Connection, engine: Engine
) -> None:
    """By a payload that is the name of no queue. A job that waits ends at once, and no worker need know."""

    def cancel(status: JobStatus) -> list[str]:
        with Session(engine) as session:
            session.execute(cancel_jobs(Job.status == status))
            session.commit()
        return waiter.woken()

    insert(producer, "told")
    insert(producer, "told", "told", columns={"status": "running"})
    assert cancel(JobStatus.QUEUED) == []
    assert cancel(JobStatus.RUNNING) == [""]
    assert cancel(JobStatus.RUNNING) == []  # they are asked already
