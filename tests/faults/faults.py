"""The bad days: each is a function of the scene that makes a fault, lets it last, and ends it."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import Any

import psutil
import psycopg
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from tests.faults import workload
from tests.faults.proxy import About, Trap
from tests.faults.scene import DATABASE, LEASE, PROCESSES, SLOTS, Scene
from tests.faults.server import How
from tests.support.waiting import wait_until

FAKETIME = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)
"""The library of Debian's package `libfaketime` (with `faketime`), if it is here."""


PROMISE = 5.0
"""Seconds from a fault's end within which jobs end at least half as fast as usual, and every worker claims."""
RESTART = 15.0
"""The same where a service manager has to start all of them again: four interpreters, on a busy machine, beside the three
that drain."""
RESCUE = LEASE + LEASE / 4 + 1.0
"""Seconds from a worker's death until its jobs are back in the queue: it may have renewed their leases just before; others
look for leases that ran out every quarter of one (`Maintenance`: `rescue_every`); and one more for a busy machine."""

OVERDUE = RESCUE - LEASE
"""Seconds from the end of a job's lease until it is back in the queue, by that."""

Act = Callable[[Scene, float], float | None]


@dataclass(frozen=True)
class Fault:
    """A fault that lasts `short` seconds in CI and `long` seconds in a long run.

    `act` returns when it ended (`time.time()`), if that was not just now.
    """

    name: str
    act: Act
    short: float = 0.0
    long: float = 0.0
    alone: bool = False
    """It needs the server to itself, and is no part of the random mix."""
    ci: bool = True
    """It is quick, and no other in CI is much like it."""
    needs: Callable[[], str] = field(default=lambda: "")
    """What it needs and is missing here, if anything."""
    back_within: float = PROMISE
    rescued_within: float | None = None
    """For jobs of the worker that dies of it, if one does for sure."""
    overdue_within: float | None = None
    """From the end of a lease until its job is rescued, while the fault lasts, too."""


FAULTS: dict[str, Fault] = {}


def fault(
    name: str,
    *,
    short: float = 0.0,
    long: float = 0.0,
    alone: bool = False,
    ci: bool = True,
    needs: Callable[[], str] = lambda: "",
    back_within: float = PROMISE,
    rescued_within: float | None = None,
    overdue_within: float | None = None,
) -> Callable[[Act], Act]:
    """Add a function to the table."""

    def add(act: Act) -> Act:
        FAULTS[name] = Fault(name, act, short, long, alone, ci, needs, back_within, rescued_within, overdue_within)
        return act

    return add


# ---- processes


@fault("a worker is killed", ci=False, rescued_within=RESCUE)
def kill_a_worker(scene: Scene, seconds: float) -> None:
    """SIGKILL."""
    scene.a_worker().kill()


@fault("a worker sleeps past its lease and wakes", short=LEASE + 1.5, long=LEASE * 3)
def stop_a_worker(scene: Scene, seconds: float) -> None:
    """SIGSTOP, and SIGCONT when others have its jobs."""
    worker = scene.a_worker()
    worker.suspend()
    try:
        time.sleep(seconds)
    finally:
        with suppress(psutil.NoSuchProcess):
            worker.resume()


@fault("the supervisor is killed", ci=False, alone=True, back_within=RESTART)
def kill_the_supervisor(scene: Scene, seconds: float) -> float:
    """SIGKILL; its workers drain, and a service manager starts it again.

    All but the kill is recovery, and measured as such; a fault that is mixed with this one comes after it.
    """
    workers, killed = scene.workers(), time.time()
    scene.supervisor.kill()
    scene.start_supervisor()
    _, left = psutil.wait_procs(workers, 20)
    assert left == [], "workers outlive their supervisor"
    wait_until(lambda: scene.supervisor.output.count(" serves ") >= PROCESSES, 90, "the new workers")
    return killed


@fault(
    "a job kills its worker every few seconds", ci=False, short=6.0, long=15.0, back_within=RESTART, overdue_within=RESTART
)  # fmt: skip
def kill_by_jobs(scene: Scene, seconds: float) -> None:
    """Another one each time, and what runs beside it dies with it. Meanwhile others rescue, however young they are.

    All three may be about to start just then, the supervisor pausing for longer after each fast death.
    """
    engine = create_engine(scene.server.url(DATABASE))
    for _ in turns(seconds, 2.0):
        with suppress(DBAPIError):
            scene.producer.add(Session(engine), [workload.kill], 0.05)
    engine.dispose()


# ---- connections


def backends(scene: Scene, where: str = "true") -> list[int]:
    """The server's processes that serve workers, not us."""
    return [int(str(pid)) for (pid,) in scene.ask(f"SELECT pid FROM pg_stat_activity WHERE {_of(scene)} AND {where}")]


def _of(scene: Scene, links: Callable[[Any], bool] = lambda link: True) -> str:
    """SQL that is true for the server's processes behind these of the workers' connections."""
    ports = [str(link.server[1].get_extra_info("sockname")[1]) for link in list(scene.proxy.links) if links(link)]
    ours = f"datname = '{DATABASE}' AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
    return f"{ours} AND client_port IN ({','.join(ports) or '-2'})"


def terminate(scene: Scene, pid: int) -> None:
    """`pg_terminate_backend`."""
    scene.ask(f"SELECT pg_terminate_backend({pid})")


def turns(seconds: float, pause: float = 0.1) -> Iterator[None]:
    """Turns until the time is over, at least one."""
    until = time.monotonic() + seconds
    yield
    while time.monotonic() < until:
        time.sleep(pause)
        yield


@fault("connections are terminated at random", short=1.5, long=15)
def terminate_any(scene: Scene, seconds: float) -> None:
    """One of the workers' connections, every tenth of a second."""
    for _ in turns(seconds):
        if found := backends(scene):
            terminate(scene, scene.random.choice(found))


@fault("the listeners' connections are terminated")
def terminate_listeners(scene: Scene, seconds: float) -> None:
    """All of them at once."""
    ports = [str(link.server[1].get_extra_info("sockname")[1]) for link in list(scene.proxy.links) if link.listens]
    assert ports, "no worker listens"
    for pid in backends(scene, f"client_port IN ({','.join(ports)})"):
        terminate(scene, pid)


@fault("connections are terminated in mid-transaction", short=1.5, long=15)
def terminate_transactions(scene: Scene, seconds: float) -> None:
    """Those that are in a transaction just now, a handler's most often."""
    for _ in turns(seconds, 0.2):
        for pid in backends(scene, "xact_start IS NOT NULL")[:1]:
            terminate(scene, pid)


@fault("statements are cancelled at random", ci=False, short=1.5, long=15)
def cancel_statements(scene: Scene, seconds: float) -> None:
    """As a `statement_timeout` does (SQLSTATE 57014), whatever runs."""
    for _ in turns(seconds, 0.02):
        for pid in backends(scene, "state = 'active' AND backend_xmin IS NOT NULL"):
            scene.ask(f"SELECT pg_cancel_backend({pid})")


@fault("all connections are in use", short=2.0, long=15, alone=True)
def fill_connections(scene: Scene, seconds: float) -> None:
    """Another client takes every connection that becomes free, and those of the workers are terminated."""
    with ExitStack() as stack:
        taken = [stack.enter_context(scene.server.connect(DATABASE))]  # one that was there before, to work with
        for _ in turns(seconds, 0.0):
            with suppress(psycopg.OperationalError):
                while True:
                    taken.append(stack.enter_context(scene.server.connect(DATABASE)))
            mine = [connection.info.backend_pid for connection in taken]
            others = "backend_type = 'client backend' AND pid <> ALL (%s)"
            taken[0].execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {others}", [mine])


@fault("no connection is free", short=3.0, long=15, alone=True)
def leave_none_free(scene: Scene, seconds: float) -> float:
    """Another client takes every connection except those of the workers' services: jobs are claimed, and have no session.

    Jobs with one attempt that are enqueued then lose nothing: what the worker cannot give is no attempt.
    """
    engine = create_engine(scene.server.url(DATABASE))
    looking = engine.execution_options(isolation_level="AUTOCOMMIT")
    with ExitStack() as stack, looking.connect() as ours, Session(engine) as producer:
        producer.connection()  # it is there before, to enqueue with

        def is_full() -> bool:
            """Take what is free; whether handlers have nothing."""
            with suppress(psycopg.OperationalError):
                while True:
                    stack.enter_context(scene.server.connect(DATABASE))
            handlers = _of(scene, lambda link: not link.service)
            end = f"SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE {handlers}"
            return ours.exec_driver_sql(end).scalar() == 0

        wait_until(lambda: all(is_full() for _ in range(5)), 30, "that handlers have no connection")
        keys = scene.producer.add(producer, [workload.write_at_first] * 20, 0.05)
        time.sleep(seconds)
    over = time.time()
    engine.dispose()
    wait_until(lambda: scene.settled(keys), 60, "jobs with one attempt")  # before their transactions are ended
    return over


@fault("idle sessions are ended", ci=False, short=RESCUE + 1.0, long=15, overdue_within=OVERDUE)
def end_idle_sessions(scene: Scene, seconds: float) -> None:
    """`idle_session_timeout` of the database, shorter than the workers' own pauses; and a worker is killed meanwhile."""
    scene.ask(f"ALTER DATABASE {DATABASE} SET idle_session_timeout = '250ms'")
    try:
        for pid in backends(scene):  # those that are there do not know of it
            terminate(scene, pid)
        scene.a_worker().kill()
        time.sleep(seconds)
    finally:
        scene.ask(f"ALTER DATABASE {DATABASE} RESET idle_session_timeout")


# ---- the server


@fault("the server is restarted (fast)", ci=False, alone=True)
def restart_fast(scene: Scene, seconds: float) -> None:
    scene.server.restart(How.FAST)


@fault("the server is restarted (immediate)", ci=False, alone=True)
def restart_immediately(scene: Scene, seconds: float) -> None:
    scene.server.restart(How.IMMEDIATE)


@fault("the postmaster is killed", alone=True)
def kill_the_postmaster(scene: Scene, seconds: float) -> None:
    """SIGKILL, and a start with recovery."""
    scene.server.restart(How.KILL)


@fault("the database is away", short=4.0, long=30.0, alone=True)
def go_away(scene: Scene, seconds: float) -> None:
    """Stopped, and started later."""
    scene.server.restart(How.FAST, away=seconds)


# ---- the network


@fault("the network cuts connections", ci=False, short=1.0, long=10)
def cut(scene: Scene, seconds: float) -> None:
    """A third of them, again and again; closed in order, as a proxy does that is deployed again."""
    for _ in turns(seconds, 0.3):
        scene.proxy.cut(0.34, chance=scene.random)


@fault("the network resets connections", short=1.0, long=10)
def reset(scene: Scene, seconds: float) -> None:
    """The same with RST, in the middle of a message too."""
    for _ in turns(seconds, 0.3):
        scene.proxy.cut(0.34, reset=True, chance=scene.random)


@fault("the network is slow", ci=False, short=2.0, long=15)
def slow(scene: Scene, seconds: float) -> None:
    """Each message takes 50 ms longer, each way."""
    scene.proxy.delay = 0.05
    try:
        time.sleep(seconds)
    finally:
        scene.proxy.delay = 0.0


@fault("the network refuses connections", short=2.0, long=30)
def refuse(scene: Scene, seconds: float) -> None:
    """All connections are reset, and new ones refused."""
    scene.proxy.refuse()
    try:
        scene.proxy.cut(reset=True)
        time.sleep(seconds)
    finally:
        scene.proxy.refuse(False)


@fault("the network goes silent and comes back", short=LEASE + 1.0, long=20)
def stall(scene: Scene, seconds: float) -> None:
    """Nothing is forwarded and nothing closed; then what was held back arrives after all."""
    scene.proxy.go_silent()
    try:
        time.sleep(seconds)
    finally:
        scene.proxy.go_on()


@fault("the network goes silent and forgets", ci=False, short=LEASE + 1.0, long=20)
def stall_and_reset(scene: Scene, seconds: float) -> None:
    """The same, and then all connections that were silent are reset."""
    scene.proxy.go_silent()
    try:
        time.sleep(seconds)
    finally:
        scene.proxy.go_on(reset=True)


@fault("service connections stay half-open", ci=False, short=LEASE + 5.0 + 3.0, long=20)
def half_open(scene: Scene, seconds: float) -> None:
    """The service connections of one worker go silent and are never closed; new ones work. The worker's deadline ends it."""
    worker = scene.a_worker()
    ports = {link.laddr.port for link in worker.net_connections(kind="tcp4")}
    scene.proxy.go_silent(only=lambda link: link.service and link.port in ports, newcomers=False)
    time.sleep(seconds)


# ---- lost answers


@contextmanager
def trap(scene: Scene, about: About, kind: Trap) -> Generator[int]:
    """Wait for a COMMIT of this kind; the port of the client whose it is."""
    waiting = scene.proxy.set_trap(about, kind)
    try:
        assert waiting.sprung.wait(30), f"no client commits a {about}"
        yield waiting.client_port
    finally:
        scene.proxy.open(waiting)


def _lose(about: About) -> Act:
    def lose(scene: Scene, seconds: float) -> None:
        for _ in turns(seconds, 0.2):
            with trap(scene, about, Trap.LOSE):
                pass

    return lose


fault("the answer to a claim's COMMIT is lost", short=0.5, long=10)(_lose(About.CLAIM))
fault("the answer to an outcome's COMMIT is lost", short=0.5, long=10)(_lose(About.APPLY))
fault("the answer to a handler's COMMIT is lost", short=0.5, long=10)(_lose(About.SESSION))


@fault("a host freezes between claim and commit", short=LEASE + 2.0, long=LEASE * 4)
def freeze_in_claim(scene: Scene, seconds: float) -> None:
    """The COMMIT never leaves it; the server ends the transaction, and others take the jobs. Then it wakes."""
    with trap(scene, About.CLAIM, Trap.HOLD) as port:
        worker = scene.worker_of(port)
        worker.suspend()
        try:
            time.sleep(seconds)
        finally:
            with suppress(psutil.NoSuchProcess):
                worker.resume()


# ---- locks, limits, clocks


@fault("another session locks the table", short=LEASE + 1.5, long=15)
def lock_the_table(scene: Scene, seconds: float) -> None:
    """SHARE ROW EXCLUSIVE, for longer than the lease and every statement's timeout."""
    with scene.server.connect(DATABASE) as other, other.transaction():
        other.execute("LOCK TABLE sa_jobqueue.job IN SHARE ROW EXCLUSIVE MODE")
        time.sleep(seconds)


@fault("another session holds a snapshot", short=1.0, long=30)
def hold_a_snapshot(scene: Scene, seconds: float) -> None:
    """For a while."""
    with snapshot(scene):
        time.sleep(seconds)


@contextmanager
def snapshot(scene: Scene) -> Generator[None]:
    """A transaction that sees the past from the block's beginning to its end, so that nothing can be cleaned up meanwhile."""
    with scene.server.connect(DATABASE) as other:
        other.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        # It reads no table, so that it holds no lock: other faults make and drop triggers.
        held = other.execute("SELECT pg_current_snapshot()::text").fetchone()
        yield
        assert other.execute("SELECT pg_current_snapshot()::text").fetchone() == held
        mine = f"SELECT age(backend_xmin) > 0 FROM pg_stat_activity WHERE pid = {other.info.backend_pid}"
        assert scene.ask(mine) == [(True,)], "it held nothing back"


_FULL = """
    CREATE OR REPLACE FUNCTION audit.full() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN RAISE 'could not extend file: No space left on device' USING ERRCODE = '53100'; END $$
"""
_WRITTEN = ("sa_jobqueue.job", "audit.effect")


@fault("every write is refused as if the disk were full", short=2.0, long=15)
def refuse_writes(scene: Scene, seconds: float) -> None:
    """By a trigger that raises what a full disk does (SQLSTATE 53100): in place of a full disk."""
    scene.ask(_FULL)
    try:
        for table in _WRITTEN:  # one by one, because a transaction that locks both could deadlock with a handler's
            scene.ask(
                f"CREATE OR REPLACE TRIGGER audit_full BEFORE INSERT OR UPDATE ON {table} "
                "FOR EACH STATEMENT EXECUTE FUNCTION audit.full()"
            )
        time.sleep(seconds)
    finally:
        for table in _WRITTEN:
            scene.ask(f"DROP TRIGGER IF EXISTS audit_full ON {table}")


@fault("the database is read-only", ci=False, short=2.0, long=15)
def read_only(scene: Scene, seconds: float) -> None:
    """`default_transaction_read_only` for all (SQLSTATE 25006), as on a standby."""
    scene.ask(f"ALTER DATABASE {DATABASE} SET default_transaction_read_only = on")
    scene.ask("ALTER SYSTEM SET default_transaction_read_only = on")
    scene.ask("SELECT pg_reload_conf()")
    try:
        time.sleep(seconds)
    finally:
        with scene.server.connect(DATABASE) as connection:
            connection.execute("SET default_transaction_read_only = off")
            connection.execute("ALTER SYSTEM RESET default_transaction_read_only")
            connection.execute(f"ALTER DATABASE {DATABASE} RESET default_transaction_read_only")
            connection.execute("SELECT pg_reload_conf()")


@fault(
    "two workers' clocks are five hours wrong", ci=False, short=4.0, long=30,
    needs=lambda: "" if FAKETIME else "Debian's package `faketime` is not installed here",
)  # fmt: skip
def wrong_clocks(scene: Scene, seconds: float) -> None:
    """One ahead and one behind work beside the others, and then leave."""
    assert FAKETIME is not None
    # The monotonic clock stays right: nothing sets that one wrong.
    env = {"LD_PRELOAD": str(FAKETIME), "FAKETIME_DONT_FAKE_MONOTONIC": "1", "DONT_FAKE_MONOTONIC": "1"}
    workers = [scene.start_worker(env={**env, "FAKETIME": shift}) for shift in ("+5h", "-5h")]
    for worker in workers:
        worker.wait_for(" serves ", timeout=60)
    time.sleep(seconds)
    for worker in workers:
        worker.send(signal.SIGTERM)
    for worker in workers:
        assert worker.wait() == 0
        assert (scene.words / f"{worker.pid}.jsonl").exists(), "it ran no job"


# ---- failover


@fault("a failover loses the last seconds", short=2.0, long=5.0, alone=True)
def fail_over(scene: Scene, seconds: float) -> None:
    """A standby that hears nothing for a while takes over: read-only at first, then promoted."""
    with failover(scene):
        time.sleep(seconds)  # what is committed now will be lost


@fault("a failover gives the last ids again", ci=False, short=2.0, long=5.0, alone=True)
def fail_over_with_lost_ids(scene: Scene, seconds: float) -> None:
    """Handlers of lost jobs go on, and come to their end while the same workers run the jobs that have these ids now."""
    number = PROCESSES * SLOTS // 2
    old, new = (f"{when}-{scene.random.getrandbits(32):x}" for when in ("old", "new"))
    ids = f"""
        SELECT id FROM sa_jobqueue.job
        WHERE status = 'running' AND task = '{workload.write_when_told.name}' AND args->>'gate' =
    """
    try:
        with failover(scene):
            # The standby skips the 32 ids that its sequence had been logged for.
            scene.ask(f"SELECT count(nextval('{_SEQUENCE}')) FROM generate_series(1, 40)")
            _add(scene, number, old)
            wait_until(lambda: len(scene.ask(f"{ids} '{old}'")) == number, message="the jobs that will be lost to run")
            lost = {int(str(id)) for (id,) in scene.ask(f"{ids} '{old}'")}
            time.sleep(seconds)
        wait_until(lambda: scene.ask("SELECT pg_is_in_recovery()") == [(False,)])
        _add(scene, number, new, first=min(lost))
        wait_until(
            lambda: len(scene.ask(f"{ids} '{new}'")) == number, message="the jobs that have these ids now to run"
        )
        assert {int(str(id)) for (id,) in scene.ask(f"{ids} '{new}'")} & lost, "no id was given again"
        workload.let_go(scene.words, old)
        time.sleep(LEASE)  # the old handlers write, or try to
    finally:
        for gate in (old, new):
            workload.let_go(scene.words, gate)


_SEQUENCE = "sa_jobqueue.job_id_seq"


def _add(scene: Scene, number: int, gate: str, *, first: int | None = None) -> None:
    """Enqueue jobs that wait at this gate, before all others; `first`: the id from which on they get theirs.

    They become due one after the other, so that it is not one worker that claims them all.
    """
    engine = create_engine(scene.server.url(DATABASE))
    with Session(engine) as session:
        if first is not None:  # no other session is to get one of these ids meanwhile
            session.execute(text("LOCK TABLE sa_jobqueue.job IN SHARE ROW EXCLUSIVE MODE"))
            skipped = f"generate_series((SELECT last_value FROM {_SEQUENCE}) + 2, {first})"
            session.execute(text(f"SELECT count(nextval('{_SEQUENCE}')) FROM {skipped}"))
        kinds = [workload.write_when_told.options(priority=9, delay=0.15 * n) for n in range(number)]
        scene.producer.add(session, kinds, gate)
    engine.dispose()


@contextmanager
def failover(scene: Scene) -> Generator[None]:
    """What is committed in the block is lost: a standby takes over that has heard nothing of it."""
    standby = scene.server.copy(scene.folder / f"standby-{scene.random.getrandbits(32):x}")
    begun, kept = time.time(), set(scene.producer.keys())
    ((lsn,),) = scene.ask("SELECT pg_current_wal_lsn()")
    wait_until(lambda: standby.has_followed(str(lsn)))
    standby.stop_following()
    yield
    scene.fail_over(standby)
    scene.producer.forget(set(scene.producer.keys()) - kept)
    time.sleep(1.0)  # read-only
    standby.promote()
    # What was claimed on the old server may begin a little later.
    scene.forgotten.append((begun, time.time() + LEASE))


# ---- all of them

#: What a fault may meet when another one is in its way: the server is gone, the worker died, no client commits.
_OVERTAKEN = (psycopg.Error, psutil.Error, AssertionError, LookupError)


def at_random(scene: Scene, seconds: float, *, say: Callable[[str], None] = lambda text: None) -> None:
    """One fault after another, and often two at a time, until the time is over. The seed decides which, and for how long."""
    _mix(scene, seconds, [fault for fault in FAULTS.values() if not fault.needs()], say)


def at_random_under_a_snapshot(scene: Scene, seconds: float, *, say: Callable[[str], None] = lambda text: None) -> None:
    """The same while one snapshot is held from beginning to end; without the faults that would end it with the server."""
    with snapshot(scene):
        _mix(scene, seconds, [fault for fault in FAULTS.values() if not fault.needs() and not fault.alone], say)


def _mix(scene: Scene, seconds: float, mixable: list[Fault], say: Callable[[str], None]) -> None:
    plan = random.Random(scene.seed)  # of its own: what the faults draw depends on how fast they are
    begun = time.monotonic()
    while time.monotonic() < begun + seconds:
        first, second = plan.sample(mixable, 2)
        together = [first] if first.alone or second.alone or plan.random() < 0.3 else [first, second]
        lasting = [fault.short * plan.uniform(0.5, 1.2) for fault in together]
        say(f"{time.monotonic() - begun:6.1f} s  {' + '.join(fault.name for fault in together)}")
        threads = [Thread(target=_suffer, args=(scene, *each)) for each in zip(together, lasting, strict=True)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        time.sleep(plan.uniform(0.0, 1.5))


def _suffer(scene: Scene, fault: Fault, seconds: float) -> None:
    with suppress(*_OVERTAKEN):
        fault.act(scene, seconds)
