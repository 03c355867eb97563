"""The plans of what runs all the time: by index, however many jobs there are and whenever the plan was made.

Each is pinned twice: on 200,000 analyzed rows, and planned on an empty, vacuumed table on which 200,000 jobs arrive
afterwards. The statements are prepared by psycopg, with the worker's own settings and a plan for any values.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from sqlalchemy import ClauseElement, Connection, Engine, create_engine, select, text

from sa_jobqueue.cli.filters import Filters
from sa_jobqueue.models import Job, status_in
from sa_jobqueue.rules.lifecycle import Change, Event, JobStatus
from sa_jobqueue.sql.apply import apply_parameters
from sa_jobqueue.sql.chosen import Status
from sa_jobqueue.sql.claims import ClaimRequest, claim_listed, claim_parameters
from sa_jobqueue.sql.complete import complete_jobs, completion_parameters, delete_completed
from sa_jobqueue.sql.leases import cancel_requests
from sa_jobqueue.sql.parts import packed, packed_texts
from sa_jobqueue.sql.waking import survey
from sa_jobqueue.statements import apply_changes, claim_jobs, count_jobs, expired_leases, prune_jobs, renew_leases
from tests.support.databases import Databases
from tests.support.factory import completed
from tests.support.plans import Plan, Prepared, driver_of, service_connection

ROWS = 200_000

#: Every hundredth job runs; the others are queued, a third of them for later, or done, over three queues and all
#: priorities.
FILL = f"""
    INSERT INTO sa_jobqueue.job (
        id, queue, task, priority, run_at, status, claim_token, attempt, lease_expires_at, finished_at, purge_at
    )
    SELECT
        n,
        (ARRAY['a', 'b', 'c'])[1 + mod(n, 3)],
        'a_task',
        mod(n, 10),
        now() - n * interval '1 ms' + CASE WHEN mod(n, 7) < 2 THEN interval '1 day' ELSE interval '0' END,
        status,
        1,
        1,
        CASE WHEN status = 'running' THEN now() + interval '1 hour' END,
        CASE WHEN status = 'completed' THEN now() END,
        CASE WHEN status = 'completed' THEN now() + (n - {ROWS} / 2) * interval '1 s' END
    FROM (
        SELECT n, CASE WHEN mod(n, 100) = 0 THEN 'running' WHEN mod(n, 5) = 0 THEN 'completed' ELSE 'queued' END AS status
        FROM generate_series(1, {ROWS}) AS n
    ) AS made
"""

#: The same number of jobs with 7,001 keys, over the same queues and all priorities. Nearly half of these are ready; some came back and
#: are due again, and a third is for later.
FILL_KEYED = f"""
    INSERT INTO sa_jobqueue.job (id, queue, task, priority, run_at, created_at, concurrency_key)
    SELECT
        {ROWS} + n,
        (ARRAY['a', 'b', 'c'])[1 + mod(n, 3)],
        'a_task',
        mod(n, 10),
        run_at,
        CASE WHEN mod(n, 5) = 0 THEN run_at - interval '1 hour' ELSE now() END,
        'k' || mod(n, 7001)
    FROM (
        SELECT n, now() - n * interval '1 ms' + CASE WHEN mod(n, 7) < 2 THEN interval '1 day' ELSE interval '0' END AS run_at
        FROM generate_series(1, {ROWS}) AS n
    ) AS made
"""

FIRST_DUE = """
    SELECT id FROM sa_jobqueue.job WHERE queue = 'a' AND status = 'queued' AND run_at <= now()
    ORDER BY priority DESC, run_at, id LIMIT 50
"""

RUNNING = [100 * n for n in range(1, 101)]


@dataclass(frozen=True)
class Statements:
    """Prepared before the rows came, or after."""

    connection: Connection
    claim: Prepared
    claim_but: Prepared
    claim_listed: Prepared
    apply: Prepared
    complete: Prepared
    delete: Prepared
    exchange: Prepared
    exchange_deleted: Prepared
    renew: Prepared
    cancelled: Prepared
    expired: Prepared
    prune: Prepared
    survey: Prepared


def prepare(connection: Connection) -> Statements:
    def one(statement: object, **parameters: object) -> Prepared:
        assert isinstance(statement, ClauseElement)
        return Prepared(connection, statement, parameters)

    nothing = claim_jobs(worker="me", queues={"none": ROWS}, lease=60.0)
    prepared = Statements(
        connection,
        # psycopg takes the smallest type that holds a number, and prepares the statement again for another type: so large ones here.
        claim=one(claim_jobs(worker="me", queues={"none": ROWS}, lease=60.0)),
        claim_but=one(claim_jobs(worker="me", queues={"none": ROWS}, lease=60.0, but=[2 * ROWS])),
        claim_listed=one(claim_listed(ids=[2 * ROWS], worker="me", lease=60.0)),
        apply=one(apply_changes([completed(2 * ROWS)])),
        complete=one(complete_jobs(ids=[2 * ROWS], tokens=[1], retain=[60.0])),
        delete=one(delete_completed(ids=[2 * ROWS], tokens=[1])),
        exchange=one(complete_jobs(ids=[2 * ROWS], tokens=[1], retain=[60.0], claim=nothing)),
        exchange_deleted=one(delete_completed(ids=[2 * ROWS], tokens=[1], claim=nothing)),
        renew=one(renew_leases(ids=[2 * ROWS], tokens=[1], lease=60.0)),
        cancelled=one(cancel_requests(ids=[2 * ROWS], tokens=[1])),
        expired=one(expired_leases()),
        prune=one(prune_jobs(limit=0)),
        survey=one(survey(queues=["none"], but=[2 * ROWS], known=None, seconds=5.0)),
    )
    driver_of(connection).commit()  # psycopg began the transaction, not SQLAlchemy, whose commit() would do nothing
    return prepared


def vacuum(engine: Engine) -> None:
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("VACUUM ANALYZE sa_jobqueue.job")


@pytest.fixture(scope="module", params=["planned on 200,000 rows", "planned on an empty table"])
def statements(request: pytest.FixtureRequest, databases: Databases) -> Iterator[Statements]:
    """The tests commit nothing, so they share the rows."""
    name = databases.new_name()
    engine = create_engine(databases.create(name))
    with engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE sa_jobqueue.job SET (autovacuum_enabled = off)")

    def fill() -> None:
        with engine.begin() as connection:
            connection.exec_driver_sql(FILL)

    if request.param == "planned on 200,000 rows":
        fill()
    vacuum(engine)
    with service_connection(engine) as connection:
        prepared = prepare(connection)
        if request.param == "planned on an empty table":
            fill()
        yield prepared
    engine.dispose()
    databases.drop(name)


#: What tells a claim that no queue of its has jobs with keys: a probe of each, once.
KEYS = ("job_key_ready_idx", "job_key_later_idx")
#: What a claim reads.
CLAIM = ("job_claim_idx", "job_pkey", "unique_key_pkey", *KEYS)


def assert_by(plan: Plan, *indexes: str) -> None:
    """The table is read through these indexes only, nothing of it is sorted, nothing is read in vain."""
    readings = plan.on("job")
    assert {node["Node Type"] for node in readings} <= {"Index Scan", "Index Only Scan"}, plan
    assert plan.indexes <= set(indexes), plan
    assert all("Index Cond" in node for node in readings), f"a scan of a whole index:\n{plan}"
    assert "Sort" not in plan.kinds, plan


def assert_limits_are_known(plan: Plan) -> None:
    """All limits, of which there are few, are read once, and so is each index of jobs with keys; there it finds none."""
    keys = [node for node in plan.on("job") if node["Index Name"] in KEYS]
    assert sorted(node["Index Name"] for node in keys) == sorted(KEYS), plan
    assert all((node["Actual Rows"], node["Actual Loops"]) == (0, 1) for node in keys), plan
    assert sum(node["Actual Loops"] for node in plan.on("job_limit")) == 1, plan


@pytest.mark.parametrize("size", [1, 10, 100])
def test_a_claim_reads_what_it_takes(statements: Statements, size: int) -> None:
    """Two probes of indexes, a lock and an update for each job, and one probe for each slot."""
    parameters = claim_parameters(ClaimRequest(worker="me", queues={"a": size, "b": size}, lease=60.0))

    plan = statements.claim.explain(parameters)

    assert_by(plan, *CLAIM)
    assert_limits_are_known(plan)
    assert plan.root["Actual Rows"] == 2 * size, plan
    assert plan.largest_discard <= 10, plan  # a slot of the other queue
    assert plan.blocks <= 100 + 2 * size * 20, plan


def test_a_claim_that_leaves_some_out_reads_these_and_what_it_takes(statements: Statements) -> None:
    """They are walked over in the index, and not locked."""
    by_plain_claim = statements.claim.explain(claim_parameters(ClaimRequest(worker="me", queues={"a": 10}, lease=60.0)))
    some = statements.connection.scalars(text(FIRST_DUE)).all()
    but = claim_parameters(ClaimRequest(worker="me", queues={"a": 10}, lease=60.0, but=some))

    plan = statements.claim_but.explain(but)

    assert_by(plan, *CLAIM)
    assert_limits_are_known(plan)
    assert plan.root["Actual Rows"] == by_plain_claim.root["Actual Rows"] == 10, plan
    assert plan.largest_discard <= 50 + 10, plan


def test_a_claim_of_listed_jobs_reads_these(statements: Statements) -> None:
    """By their key, one probe and one update each."""
    some = statements.connection.scalars(text(FIRST_DUE)).all()

    plan = statements.claim_listed.explain(
        {"listed_ids": packed(some), "by_worker": "me", "lease_seconds": 60.0, "inline_limit": 65_536}
    )

    assert_by(plan, "job_pkey", "unique_key_pkey")
    assert plan.root["Actual Rows"] == len(some) == 50, plan
    assert plan.blocks <= 100 + 50 * 20, plan


def test_a_claim_does_not_read_what_is_due_later(statements: Statements) -> None:
    """Future jobs stand in the same slots, and are not walked over."""
    parameters = claim_parameters(ClaimRequest(worker="me", queues={"a": ROWS}, lease=60.0))
    due = statements.claim.explain(parameters)
    reading = next(node for node in due.on("job") if node["Index Name"] == "job_claim_idx")

    assert reading.get("Rows Removed by Filter", 0) == 0, due
    assert reading["Actual Rows"] * reading["Actual Loops"] == pytest.approx(due.root["Actual Rows"], rel=0.01), due


@pytest.mark.parametrize("retain", [60.0, 0.0])
@pytest.mark.parametrize("size", [1, 10, 100])
def test_applying_reads_what_it_writes(statements: Statements, size: int, retain: float) -> None:
    """And compares no row with another's change."""
    changes = [completed(one, retain=retain) for one in RUNNING[:size]]

    plan = statements.apply.explain(apply_parameters(changes))

    assert_by(plan, "job_running_idx", "job_pkey")
    assert "Nested Loop" not in plan.kinds, plan
    assert plan.blocks <= 100 + size * 40, plan


@pytest.mark.parametrize("size", [1, 10, 100])
def test_completing_reads_what_it_writes(statements: Statements, size: int) -> None:
    """Kept or deleted."""
    changes = [completed(one) for one in RUNNING[:size]]

    kept = statements.complete.explain(completion_parameters(changes))
    gone = statements.delete.explain(completion_parameters(changes, kept=False))

    for plan in (kept, gone):
        assert_by(plan, "job_running_idx", "job_pkey")
        assert "Nested Loop" not in plan.kinds, plan
        assert plan.blocks <= 100 + size * 25, plan


@pytest.mark.parametrize("size", [1, 10, 100])
def test_exchanging_reads_what_both_halves_do(statements: Statements, size: int) -> None:
    """As if each were alone."""
    changes = [completed(one) for one in RUNNING[:size]]
    claim = claim_parameters(ClaimRequest(worker="me", queues={"a": size}, lease=60.0))

    kept = statements.exchange.explain(claim | completion_parameters(changes))
    gone = statements.exchange_deleted.explain(claim | completion_parameters(changes, kept=False))

    for plan in (kept, gone):
        assert_by(plan, "job_running_idx", *CLAIM)
        assert_limits_are_known(plan)
        assert plan.root["Actual Rows"] == size + 1, plan
        assert plan.largest_discard <= 10, plan
        assert plan.blocks <= 200 + size * 45, plan


@pytest.mark.parametrize("size", [1, 10, 100])
def test_applying_what_is_lost_reads_no_more(statements: Statements, size: int) -> None:
    """Whether a row is still ours is looked up by its id, not in a hash of all that runs."""
    late = [Change(one, 9, Event.COMPLETE, JobStatus.COMPLETED, JobStatus.COMPLETED) for one in RUNNING[:size]]

    plan = statements.apply.explain(apply_parameters(late))

    assert_by(plan, "job_running_idx", "job_pkey")
    assert plan.blocks <= 100 + size * 40, plan


@pytest.mark.parametrize("token", [1, 9])
@pytest.mark.parametrize("size", [1, 10, 100])
def test_renewing_reads_what_is_held(statements: Statements, size: int, token: int) -> None:
    """Held still, or lost."""
    parameters = {"lease_ids": RUNNING[:size], "lease_tokens": [token] * size, "lease_seconds": 60.0}

    plan = statements.renew.explain(parameters)

    assert_by(plan, "job_running_idx", "job_pkey")
    assert "Nested Loop" not in plan.kinds, plan
    assert plan.blocks <= 100 + size * 30, plan


def test_asking_for_cancels_reads_what_is_held(statements: Statements) -> None:
    """It is asked often."""
    plan = statements.cancelled.explain({"lease_ids": RUNNING, "lease_tokens": [1] * 100})

    assert_by(plan, "job_running_idx", "job_pkey")
    assert plan.blocks <= 100 + 100 * 10, plan


def test_looking_for_expired_leases_reads_what_runs(statements: Statements) -> None:
    """Only the index of running jobs: it is small by nature."""
    plan = statements.expired.explain({"after_id": 0, "page": 100})

    assert_by(plan, "job_running_idx")
    assert plan.largest_discard <= ROWS // 100, plan


def test_a_survey_reads_a_row_for_each_priority(statements: Statements) -> None:
    """However many jobs wait, and however many are due later."""
    plan = statements.survey.explain({"queue_names": packed_texts(["a", "b", "c"])})

    tables = ("unique_key", "job_progress", "job_log", "step", "limit_state", "workflow", "workflow_event")
    of_chores = (
        "job_limit_idx",
        "job_purge_idx",
        "workflow_deadline_idx",
        "signal_expires_idx",
        "inbox_done_idx",
        *(f"{table}_pkey" for table in tables),
    )
    assert_by(plan, "job_claim_idx", *of_chores, *KEYS)
    assert max(node["Actual Rows"] for node in plan.on("job")) <= 1, plan
    # What other tests changed and rolled back is still in the index.
    assert plan.blocks <= 100 + 3 * 10 * 10, plan


def test_pruning_reads_what_it_deletes(statements: Statements) -> None:
    """The oldest come first out of their index."""
    plan = statements.prune.explain({"page": 100})

    assert_by(
        plan,
        "job_purge_idx",
        "job_pkey",
        "job_progress_pkey",
        "job_log_pkey",
        "step_pkey",
        "wait_pkey",
        "archived_task_pkey",
    )
    assert plan.blocks <= 100 + 100 * 20, plan


def test_the_time_of_a_batch_grows_with_its_size_not_with_its_square(statements: Statements) -> None:
    """Counted in rows that were looked at, not in seconds."""
    changes = [completed(one) for one in range(100, 100_001, 100)]

    plan = statements.apply.explain(apply_parameters(changes))

    looked_at = max(node["Actual Rows"] * node["Actual Loops"] for node in plan.nodes())
    assert len(changes) == 1_000
    assert looked_at <= 1_001, plan


def test_dead_letters_are_listed_and_counted_by_their_index(databases: Databases) -> None:
    """Without a look at the jobs that completed, however many those are."""
    name = databases.new_name()
    engine = create_engine(databases.create(name))
    with engine.begin() as connection:
        connection.exec_driver_sql(FILL)
        connection.exec_driver_sql(
            "UPDATE sa_jobqueue.job SET status = 'failed', finished_at = now() WHERE mod(id, 4000) = 1"
        )
    vacuum(engine)
    failed = status_in(Job.status, {JobStatus.FAILED})
    listing = select(Job.id, Job.task, Job.errors).where(failed).order_by(Job.id.desc()).limit(50)

    with service_connection(engine) as connection:
        for statement in (listing, count_jobs(failed)):
            assert isinstance(statement, ClauseElement)
            plan = Prepared(connection, statement, {}).explain({})
            assert plan.indexes == {"job_failed_idx"}, plan
            assert plan.largest_discard == 0, plan
            assert plan.blocks <= 100, plan
    engine.dispose()
    databases.drop(name)


@pytest.mark.parametrize("status", [Status.QUEUED, Status.DUE, Status.SCHEDULED, Status.RETRYING])
@pytest.mark.parametrize("analyzed", [True, False])
def test_queued_jobs_are_listed_by_their_indexes(databases: Databases, status: Status, analyzed: bool) -> None:
    """With and without a key, and without a look at the jobs that completed, however many those are."""
    name = databases.new_name()
    engine = create_engine(databases.create(name))
    with engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE sa_jobqueue.job SET (autovacuum_enabled = off)")
        connection.exec_driver_sql(
            "INSERT INTO sa_jobqueue.job (task, status, finished_at) SELECT 'a_task', 'completed', now() FROM generate_series(1, 50000)"
        )
        connection.exec_driver_sql(
            "INSERT INTO sa_jobqueue.job (task, attempt, concurrency_key, run_at) "
            "SELECT 'a_task', attempt, key, now() + wait FROM (VALUES (0), (1)) AS a (attempt), (VALUES ('k'), (NULL)) AS k (key), "
            "(VALUES (interval '-1 s'), (interval '1 hour')) AS w (wait)"
        )
    if analyzed:
        vacuum(engine)
    listing = select(Job.id).where(*Filters(status=[status]).criteria()).order_by(Job.id.desc()).limit(50)

    with engine.connect() as connection:
        compiled = listing.compile(dialect=connection.dialect, compile_kwargs={"literal_binds": True})
        said = connection.exec_driver_sql(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {compiled}").scalar_one()
        plan = Plan(said[0]["Plan"])
    assert plan.root["Actual Rows"] == (8 if status is Status.QUEUED else 4), plan
    assert plan.indexes <= {"job_claim_idx", "job_key_begun_idx", *KEYS}, plan
    assert plan.blocks <= 20, plan
    engine.dispose()
    databases.drop(name)


def test_completing_by_the_function_reads_what_it_writes(databases: Databases) -> None:
    """Also when its plan was made while the table was one page, on a connection without the worker's settings."""
    name = databases.new_name()
    engine = create_engine(databases.create(name))
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO sa_jobqueue.job (task, status, claim_token) "
            "SELECT 'a_task', 'running', 1 FROM generate_series(1, 20)"
        )
    vacuum(engine)
    with engine.begin() as connection:
        for id in range(1, 21):
            connection.exec_driver_sql(f"SELECT sa_jobqueue.complete_job({id}, 1, 60)")
        read = "SELECT seq_scan, idx_scan FROM pg_stat_xact_user_tables WHERE relid = 'sa_jobqueue.job'::regclass"
        assert connection.exec_driver_sql(read).one() == (0, 20)
    engine.dispose()
    databases.drop(name)


#: What a first draft would look like.
UPDATE_FROM = text(
    "UPDATE sa_jobqueue.job SET lease_expires_at = now() "
    "FROM unnest(CAST(:ids AS bigint[]), CAST(:tokens AS bigint[])) AS held(id, token) "
    "WHERE job.id = held.id AND job.claim_token = held.token AND job.status = 'running'"
)


def test_the_pins_can_fail(databases: Databases) -> None:
    """Without the worker's settings the same statement, planned on an empty table, reads the whole table."""
    name = databases.new_name()
    engine = create_engine(databases.create(name))
    vacuum(engine)
    with engine.connect() as connection:
        connection.exec_driver_sql("SET plan_cache_mode = force_generic_plan")
        naive = Prepared(connection, UPDATE_FROM, {"ids": [1], "tokens": [1]})
        driver_of(connection).commit()
        plan = naive.explain({"ids": RUNNING, "tokens": [1] * 100})

    with pytest.raises(AssertionError, match="Seq Scan"):
        assert_by(plan, "job_running_idx", "job_pkey")
    engine.dispose()
    databases.drop(name)
