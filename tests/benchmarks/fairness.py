"""Limits and fairness: what they cost against jobs without them, how fair they are, and how soon a waiting job starts.

Both sides of a comparison are ours, with as many jobs and slots, measured in turn.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import psycopg
from sqlalchemy import Executable, text
from sqlalchemy.orm import Session

from sa_jobqueue import Job, KeyLimits, enqueue
from sa_jobqueue.sql.limits.claims import KeyCursor, LimitedRequest
from sa_jobqueue.sql.store import default_store
from sa_jobqueue.statements import pause, resume, set_limit
from sa_jobqueue.trials.bench.processes import processes

from .drain import seconds_to_drain
from .idle import cost
from .latency import conninfo
from .report import Figure, compared, interleaved
from .schema import SCHEMA, Bench, service_connection
from .tasks import note_start, turn
from .workers import SLOTS, serve, work

QUEUE = "default"
#: One job of each key at a time.
ONE_EACH = set_limit(QUEUE, per_key=KeyLimits(running=1))
#: Producers, the keys that they share, and the seconds that they enqueue.
SHARED = 20


# ---- throughput

#: % of a core: an idle worker may use less than the clock of the system tells, in a short run nothing at all.
_LEAST = 0.01


def queue_limit(bench: Bench) -> Iterator[Figure]:
    """One limit of 200 running, in one process and in two of 200 slots each, against the same without."""
    for size, least in ((1, 0.85), (2, 0.7)):
        jobs = 2_000 if bench.small else 60_000 * size
        pairs = interleaved(
            bench.repeat,
            partial(rate, bench, jobs, set_limit(QUEUE, running=200), size=size, slots=200),
            partial(rate, bench, jobs, size=size, slots=200),
        )
        title = f"drain, 200 running, {size} {'process' if size == 1 else 'processes'}"
        yield compared(title, pairs, "jobs/s", "no limit", at_least=least)


def key_limits(bench: Bench) -> Iterator[Figure]:
    """Few and many keys with a limit of 1 each, and keys without a limit, against jobs without keys."""
    jobs, few, many = (2_000, 500, 2_000) if bench.small else (60_000, 1_000, 30_000)
    for keys, limits, title, least, speed in (
        (few, [ONE_EACH], "1 running each", 0.5, 15_000),
        (many, [ONE_EACH], "1 running each", 0.33, 10_000),
        (few, [], "no limit", 0.6, None),
    ):
        pairs = interleaved(
            bench.repeat,
            partial(rate, bench, jobs, *limits, slots=200, key=f"(n % {keys})::text"),
            partial(rate, bench, jobs, slots=200),
        )
        found = compared(f"drain, {keys:,} keys, {title}", pairs, "jobs/s", "no keys", at_least=least)
        yield found
        if speed is not None:
            yield Figure(f"{found.measure}, by itself", found.ours, "jobs/s", at_least=speed)


def rate(bench: Bench, jobs: int, *limits: Executable, size: int = 1, slots: int = SLOTS, key: str = "NULL") -> float:
    """Jobs per second of `size` processes."""
    bench.prepare(jobs, *limits, key=key)
    with processes(size, work, bench.address, {QUEUE: slots}) as group:
        seconds = seconds_to_drain(bench, group)
    completed = bench.count("status = 'completed'")
    assert completed == jobs, f"{completed} of {jobs} jobs completed"
    return jobs / seconds


def held_snapshot(bench: Bench) -> Iterator[Figure]:
    """1,000 keys behind index entries of finished jobs of the same keys, which an old snapshot keeps."""
    jobs, dead, keys = (1_000, 5_000, 100) if bench.small else (60_000, 200_000, 1_000)
    pairs = interleaved(
        bench.repeat,
        partial(_behind, bench, jobs, dead, keys, held=True),
        partial(_behind, bench, jobs, dead, keys, held=False),
    )
    title = f"drain, {keys:,} keys behind {dead:,} dead entries"
    yield compared(title, pairs, "jobs/s", "snapshot released, vacuumed", at_least=0.35)


def _behind(bench: Bench, jobs: int, dead: int, keys: int, *, held: bool) -> float:
    key = f"(n % {keys})::text"
    bench.prepare(dead, ONE_EACH, key=key)
    with bench.engine.connect().execution_options(isolation_level="REPEATABLE READ") as snapshot:
        if held:
            snapshot.execute(text("SELECT count(*) FROM pg_class"))
        bench.execute(f"UPDATE {SCHEMA}.job SET status = 'completed', claims = 1, finished_at = now()")
        bench.fill(jobs, key=key)
        bench.settle()
        with processes(1, work, bench.address, {QUEUE: SLOTS}) as group:
            seconds = seconds_to_drain(bench, group)
    completed = bench.count("status = 'completed'")
    assert completed == jobs + dead, f"{completed} of {jobs + dead} jobs completed"
    return jobs / seconds


# ---- shares


def shares(bench: Bench) -> Iterator[Figure]:
    """How many jobs of each key are among the first that are claimed, while each key has some: Jain's index of 1,000 keys, one of
    which has half of the jobs (Jain, Chiu, Hawe 1984: 1 is equal, 1/n is one for all); and three keys of the weights 3, 1 and 1.
    """
    jobs, keys = (4_000, 100) if bench.small else (60_000, 1_000)
    first = jobs // 3
    rate(bench, jobs, key=f"CASE WHEN n <= {jobs // 2} THEN 'most' ELSE (n % {keys - 1})::text END")
    counts = list(_claimed(bench, first).values()) + [0] * keys
    counts = counts[:keys]
    index = sum(counts) ** 2 / (keys * sum(one * one for one in counts))
    yield Figure(f"Jain's index of {keys:,} keys, one with half of the jobs", index, "", at_least=0.95)

    rate(bench, jobs, set_limit(QUEUE, key="0", weight=3), key="(n % 3)::text")
    found = _claimed(bench, first)
    wanted = {"0": 0.6, "1": 0.2, "2": 0.2}
    furthest = max(abs(found.get(key, 0) / first / share - 1) for key, share in wanted.items())
    yield Figure("shares of weights 3, 1 and 1, furthest from theirs", furthest * 100, "%", at_most=5)


def time_shares(bench: Bench) -> Iterator[Figure]:
    """Two keys with a backlog each in 4 slots, jobs of 0.5 s and of 0.01 s: Jain's index of the seconds that each key had slots, where keys
    share the time of the queue, and where they share its starts.
    """
    seconds = 4 if bench.small else 20
    for share, least in (("time", 0.95), ("starts", None)):
        bench.prepare(100 * seconds, set_limit(QUEUE, share=share), task="turn", key="'long'")
        bench.fill(400 * seconds, task="nap", key="'short'")
        with processes(1, serve, bench.address, {QUEUE: 4}) as worker:
            worker.go()
            bench.wait_for(f"SELECT count(*) > 0 FROM {SCHEMA}.job WHERE status = 'running'")
            time.sleep(seconds)
            used = _seconds_used(bench)
            worker.stop()
        index = sum(used) ** 2 / (2 * sum(one * one for one in used))
        yield Figure(f"Jain's index of the time of two keys, equal {share}", index, "", at_least=least)


def _seconds_used(bench: Bench) -> list[float]:
    """The seconds that the jobs of each key have been claimed."""
    with bench.engine.connect() as connection:
        rows = connection.execute(
            text(
                "SELECT extract(epoch FROM sum(coalesce(finished_at, now()) - claimed_at))::float8 "
                f"FROM {SCHEMA}.job WHERE claimed_at IS NOT NULL GROUP BY concurrency_key"
            )
        )
        return [row[0] for row in rows]


def _claimed(bench: Bench, first: int) -> dict[str, int]:
    """How many of the jobs that were claimed first are of each key."""
    with bench.engine.connect() as connection:
        rows = connection.execute(
            text(
                f"SELECT concurrency_key, count(*) FROM (SELECT concurrency_key FROM {SCHEMA}.job "
                "ORDER BY claimed_at, id LIMIT :first) AS claimed GROUP BY 1"
            ),
            {"first": first},
        )
        return dict(map(tuple, rows))


# ---- one claim


def behind_many(bench: Bench) -> Iterator[Figure]:
    """10 jobs of a key that come behind 1,000,000 of another: all are in the next claim. Its time, with the commit."""
    many = 10_000 if bench.small else 1_000_000
    bench.prepare(many, key="'most'")
    claims = _Claims(bench)
    for _ in range(5):
        claims.take(100)
    times = []
    for number in range(5 if bench.small else 20):
        bench.fill(10, key=f"'few {number}'")
        began = time.perf_counter()
        taken = claims.take(100)
        times.append((time.perf_counter() - began) * 1000)
        came = bench.count(f"concurrency_key = 'few {number}' AND status = 'running'")
        assert (came, taken) == (10, 100), f"{came} of 10 jobs are in the next claim of {taken}"
    claims.close()
    yield Figure(f"claim of 10 jobs behind {many:,} of another key, median", statistics.median(times), "ms", at_most=10)
    yield Figure(f"claim of 10 jobs behind {many:,} of another key, longest", max(times), "ms")
    bench.empty()


def keys_gone(bench: Bench) -> Iterator[Figure]:
    """Keys that once had a job: the claim of 100 jobs of as many new keys, an idle worker, and what is left of them."""
    many = 2_000 if bench.small else 1_000_000
    rounds: list[tuple[float, float]] = []
    left, sizes = 0, dict[str, float]()
    rate_limit = set_limit(QUEUE, per_key=KeyLimits(running=1))
    for gone in (many, 0):
        bench.prepare(gone, rate_limit, key="n::text")
        bench.execute(f"UPDATE {SCHEMA}.job SET status = 'completed', claims = 1, finished_at = now()")
        bench.settle()
        claims, times = _Claims(bench), []
        for number in range(6 if bench.small else 25):
            bench.fill(100, key=f"'new {number} ' || n")
            began = time.perf_counter()
            assert claims.take(100) == 100
            times.append((time.perf_counter() - began) * 1000)
        claims.close()
        bench.execute(f"DELETE FROM {SCHEMA}.job WHERE status = 'running'")
        own, server, *_ = cost(bench)
        rounds.append((statistics.median(times[len(times) // 5 :]), own + server))
        if gone:
            left = bench.execute(f"SELECT count(*) FROM {SCHEMA}.limit_state")
            sizes = {
                name: bench.execute(f"SELECT pg_relation_size('{SCHEMA}.{name}') / 1048576.0")
                for name in ("job_key_ready_idx", "job_key_later_idx", "job_key_begun_idx")
            }
    (claim, idle), (claim_without, idle_without) = rounds
    yield compared(
        f"claim of 100 jobs, {many:,} keys gone", [(claim, claim_without)], "ms", "no keys gone", at_most=1.5
    )
    yield compared(
        f"idle worker, {many:,} keys gone", [(idle, max(idle_without, _LEAST))], "% of a core", "no keys gone"
    )
    yield Figure(f"rows about {many:,} keys that are gone", float(left), "rows")
    for name, size in sizes.items():
        yield Figure(f"{name} after {many:,} keys, vacuumed", float(size), "MiB")
    bench.empty()


class _Claims:
    """Claims as the worker makes them, on a connection like its own; the jobs stay claimed."""

    def __init__(self, bench: Bench) -> None:
        self._connection, _ = service_connection(bench.address)
        with self._connection.begin():
            self._known = default_store.read_limits(self._connection, [QUEUE])
        self._cursors: dict[str, KeyCursor] = {}

    def take(self, most: int) -> int:
        """One claim and its commit. Returns how many jobs it got."""
        request = LimitedRequest(
            "fairness", {QUEUE: most}, 60.0, cursors=self._cursors, tasks=self._known.tasks, known=self._known.version
        )
        with self._connection.begin():
            _, jobs, states = default_store.claim_limited(self._connection, [], request)
        self._cursors = {name: state.cursor for name, state in states.items()}
        return len(jobs)

    def close(self) -> None:
        self._connection.close()


# ---- enqueueing


def keyed_enqueue(bench: Bench) -> Iterator[Figure]:
    """8 producers that commit one job each, on 20 keys that they share, against the same without keys. One more transaction has
    enqueued a job of each key, and stays open. Beside the speed: how many waits for locks were seen, and deadlocks.
    """
    producers, seconds = (2, 0.5) if bench.small else (8, 4.0)
    waits: list[int] = []
    deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    before = bench.execute(deadlocks)
    pairs = interleaved(
        bench.repeat,
        partial(_enqueued, bench, producers, seconds, waits, keyed=True),
        partial(_enqueued, bench, producers, seconds, [], keyed=False),
    )
    title = f"{producers} producers on {SHARED} shared keys"
    yield compared(title, pairs, "commits/s", "no keys", at_least=0.6)
    yield Figure(f"{title}: waits for locks seen", float(sum(waits)), "", at_most=0)
    bench.execute("SELECT pg_stat_force_next_flush()")
    yield Figure(f"{title}: deadlocks", float(bench.execute(deadlocks) - before), "", at_most=0)


def _enqueued(bench: Bench, producers: int, seconds: float, waits: list[int], *, keyed: bool) -> float:
    bench.prepare(0, ONE_EACH)
    over = threading.Event()

    def look() -> None:
        """Each few milliseconds: how many sessions wait for a lock of a row, a transaction or an application."""
        seen = (
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' "
            "AND wait_event <> 'extend'"
        )
        with psycopg.connect(conninfo(bench.address), autocommit=True) as connection:
            while not over.wait(0.005):
                (found,) = connection.execute(seen).fetchone() or (0,)
                waits.append(int(found))

    watcher = threading.Thread(target=look)
    with psycopg.connect(conninfo(bench.address)) as opened:
        if keyed:
            opened.execute(
                f"INSERT INTO {SCHEMA}.job (task, args, concurrency_key) "
                f"SELECT 'nothing', '{{\"n\": 1}}', n::text FROM generate_series(0, {SHARED - 1}) AS n"
            )
        watcher.start()
        try:
            with processes(producers, commit_keyed, bench.address, seconds, keyed, numbered=True) as group:
                group.go()
        finally:
            over.set()
            watcher.join()
        opened.rollback()
    return float(sum(group.results) / seconds)


def commit_keyed(ready: Callable[[], Any], number: int, address: str, seconds: float, keyed: bool) -> int:
    """How many jobs this producer has committed in `seconds` seconds. By psycopg alone, so that the server is the limit."""
    statement = f"INSERT INTO {SCHEMA}.job (task, args, concurrency_key) VALUES ('nothing', '{{\"n\": 1}}', %s)"
    done = 0
    with psycopg.connect(conninfo(address), autocommit=True) as connection:
        ready()
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            connection.execute(statement, [str((number + done) % SHARED) if keyed else None], prepare=True)
            done += 1
    return done


# ---- from a change to a start


def woken(bench: Bench) -> Iterator[Figure]:
    """From the end of a job whose permit another worker waits for, and from the commit of a change, to the start of the job."""
    rounds = 2 if bench.small else 30
    for title, waits in (
        ("end of a job to the start of the next, on another worker", _freed(bench, rounds)),
        ("commit of a raised limit to a start", _changed(bench, rounds, _raised)),
        ("commit of a resume to a start", _changed(bench, rounds, _resumed)),
    ):
        yield Figure(f"{title}, median", statistics.median(waits), "ms", at_most=100)
        yield Figure(f"{title}, longest", max(waits), "ms")


def _freed(bench: Bench, rounds: int) -> list[float]:
    """A task that runs once at a time, and two workers, each for a queue of its own: so the second one waits for the first."""
    bench.prepare(0, set_limit(turn, running=1))
    with processes(1, serve, bench.address, {"a": 10}) as one, processes(1, serve, bench.address, {"b": 10}) as two:
        one.go()
        two.go()
        bench.wait_for(f"SELECT count(*) = 2 FROM {SCHEMA}.worker")
        with Session(bench.engine) as session:
            for number in range(rounds):
                session.add(enqueue(turn.options(queue="a"), 2 * number))
                session.commit()
                bench.wait_for(f"SELECT count(*) FROM {SCHEMA}.job WHERE status = 'running'")
                session.add(enqueue(turn.options(queue="b"), 2 * number + 1))
                session.commit()
                bench.wait_for(f"SELECT NOT EXISTS (SELECT FROM {SCHEMA}.job WHERE status IN ('queued', 'running'))")
        one.stop()
        two.stop()
    ended, started = one.results[0], two.results[0]
    return [(started[2 * number + 1] - ended[~(2 * number)]) * 1000 for number in range(rounds)]


def _changed(bench: Bench, rounds: int, change: Callable[[], tuple[list[Executable], list[Executable]]]) -> list[float]:
    """`change`: what keeps a job waiting, and what ends that."""
    shut, opened = change()
    bench.prepare(1, set_limit(QUEUE, running=1), task="hold")
    sent: dict[int, float] = {}
    with processes(1, serve, bench.address, {QUEUE: 10}) as worker:
        worker.go()
        bench.wait_for(f"SELECT count(*) FROM {SCHEMA}.job WHERE status = 'running'")
        with Session(bench.engine) as session:
            for number in range(rounds):
                for one in shut:
                    session.execute(one)
                job = enqueue(note_start, number)
                session.add(job)
                session.commit()
                time.sleep(0.3)  # the worker has looked, and waits
                for one in opened:
                    session.execute(one)
                session.commit()
                sent[number] = time.perf_counter()
                id_, until = job.id, time.perf_counter() + 60
                while session.get_one(Job, id_, populate_existing=True).status != "completed":
                    assert time.perf_counter() < until, f"job {id_} does not start"
                    session.rollback()
                    time.sleep(0.01)
                session.rollback()
        worker.stop()
    started = worker.results[0]
    return [(started[number] - at) * 1000 for number, at in sent.items()]


def _raised() -> tuple[list[Executable], list[Executable]]:
    return [set_limit(QUEUE, running=1)], [set_limit(QUEUE, running=2)]


def _resumed() -> tuple[list[Executable], list[Executable]]:
    return [set_limit(QUEUE, running=10), pause(QUEUE)], [resume(QUEUE)]


MEASURES = (queue_limit, key_limits, shares, time_shares, held_snapshot, behind_many, keyed_enqueue, woken, keys_gone)
