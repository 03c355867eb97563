"""Load under limits that is killed, cancelled, paused and changed all the time, and an auditor that looks meanwhile.

    with Load(url, seed=1) as load:
        load.torment(seconds=15)
        load.finish()
    assert load.findings == []

Each look of the auditor is one statement, so one snapshot. A trigger notes each start in `audit.start`, in the transaction that makes it.
A unique index is a second witness: no key of the queue "default" runs twice. The keys of the queue "ordered" are strict.
"""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import signal
import threading
import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from itertools import count, islice, pairwise
from typing import Any, NamedTuple, Self

import psycopg
from sqlalchemy import Engine, create_engine, insert, text
from sqlalchemy.exc import ProgrammingError

from sa_jobqueue import AsyncJobContext, JobContext, RateLimited, Registry, RetryPolicy, Snooze, task
from sa_jobqueue.migrations.grants import Can, grant_statements
from tests.faults.clock import ServerClock
from tests.support import pooler
from tests.support.commands import Command, start_command
from tests.support.databases import connect
from tests.support.factory import TABLE
from tests.support.limits import key, limit, no_limit, rate
from tests.support.waiting import wait_until

__all__ = [
    "LEASE",
    "STEP",
    "Load",
    "Look",
    "Said",
    "SaidRate",
    "above_changing_rates",
    "above_limits",
    "above_rates",
    "out_of_order",
    "registry",
]

LEASE = 2.0
WORKERS = 3
KEYS = [f"k{n}" for n in range(12)]
#: Of the queue "rated": starts a second, and at once.
RATE, BURST = 20, 3
#: Seconds by which a clock steps, ahead and back.
STEP = 3.0
#: The same for each of its keys.
KEY_RATE, KEY_BURST = 5, 2
#: Of the queue "changing", each for a second or so: starts, their seconds, and at once.
RATES = [(20, 1.0, 3), (5, 1.0, 2), (1, 30 * 86_400.0, 1), (100_000, 60.0, 1_000)]
#: Seconds between the statement that sets a limit and the moment from which all claims know it, at most.
_SLACK = 1.0

registry = Registry()
_options: dict[str, Any] = {
    "registry": registry,
    "retry": RetryPolicy(base=0.05, factor=1.5, cap=0.5, jitter=0.5),
    "max_attempts": 50,
}

#: What a worker's role may do to no row.
_ATTACKS = (
    "UPDATE sa_jobqueue.job_limit SET running = 1000 WHERE held",
    "UPDATE sa_jobqueue.job_limit SET key_running = NULL WHERE name = 'default'",
    "DELETE FROM sa_jobqueue.job_limit WHERE held",
    "DELETE FROM sa_jobqueue.job_limit WHERE paused_at IS NOT NULL",
    "UPDATE sa_jobqueue.job_limit SET paused_at = NULL WHERE paused_at IS NOT NULL",
)


@task(**_options)
def write(ctx: JobContext, seconds: float) -> None:
    """Ends with what it wrote."""
    ctx.session.execute(text("INSERT INTO audit.effect (job_id) VALUES (:id)"), {"id": ctx.job_id})
    time.sleep(seconds)


@task(**_options)
async def wait(ctx: AsyncJobContext, seconds: float) -> None:
    """Does nothing."""
    await asyncio.sleep(seconds)


@task(**_options)
async def write_async(ctx: AsyncJobContext, seconds: float) -> None:
    """As `write`."""
    await ctx.session.execute(text("INSERT INTO audit.effect (job_id) VALUES (:id)"), {"id": ctx.job_id})
    await asyncio.sleep(seconds)


@task(**_options)
async def stumble(ctx: AsyncJobContext, seconds: float) -> None:
    """Fails at first."""
    await asyncio.sleep(seconds)
    if ctx.attempt == 1:
        raise RuntimeError("on purpose")


@task(**_options)
async def snooze(ctx: AsyncJobContext, seconds: float) -> Snooze | None:
    """Comes back a few times."""
    await asyncio.sleep(seconds)
    return Snooze(0.1) if random.random() < 0.5 else None


@task(**_options)
async def refused(ctx: AsyncJobContext, seconds: float) -> RateLimited | None:
    """Is told to come later a few times."""
    await asyncio.sleep(seconds)
    return ctx.rate_limited(0.2) if random.random() < 0.5 else None


@task(**_options)
def few(ctx: JobContext, seconds: float) -> None:
    """Its task has a limit, in both queues."""
    time.sleep(seconds)


TASKS = ["write", "wait", "write_async", "stumble", "snooze", "few"]
NAMES = {one.name.rsplit(".", 1)[-1]: one.name for one in (write, wait, write_async, stumble, snooze, few, refused)}

_AUDIT = (
    "CREATE SCHEMA audit",
    "CREATE TABLE audit.effect (job_id bigint NOT NULL)",
    """
    CREATE TABLE audit.start (
        id bigserial, job_id bigint, queue text, task text, key text, units integer, at timestamptz, xid text DEFAULT pg_current_xact_id()::text)
    """,
    """
    CREATE FUNCTION audit.started() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO audit.start (job_id, queue, task, key, units, at)
        VALUES (NEW.id, NEW.queue, NEW.task, NEW.concurrency_key, coalesce(NEW.units, 1), NEW.claimed_at);
        RETURN NULL;
    END $$
    """,
    """
    CREATE TRIGGER started AFTER UPDATE ON sa_jobqueue.job FOR EACH ROW
    WHEN (NEW.status = 'running' AND (OLD.status <> 'running' OR OLD.claims <> NEW.claims)) EXECUTE FUNCTION audit.started()
    """,
    """
    CREATE UNIQUE INDEX second_witness ON sa_jobqueue.job (queue, concurrency_key)
    WHERE status = 'running' AND queue = 'default' AND concurrency_key >= chr(2)
    """,
)


class Said(NamedTuple):
    """A limit that was set; None: none. Seconds of the epoch, from just before its transaction until just after."""

    owner: str
    name: str
    running: int | None
    since: float
    until: float


class SaidRate(NamedTuple):
    """A rate that was set: starts in one second at most. Seconds of the epoch, as in `Said`."""

    most: float
    since: float
    until: float


class Look(NamedTuple):
    """How many ran at once of something, and when the last of them was started."""

    owner: str
    name: str
    running: int
    last: float


def above_limits(looks: Sequence[Look], said: Sequence[Said]) -> Iterator[str]:
    """The looks that saw more than any limit allowed that may have held when the last of them was started."""
    for look in looks:
        allowed: list[int | None] = []
        history = [one for one in said if (one.owner, one.name) == (look.owner, look.name)]
        for n, one in enumerate(history):
            ends = history[n + 1].until + _SLACK if n + 1 < len(history) else float("inf")
            if one.since - _SLACK <= look.last <= ends:
                allowed.append(one.running)
        if allowed and None not in allowed and look.running > max(n for n in allowed if n is not None):
            yield f"{look.running} of {look.owner} {look.name} ran at {look.last}, the limits were {allowed}"


def above_rates(starts: Sequence[tuple[float, int]], most: float, seconds: float) -> Iterator[str]:
    """The windows in which more units were started. `starts`: when, and their units."""
    times = sorted(starts)
    at = [when for when, _ in times]
    sums = [0]
    for _, units in times:
        sums.append(sums[-1] + units)
    for n, begin in enumerate(at):
        end = bisect_left(at, begin + seconds - 1e-5)
        if sums[end] - sums[n] > most:
            yield f"{sums[end] - sums[n]} units in {seconds} s from {begin} on, of {most}"


def above_changing_rates(starts: Sequence[tuple[float, int]], said: Sequence[SaidRate]) -> Iterator[str]:
    """The seconds in which more units were started than any rate allowed that may have held in them. `starts`: when, and their units."""
    times = sorted(starts)
    at = [when for when, _ in times]
    ends = [*(one.until + _SLACK for one in said[1:]), float("inf")]
    for n, begin in enumerate(at):
        most = max(
            one.most for one, end in zip(said, ends, strict=True) if one.since - _SLACK <= begin + 1.0 and begin <= end
        )
        yield from islice(above_rates(times[n : bisect_left(at, begin + 1.0)], most, 1.0), 1)


def out_of_order(ids: Sequence[int]) -> Iterator[str]:
    """The starts of a key's jobs, in their order, that came after one of a later job. `ids`: of these jobs, which were enqueued in this order."""
    for before, after in pairwise(ids):
        if after < before:
            yield f"job {after} was started after {before}"


_LOOK = """
    SELECT 'queue', queue, count(*), max(extract(epoch FROM claimed_at))::float8 FROM sa_jobqueue.job WHERE status = 'running' GROUP BY queue
    UNION ALL
    SELECT 'task', task, count(*), max(extract(epoch FROM claimed_at))::float8 FROM sa_jobqueue.job WHERE status = 'running' GROUP BY task
    UNION ALL
    SELECT 'key', queue || '/' || concurrency_key, count(*), max(extract(epoch FROM claimed_at))::float8 FROM sa_jobqueue.job
    WHERE status = 'running' AND concurrency_key >= chr(2) GROUP BY queue, concurrency_key
    UNION ALL
    SELECT 'key of few', concurrency_key, count(*), max(extract(epoch FROM claimed_at))::float8 FROM sa_jobqueue.job
    WHERE status = 'running' AND concurrency_key >= chr(2) AND task = %(few)s GROUP BY concurrency_key
"""


class Load:
    """Workers, producers, an operator, one who may only work and tries what an operator may, and the auditor. `app`: where the workers' tasks are.

    Behind a pooler only the workers are; the auditor is not. `clock`: of a server whose clock is to step meanwhile; then nobody changes a
    limit, and no rate is judged, for both are looked at by their times.
    """

    def __init__(
        self,
        url: str,
        *,
        seed: int = 0,
        app: str = "tests.faults.limited:registry",
        workers: int = WORKERS,
        clock: ServerClock | None = None,
    ) -> None:
        self.url, self._workers_url, self._app, self._number = pooler.direct(url), url, app, workers
        self._clock = clock
        self.steps = 0
        self.random = random.Random(seed)
        self.findings: list[str] = []
        self.looks = 0
        self.kills = 0
        self.most: Counter[tuple[str, str]] = Counter()
        self.committed: set[int] = set()
        self.emptied_in = 0.0
        """Seconds from the end of all trouble until nothing was left."""
        self.longest_pause = 0.0
        """Of that time, the longest in which no job was started."""
        self.attacks = 0
        """Of a worker's role on limits, each refused."""
        self.left = 0
        """Jobs that had not ended then."""
        self._looks: list[Look] = []
        self._said: list[Said] = []
        self._said_rates: list[SaidRate] = []
        self._stop, self._end = threading.Event(), threading.Event()
        self._errors: list[BaseException] = []
        self._stack = ExitStack()
        self._commands: list[Command] = []
        self._threads: list[threading.Thread] = []
        self._numbers = count()

    def __enter__(self) -> Self:
        self._engine: Engine = create_engine(self.url, pool_size=20)
        self._stack.callback(self._engine.dispose)
        with self._engine.begin() as connection:
            for statement in _AUDIT:
                connection.exec_driver_sql(statement)
        self.say("queue", "default", 5, key_running=1, held=True)
        self.say("task", NAMES["few"], 2, key_running=1, held=True)
        self._make_attacker()
        self.say_rate(*RATES[0])
        with self._engine.begin() as connection:
            limit(connection, "rated", **rate(RATE, 1.0, BURST), **rate(KEY_RATE, 1.0, KEY_BURST, prefix="key_"))
            key(connection, "k0", "rated", weight=3)
            limit(connection, "ordered", key_running=1, strict=True)
        now = time.time()
        for one in KEYS:
            self._said.append(Said("key", f"default/{one}", 1, 0.0, now))
            self._said.append(Said("key of few", one, 1, 0.0, now))
        try:
            for _ in range(self._number):
                self._commands.append(self._worker())
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._end.set()
        for thread in self._threads:
            thread.join()
        self._stack.close()

    def _make_attacker(self) -> None:
        """A role that may work, and no more."""
        name = f"attacker_{secrets.token_hex(6)}"
        with self._engine.begin() as connection:
            for statement in (f"CREATE ROLE {name}", *grant_statements(name, [Can.WORK])):
                connection.exec_driver_sql(statement)
        self._attacker = name
        self._stack.callback(self._remove_attacker)

    def _remove_attacker(self) -> None:
        with self._engine.begin() as connection:
            connection.exec_driver_sql(f"DROP OWNED BY {self._attacker}; DROP ROLE {self._attacker}")

    def say(self, owner: str, name: str, running: int | None, **columns: Any) -> None:
        """Set a limit of what may run."""
        since = time.time()
        with self._engine.begin() as connection:
            limit(connection, name, owner=owner, running=running, **columns)
        self._said.append(Said(owner, name, running, since, time.time()))

    def say_rate(self, number: int, seconds: float, burst: int) -> None:
        """Set the rate of the queue "changing"."""
        since = time.time()
        with self._engine.begin() as connection:
            limit(connection, "changing", **rate(number, seconds, burst))
        self._said_rates.append(SaidRate(number / seconds + burst, since, time.time()))

    def _worker(self) -> Command:
        return self._stack.enter_context(
            start_command(
                "work", f"--app={self._app}", "--queue=default=6", "--queue=rated=4", "--queue=ordered=3", "--queue=changing=3", f"--lease={LEASE}", "--poll=0.5", "--grace=3",
                "--max-rescues=1000", url=self._workers_url,
            )
        )  # fmt: skip

    # ---- trouble

    def torment(self, seconds: float) -> None:
        """Let everything happen for so long."""
        for run in (
            self._produce,
            self._produce,
            self._produce_in_order,
            self._operate,
            self._change_rate,
            self._attack,
            self._cancel,
            self._lock,
            self._kill,
        ):
            self._start(run, self._stop)
        if self._clock is not None:
            self._start(self._step, self._stop)
        self._start(self._look, self._end)
        self._stop.wait(seconds)
        self._stop.set()

    def finish(self, patience: float = 60.0) -> None:
        """Let the workers end everything, and audit what was seen."""
        for thread in self._threads[:-1]:
            thread.join()
        self.say("queue", "default", 5, paused_at=None)
        self.say("task", NAMES["few"], 2, paused_at=None)
        self.say_rate(*max(RATES))
        with self._engine.begin() as connection:
            for one in KEYS:
                key(connection, one, paused_at=None)
        begun = time.monotonic()

        def left() -> int:
            with self._engine.connect() as connection:
                return int(
                    connection.scalar(
                        text("SELECT count(*) FROM sa_jobqueue.job WHERE status IN ('queued', 'running')")
                    )
                    or 0
                )

        began = self._now()
        self.left = left()
        with suppress(AssertionError):
            wait_until(lambda: left() == 0, patience + self.left / 10)
        self.emptied_in = time.monotonic() - begun
        moments = [began, *self._starts_since(began), self._now()]
        self.longest_pause = max(later - one for one, later in pairwise(moments))
        if number := left():
            self.findings.append(f"{number} jobs came to no end: a permit was lost, or a key starves")
        self._end.set()
        for thread in self._threads:
            thread.join()
        self._audit()

    def _now(self) -> float:
        """The database's time, as `audit.start` has it."""
        with self._engine.connect() as connection:
            return float(connection.scalar(text("SELECT extract(epoch FROM clock_timestamp())")) or 0)

    def _starts_since(self, moment: float) -> list[float]:
        query = text(
            "SELECT extract(epoch FROM at)::float8 AS at FROM audit.start WHERE at > to_timestamp(:since) ORDER BY 1"
        )
        with self._engine.connect() as connection:
            return list(connection.scalars(query, {"since": moment}))

    def _start(self, run: Callable[[random.Random], None], end: threading.Event) -> None:
        own = random.Random(self.random.random())

        def loop() -> None:
            while not end.is_set():
                try:
                    run(own)
                except psycopg.Error as error:
                    self._errors.append(error)
                    return

        thread = threading.Thread(target=loop, name=run.__name__, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _produce(self, own: random.Random) -> None:
        """A transaction with some jobs: their keys in any order, some for later, some without a key; rolled back, or left open for a while."""
        rows = [
            {
                "task": NAMES[own.choice(TASKS)],
                "args": {"seconds": own.uniform(0.0, 0.05)},
                "concurrency_key": own.choice([*KEYS, None, None]),
                "queue": own.choice(["default", "default", "default", "rated", "rated", "changing"]),
                "priority": own.choice([0, 5, 9]),
            }
            for _ in range(own.randint(1, 5))
        ]
        with self._engine.connect() as connection:
            ids = [int(connection.scalar(insert(TABLE).values(**one).returning(TABLE.c.id))) for one in rows]
            if own.random() < 0.1:
                connection.execute(
                    text("UPDATE sa_jobqueue.job SET run_at = now() + interval '0.4 s' WHERE id = ANY (:ids)"),
                    {"ids": ids},
                )
            if own.random() < 0.03:
                self._stop.wait(2.0)
            if own.random() < 0.15:
                connection.rollback()
            else:
                connection.commit()
                self.committed.update(ids)
        self._stop.wait(own.uniform(0.05, 0.15))

    def _produce_in_order(self, own: random.Random) -> None:
        """A job of a strict key, committed before the next one begins."""
        one = {
            "task": NAMES[own.choice([*TASKS[:-1], "refused"])],
            "args": {"seconds": own.uniform(0.0, 0.05)},
            "concurrency_key": own.choice(KEYS[:6]),
            "queue": "ordered",
        }
        with self._engine.begin() as connection:
            id = connection.scalar(insert(TABLE).values(**one).returning(TABLE.c.id))
        self.committed.add(int(id))
        self._stop.wait(own.uniform(0.05, 0.2))

    def _lock(self, own: random.Random) -> None:
        """Lock jobs of strict keys for a moment, those that come next among them."""
        with self._engine.begin() as connection:
            connection.execute(
                text(
                    "SELECT id FROM sa_jobqueue.job WHERE status = 'queued' AND queue = 'ordered' ORDER BY id LIMIT 3 FOR UPDATE SKIP LOCKED"
                )
            )
            self._stop.wait(own.uniform(0.0, 0.3))
        self._stop.wait(own.uniform(0.1, 0.5))

    def _operate(self, own: random.Random) -> None:
        """Change a limit, pause and resume."""
        what = own.randrange(5) if self._clock is None else own.randrange(2, 5)
        if what == 0:
            self.say("queue", "default", own.choice([2, 3, 5, 8]))
        elif what == 1:
            self.say("task", NAMES["few"], own.choice([1, 2, 4]))
        elif what == 2:
            self._pause(own, lambda connection, at: limit(connection, paused_at=at))
        elif what == 3:
            one = own.choice(KEYS)
            self._pause(own, lambda connection, at: key(connection, one, paused_at=at))
        else:
            with self._engine.begin() as connection:  # of what is nobody's
                limit(connection, "other", running=1)
                no_limit(connection, "other")
        self._stop.wait(own.uniform(0.2, 0.8))

    def _attack(self, own: random.Random) -> None:
        """As a worker's role, change or delete limits that an operator holds, or end a pause."""
        attack = own.choice(_ATTACKS)
        try:
            with self._engine.begin() as connection:
                connection.exec_driver_sql(f"SET LOCAL ROLE {self._attacker}")
                if connection.execute(text(attack)).rowcount:
                    self.findings.append(f"a worker's role was allowed: {attack}")
        except ProgrammingError:
            self.attacks += 1
        self._stop.wait(own.uniform(0.05, 0.3))

    def _change_rate(self, own: random.Random) -> None:
        """Raise or lower a rate, after what it has left was used up or not."""
        self.say_rate(*own.choice(RATES))
        self._stop.wait(own.uniform(0.5, 1.5))

    def _pause(self, own: random.Random, say: Callable[[Any, Any], None]) -> None:
        with self._engine.begin() as connection:
            say(connection, text("now()"))
        self._stop.wait(own.uniform(0.1, 0.5))
        with self._engine.begin() as connection:
            say(connection, None)

    def _cancel(self, own: random.Random) -> None:
        """Cancel some jobs, whatever they do."""
        from sa_jobqueue.statements import cancel_jobs

        with self._engine.begin() as connection:
            ids = connection.scalars(
                text("SELECT id FROM sa_jobqueue.job WHERE status IN ('queued', 'running') ORDER BY random() LIMIT 2")
            ).all()
            connection.execute(cancel_jobs(TABLE.c.id.in_(ids)))
        self._stop.wait(own.uniform(0.2, 0.6))

    def _kill(self, own: random.Random) -> None:
        """Kill one of the workers, perhaps after it was frozen for about a lease, and start another one."""
        self._stop.wait(own.uniform(0.4, 1.2))
        place = own.randrange(len(self._commands))
        if own.random() < 0.2:
            self._freeze(self._commands[place], own.uniform(0.5, 1.5) * LEASE)
        self._note(self._commands[place])
        self._commands[place].kill_group()
        self.kills += 1
        self._commands[place] = self._worker()

    def _freeze(self, command: Command, seconds: float) -> None:
        command.send_group(signal.SIGSTOP)
        self._stop.wait(seconds)
        command.send_group(signal.SIGCONT)
        self._stop.wait(0.3)

    def _step(self, own: random.Random) -> None:
        """Set the server's clock."""
        assert self._clock is not None
        self._stop.wait(own.uniform(0.5, 2.0))
        self._clock.step(own.choice([-STEP, 0.0, STEP]))
        self.steps += 1

    def _note(self, command: Command) -> None:
        for line in command.output.splitlines():
            if "lock timeout" in line:
                continue  # a claim waits for a limit's lock, which a frozen worker may hold; or the clock by which it waits has stepped
            if any(
                word in line
                for word in ("cannot be claimed", "second_witness", "deadlock", "Traceback", "refuses what")
            ):
                self.findings.append(f"a worker said: {line}")

    # ---- the auditor

    def _look(self, own: random.Random) -> None:
        with connect(self.url) as connection:
            while not self._end.is_set():
                for owner, name, running, last in connection.execute(_LOOK, {"few": NAMES["few"]}):
                    look = Look(owner, name, running, last)
                    if running > 1 or owner == "queue":
                        self._looks.append(look)
                    self.most[owner, name] = max(self.most[owner, name], running)
                self.looks += 1
                time.sleep(0.002)

    def _audit(self) -> None:
        self.findings += [f"{error!r}" for error in self._errors]
        for command in self._commands:
            self._note(command)
        self.findings += list(above_limits(list(dict.fromkeys(self._looks)), self._said))[:20]
        by_key: dict[str, list[tuple[float, int]]] = defaultdict(list)
        with self._engine.connect() as connection:
            starts = connection.execute(
                text("SELECT extract(epoch FROM at)::float8, units, key FROM audit.start WHERE queue = 'rated'")
            ).all()
            changing = connection.execute(
                text("SELECT extract(epoch FROM at)::float8, units FROM audit.start WHERE queue = 'changing'")
            ).all()
            for at, units, of in starts:
                if of is not None and of >= "\x02":
                    by_key[of].append((at, units))
            if self._clock is not None:
                starts, by_key, changing = [], {}, []
            self.findings += list(above_changing_rates([(at, units) for at, units in changing], self._said_rates))[:5]
            self.findings += list(above_rates([(at, units) for at, units, _ in starts], RATE + BURST, 1.0))[:5]
            self.findings += list(above_rates([(at, units) for at, units, _ in starts], RATE // 4 + BURST, 0.25))[:5]
            for of, found in by_key.items():
                self.findings += [f"{of}: {one}" for one in above_rates(found, KEY_RATE + KEY_BURST, 1.0)][:5]
            strict = "SELECT key, array_agg(job_id ORDER BY id) FROM audit.start WHERE queue = 'ordered' GROUP BY key"
            for of, ids in connection.execute(text(strict)) if self._clock is None else ():
                self.findings += [f"{of}: {one}" for one in out_of_order(ids)][:5]
            ended = set(
                connection.scalars(text("SELECT id FROM sa_jobqueue.job WHERE status IN ('completed', 'cancelled')"))
            )
            odd = connection.execute(
                text("SELECT id, status FROM sa_jobqueue.job WHERE status NOT IN ('completed', 'cancelled')")
            ).all()
            twice = connection.scalar(
                text("SELECT count(*) FROM (SELECT job_id FROM audit.effect GROUP BY 1 HAVING count(*) > 1) AS x")
            )
        self.findings += [f"job {one} is lost" for one in sorted(self.committed - ended)][:5]
        self.findings += [f"job {one} is {status}" for one, status in odd][:5]
        if twice:
            self.findings.append(f"the effects of {twice} jobs were committed twice")

    def __str__(self) -> str:
        most = {
            f"{owner} {name}": n
            for (owner, name), n in self.most.items()
            if owner == "queue" or (owner == "task" and name == NAMES["few"])
        }
        keys = max((n for (owner, _), n in self.most.items() if owner == "key"), default=0)
        return (
            f"{self.kills} kills, {len(self._said_rates)} rates, {self.attacks} attacks, {self.looks} looks, {len(self.committed)} jobs, at most {most}, {keys} of a key, "
            f"{self.left} left, emptied in {self.emptied_in:.1f} s, at most {self.longest_pause:.1f} s without a start, pid {os.getpid()}"
        )
