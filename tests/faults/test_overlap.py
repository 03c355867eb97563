"""The claimer sends an exchange before it has taken in the answer to the last: nothing is lost, and nothing runs twice, whatever breaks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from sqlalchemy import Connection, Engine, create_engine, select, text

from sa_jobqueue import Job, KeyLimits, Registry, WorkerSettings, task
from sa_jobqueue.rules.lifecycle import Change
from sa_jobqueue.statements import set_limit
from sa_jobqueue.worker.claiming.claimer import Claimer, Exchange
from sa_jobqueue.worker.claiming.intake import Intake
from tests.faults.proxy import About, Set, Trap, bad_network
from tests.support import pooler
from tests.support.databases import cut_line
from tests.support.nightly import nightly
from tests.support.waiting import wait_until
from tests.support.working import drain, working

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

JOBS, SLOTS = 6_000, 20
#: Under limits a worker with fewer slots claims for all of them at once.
LIMITED_SLOTS = 200


class Queue:
    """Jobs that note that they run, and how often an exchange was sent while an answer was kept back."""

    def __init__(self, url: str) -> None:
        self.engine = create_engine(url)
        self.registry = Registry()
        self.ran: list[int] = []
        self.overlaps = 0

        @task(registry=self.registry, name="counts")
        async def counts(n: int) -> None:
            self.ran.append(n)

        with self.engine.begin() as connection:
            connection.execute(
                text(
                    "INSERT INTO sa_jobqueue.job (task, args, priority) "
                    "SELECT 'counts', jsonb_build_object('n', n), CASE WHEN n % 10 = 0 THEN 9 ELSE 4 END FROM generate_series(1, :jobs) AS n"
                ),
                {"jobs": JOBS},
            )

    def limit_keys(self) -> None:
        """Let one job of each of 300 keys run at once."""
        with self.engine.begin() as connection:
            connection.execute(text("UPDATE sa_jobqueue.job SET concurrency_key = (id % 300)::text"))
            connection.execute(set_limit("default", per_key=KeyLimits(running=1)))

    def assert_each_ran_once(self, *, claims: set[int]) -> None:
        """And was claimed this often."""
        assert Counter(Counter(self.ran).values()) == {1: JOBS}
        with self.engine.connect() as connection:
            assert set(connection.scalars(select(Job.status))) == {"completed"}
            assert set(connection.scalars(select(Job.claims))) <= claims


@pytest.fixture
def queue(engine: Engine, url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Queue]:
    """Its worker claims ahead, so that answers are kept back."""
    if pooler.is_pooled(url):
        pytest.skip("behind a pooler exchanges do not overlap")
    queue, send = Queue(url), Claimer._exchange_ahead

    def count(self: Claimer, connection: Connection, exchange: Exchange) -> None:
        queue.overlaps += self._kept is not None
        send(self, connection, exchange)

    monkeypatch.setattr(Claimer, "_exchange_ahead", count)
    yield queue
    queue.engine.dispose()


def test_jobs_run_in_the_order_of_their_priorities_and_each_once(queue: Queue, url: str) -> None:
    """An exchange begins after the commit of the one before."""
    drain(url, queue.registry, queues={"default": SLOTS})
    queue.assert_each_ran_once(claims={1})
    assert queue.ran == sorted(queue.ran, key=lambda n: (n % 10 != 0, n))
    assert queue.overlaps > 0


def test_keys_take_turns_though_the_next_claim_is_sent_before_an_answer_is_taken_in(queue: Queue, url: str) -> None:
    """It begins behind the last key of that answer, and no two jobs of a key run at once."""
    queue.limit_keys()
    drain(url, queue.registry, queues={"default": LIMITED_SLOTS})
    queue.assert_each_ran_once(claims={1})
    assert queue.overlaps > 0
    with queue.engine.connect() as connection:
        begins = connection.scalars(select(Job.concurrency_key).order_by(Job.claimed_at, Job.id)).all()
        shares = Counter(begins[: JOBS // 2]).values()
        assert max(shares) - min(shares) <= 1
        earlier = text(
            "SELECT count(*) FROM (SELECT claimed_at, lag(finished_at) OVER (PARTITION BY concurrency_key ORDER BY claimed_at) AS before "
            "FROM sa_jobqueue.job) AS runs WHERE claimed_at < before"
        )
        assert connection.scalar(earlier) == 0


@pytest.mark.parametrize("limited", [False, *nightly(True)])
def test_jobs_of_an_answer_that_was_kept_back_run_once_though_the_connection_breaks(
    queue: Queue, url: str, monkeypatch: pytest.MonkeyPatch, *, limited: bool
) -> None:
    """They are claimed by this worker: its next connection does not give them back."""
    if limited:
        queue.limit_keys()
    prepare, broken = Claimer._prepare, list[int]()

    def break_once(self: Claimer, connection: Connection) -> bool:
        if self._kept is not None and not broken:
            broken.append(len(queue.ran))
            cut_line(connection.connection.dbapi_connection)
        return prepare(self, connection)

    monkeypatch.setattr(Claimer, "_prepare", break_once)
    worker = drain(url, queue.registry, queues={"default": LIMITED_SLOTS if limited else SLOTS})
    assert broken
    assert worker.counts["lost"] == 0
    queue.assert_each_ran_once(claims={1, 2})  # the server may have claimed for the exchange that broke


@pytest.mark.parametrize("limited", [False, *nightly(True)])
def test_answers_that_are_lost_after_the_commit_cost_no_job(
    queue: Queue, database_url: str, monkeypatch: pytest.MonkeyPatch, *, limited: bool
) -> None:
    """Outcomes that are written already are not written again, and jobs that nobody knows of are given back and claimed again."""
    if limited:
        queue.limit_keys()
    prepare, traps = Claimer._prepare, list[Set]()
    with bad_network(database_url) as (proxy, url):

        def lose_answers(self: Claimer, connection: Connection) -> bool:
            if self._kept is not None and len(traps) < 3:
                traps.append(proxy.set_trap(About.CLAIM, Trap.LOSE))
            return prepare(self, connection)

        monkeypatch.setattr(Claimer, "_prepare", lose_answers)
        worker = drain(url, queue.registry, queues={"default": LIMITED_SLOTS if limited else SLOTS})
        assert traps
        assert all(trap.sprung.is_set() for trap in traps)
    assert worker.counts["lost"] == 0
    queue.assert_each_ran_once(claims={1, 2, 3, 4})


def test_outcomes_that_were_taken_are_written_though_an_answer_cannot_be_taken_in(
    queue: Queue, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection breaks while arguments are fetched, in a round whose outcomes cannot be sent ahead."""
    wanted, take, broken = Claimer._wanted, Intake.take, list[int]()

    def break_once(self: Claimer, connection: Connection, changes: list[Change], *, overlaps: bool) -> dict[str, int]:
        if self._kept is not None and changes and not broken:
            broken.append(len(changes))
            monkeypatch.setattr(Intake, "take", cut)
            overlaps = False
        return wanted(self, connection, changes, overlaps=overlaps)

    def cut(self: Intake, connection: Connection, *_: object, **__: object) -> None:
        monkeypatch.setattr(Intake, "take", take)
        cut_line(connection.connection.dbapi_connection)
        connection.exec_driver_sql("SELECT 1")

    monkeypatch.setattr(Claimer, "_wanted", break_once)
    with working(url, queue.registry, queues={"default": SLOTS}) as worker:
        wait_until(lambda: worker.counts["completed"] == JOBS)
    assert broken


def test_no_more_jobs_are_claimed_than_may_be(queue: Queue, url: str) -> None:
    """What is kept back counts."""
    drain(url, queue.registry, queues={"default": SLOTS}, max_jobs=3_333)
    assert len(queue.ran) == 3_333
    with queue.engine.connect() as connection:
        assert Counter(connection.scalars(select(Job.claims))) == {1: 3_333, 0: JOBS - 3_333}


def test_a_worker_that_stops_leaves_no_job_in_an_answer(queue: Queue, url: str) -> None:
    """All that it has claimed is completed, or back in the queue."""
    assert WorkerSettings().buffer > SLOTS
    with working(url, queue.registry, queues={"default": SLOTS}) as worker:
        wait_until(lambda: queue.overlaps)
        worker.stop()
    with queue.engine.connect() as connection:
        assert set(connection.scalars(select(Job.status))) <= {"completed", "queued"}
    assert Counter(Counter(queue.ran).values()) == {1: worker.counts["completed"]}
