"""Breakers: failures pause a task, or a key of it, over all workers; then one job probes."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, func, select, text, update
from sqlalchemy.orm import Session

from sa_jobqueue import (
    Breaker,
    Cancel,
    Job,
    JobContext,
    JobStatus,
    Registry,
    Retry,
    RetryPolicy,
    TaskName,
    enqueue,
    explain_job,
    task,
)
from sa_jobqueue.dashboard import Access
from sa_jobqueue.models import AuditEntry, KeyRow, LimitRow, LimitState, WorkerRow
from sa_jobqueue.sql.limits.state import tell_breakers
from sa_jobqueue.sql.store import default_store
from sa_jobqueue.statements import close_breaker, list_limits, open_breaker, pause, remove_limit, resume, set_limit
from tests.support import breaker_app
from tests.support.browsing import Viewer
from tests.support.busy_scene import make_worker
from tests.support.cli import as_json, invoke, notes, output, refused
from tests.support.commands import start_command
from tests.support.factory import make_job
from tests.support.killed import FOLDER
from tests.support.waiting import wait_until
from tests.support.working import add, add_one, drain, finished, job_of, long_healthy, statuses, time_out, working

NEVER = RetryPolicy(no_retry=(BaseException,))
LONG = 3_600.0


class Down:
    """The other side: it refuses the calls while it `is_down`."""

    def __init__(self) -> None:
        self.is_down: type[Exception] | None = ConnectionError
        self.calls = 0

    def call(self) -> None:
        self.calls += 1
        if self.is_down is not None:
            raise self.is_down("the other side is down")


@pytest.fixture
def down() -> Down:
    return Down()


def states(engine: Engine) -> dict[str | None, str]:
    """The breakers that are not closed, by key; None: of the task."""
    said: dict[str | None, str] = {}
    with engine.connect() as connection:
        for mapped, key in ((LimitRow, None), (KeyRow, KeyRow.key)):
            columns = (mapped.broken_until > func.clock_timestamp(), *(() if key is None else (key,)))
            for row in connection.execute(select(*columns).where(mapped.broken_until.is_not(None))):
                said[None if key is None else row[1]] = "open" if row[0] else "probes"
    return said


def rested(engine: Engine) -> None:
    """The rest of all breakers is over, as of a second ago."""
    with engine.begin() as connection:
        for mapped in (LimitRow, KeyRow):
            ago = func.clock_timestamp() - timedelta(seconds=1)
            connection.execute(update(mapped).where(mapped.broken_until.is_not(None)).values(broken_until=ago))


def audited(engine: Engine) -> list[tuple[str, str]]:
    with engine.connect() as connection:
        found = connection.execute(select(AuditEntry.action, AuditEntry.who).order_by(AuditEntry.id))
        return [(action, who) for action, who in found]


def workers(engine: Engine) -> int:
    with engine.connect() as connection:
        return connection.scalar(select(func.count()).select_from(WorkerRow)) or 0


def waiting(engine: Engine) -> int:
    return len(statuses(engine, Job.status == JobStatus.QUEUED))


def test_failures_open_it_and_a_probe_that_completes_closes_it(
    engine: Engine, url: str, registry: Registry, down: Down
) -> None:
    """Over two workers, one after the other. Jobs wait without spending attempts, and what is left behind is an audit, no row."""

    @task(registry=registry, name="call", retry=NEVER, breaker=Breaker(failures=3, per=LONG, rest=LONG))
    def call() -> None:
        down.call()

    add(engine, enqueue(call), enqueue(call))
    drain(url, registry, queues={"default": 1})
    assert states(engine) == {}
    add_one(engine, enqueue(call))
    drain(url, registry, queues={"default": 1})
    assert (down.calls, states(engine)) == (3, {None: "open"})

    ids = add(engine, *(enqueue(call) for _ in range(5)))
    drain(url, registry)
    assert (down.calls, waiting(engine)) == (3, 5)
    assert {job_of(engine, id).attempt for id in ids} == {0}
    with Session(engine) as session:
        assert "waits: the breaker of task call is open until" in str(explain_job(session, ids[0]))

    rested(engine)
    down.is_down = None
    drain(url, registry)
    assert finished(engine, *ids)
    assert (down.calls, states(engine)) == (8, {})
    assert audited(engine) == [("open_breaker", "a worker"), ("close_breaker", "the probe")]
    with engine.connect() as connection:
        assert connection.scalar(select(func.count()).select_from(LimitRow)) == 0
        assert connection.scalar(select(LimitState.failed_at)) is None


def test_a_probe_that_fails_opens_it_again(engine: Engine, url: str, registry: Registry, down: Down) -> None:
    """One job after each rest, also where many slots are free, and where the probe's own transaction is the job's."""

    @task(registry=registry, name="call", retry=NEVER, breaker=Breaker(failures=1, per=LONG, rest=LONG), retain=0)
    def call(ctx: JobContext) -> None:
        ctx.session.execute(text("SELECT 1"))
        down.call()

    add(engine, *(enqueue(call) for _ in range(6)))
    drain(url, registry, queues={"default": 1})
    calls = down.calls
    assert states(engine) == {None: "open"}
    for more in (1, 2):
        rested(engine)
        drain(url, registry)
        assert (down.calls, states(engine)) == (calls + more, {None: "open"})
    rested(engine)
    down.is_down = None
    drain(url, registry)
    assert states(engine) == {}
    assert statuses(engine, Job.status == JobStatus.QUEUED) == []


def test_a_key_pauses_alone(engine: Engine, url: str, registry: Registry) -> None:
    """With by="key" the jobs of the other keys, and those without a key, go on; the key probes by itself."""
    called: list[str] = []
    refused = {"a"}

    @task(registry=registry, name="call", retry=NEVER, breaker=Breaker(failures=2, per=LONG, rest=LONG, by="key"))
    def call(host: str) -> None:
        called.append(host)
        if host in refused:
            raise ConnectionError(host)

    def enqueued(host: str, number: int) -> list[int]:
        return add(engine, *(enqueue(call.options(key=host) if host else call, host) for _ in range(number)))

    enqueued("a", 2)
    drain(url, registry)
    assert states(engine) == {"a": "open"}
    held, free = enqueued("a", 3), [*enqueued("b", 3), *enqueued("", 3)]
    drain(url, registry)
    assert finished(engine, *free)
    assert {job_of(engine, id).status for id in held} == {JobStatus.QUEUED}
    with Session(engine) as session:
        assert "waits: the breaker of task call, key a, is open until" in str(explain_job(session, held[0]))

    rested(engine)
    drain(url, registry)
    assert (called.count("a"), states(engine)) == (3, {"a": "open"})
    rested(engine)
    refused.clear()
    drain(url, registry)
    assert finished(engine, *held)
    assert states(engine) == {}
    with engine.connect() as connection:
        assert connection.scalar(select(func.count()).select_from(KeyRow)) == 0


@pytest.mark.parametrize(("by", "key"), [("key", None), ("task", "a"), (None, None), (None, "a")])
def test_a_job_probes_each_breaker_that_keeps_it_waiting(
    engine: Engine, url: str, registry: Registry, down: Down, by: Any, key: str | None
) -> None:
    """An operator has opened it: of a task whose keys have a breaker each, of a key of a task that has one for all, or of a task that declares
    none.
    """
    declared = None if by is None else Breaker(failures=5, per=LONG, rest=LONG, by=by)

    @task(registry=registry, name="call", retry=NEVER, breaker=declared)
    def call() -> None:
        down.call()

    with engine.begin() as connection:
        connection.execute(open_breaker(call, key=key, rest=LONG))
    add(engine, *(enqueue(call.options(key="a")) for _ in range(5)))
    for calls, is_down, left in ((0, down.is_down, "open"), (1, down.is_down, "open"), (5, None, None)):
        down.is_down = is_down
        drain(url, registry)
        assert (down.calls, states(engine)) == (calls, {} if left is None else {key: left})
        rested(engine)


def test_failures_of_the_same_keys_in_two_workers_do_not_wait_for_each_other_in_a_circle(
    engine: Engine, registry: Registry
) -> None:
    """A worker writes failures of the keys a and b, another that of b: both open a breaker."""
    told = Breaker(failures=1, by="key").told(failed=True)
    ids = add(engine, *(enqueue(TaskName("call").options(key=key)) for key in "ab"))
    with engine.begin() as connection:
        connection.execute(open_breaker("call", key="z"))

    def tell(*ids: int) -> None:
        with engine.begin() as connection:
            connection.execute(tell_breakers(ids, [told] * len(ids)))

    with engine.connect() as holder, ThreadPoolExecutor() as pool:
        holder.execute(select(LimitRow).where(LimitRow.name == "call").with_for_update())
        first = pool.submit(tell, *ids)
        wait_until(lambda: blocked(engine) == 1)
        second = pool.submit(tell, ids[1])
        wait_until(lambda: blocked(engine) == 2)
        holder.rollback()
        first.result()
        second.result()
    assert states(engine) == {"a": "open", "b": "open", "z": "open"}


def blocked(engine: Engine) -> int:
    """The sessions of this database that wait for a lock."""
    with engine.connect() as connection:
        waits = text(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        return connection.scalar(waits) or 0


def test_only_failures_that_count_open_it(engine: Engine, url: str, registry: Registry, down: Down) -> None:
    """Of the types of `on`, within `per`; not what a handler says on purpose. A probe that fails otherwise closes it."""

    @task(
        registry=registry, name="call", retry=NEVER, breaker=Breaker(failures=2, per=60, rest=LONG, on=(TimeoutError,))
    )
    def call(way: str) -> Any:
        if way == "retry":
            raise Retry(in_=LONG)
        if way == "cancel":
            return Cancel("not needed")
        raise (TimeoutError if way == "timeout" else ValueError)(way)

    add(engine, *(enqueue(call, way) for way in ("timeout", "retry", "cancel", "value", "value")))
    drain(url, registry)
    assert states(engine) == {}
    with engine.begin() as connection:
        past = text("UPDATE sa_jobqueue.limit_state SET failed_at = ARRAY[now() - interval '61 seconds']")
        connection.execute(past)
    add_one(engine, enqueue(call, "timeout"))
    drain(url, registry)
    assert states(engine) == {}
    add_one(engine, enqueue(call, "timeout"))
    drain(url, registry)
    assert states(engine) == {None: "open"}
    rested(engine)
    add_one(engine, enqueue(call, "value"))
    drain(url, registry)
    assert states(engine) == {}


def test_the_timeout_of_a_task_counts_as_a_timeout_error(engine: Engine, url: str, registry: Registry) -> None:
    """`on=(TimeoutError,)` counts the timeout of the task as well as the timeout of a client."""
    begun, go = threading.Event(), threading.Event()

    @task(
        registry=registry, name="call", retry=NEVER, timeout=LONG,
        breaker=Breaker(failures=1, per=LONG, rest=LONG, on=(TimeoutError,)),
    )  # fmt: skip
    def call() -> None:
        begun.set()
        go.wait(60)

    with working(url, registry) as worker:
        add_one(engine, enqueue(call))
        assert begun.wait(60)
        time_out(worker)
        wait_until(lambda: states(engine) == {None: "open"})
        go.set()


def test_jobs_that_began_before_it_opened_say_nothing(engine: Engine, url: str, registry: Registry) -> None:
    """Their end neither closes it nor is it a probe, which starts beside them."""
    begun, go = threading.Semaphore(0), threading.Event()

    @task(registry=registry, name="call", breaker=Breaker(failures=1, per=LONG, rest=LONG))
    def call(waits: bool) -> None:
        begun.release()
        if waits:
            go.wait(60)

    with working(url, registry):
        old = add_one(engine, enqueue(call, True))
        begun.acquire()
        with engine.begin() as connection:
            connection.execute(open_breaker(call, rest=LONG, who="ada"))
        go.set()
        wait_until(lambda: finished(engine, old))
        assert states(engine) == {None: "open"}
        add_one(engine, enqueue(call, False))
        with engine.begin() as connection:
            assert connection.scalar(close_breaker("call", who="ada"))
        begun.acquire()
    assert audited(engine) == [("open_breaker", "ada"), ("close_breaker", "ada")]


def test_two_processes_make_one_probe_and_its_kill_makes_another(
    engine: Engine, database_url: str, tmp_path: Path
) -> None:
    """Two real workers: their failures count together, and exactly one handler starts after the rest. A kill -9 of the probe does not
    leave the breaker waiting for it.
    """
    env = {FOLDER: str(tmp_path)}
    effects = tmp_path / "effects"

    def starts() -> list[int]:
        return [int(line) for line in effects.read_text().split()] if effects.exists() else []

    long_healthy(engine, 2.0)
    arguments = ("work", "--app", "tests.support.breaker_app:registry", "--queue", "default=8", "--lease", "2")
    with (
        start_command(*arguments, url=database_url, env=env),
        start_command(*arguments, url=database_url, env=env),
    ):
        wait_until(lambda: workers(engine) == 2)
        (tmp_path / "refuses").touch()
        add(engine, *(enqueue(breaker_app.call) for _ in range(breaker_app.FAILURES)))
        wait_until(lambda: states(engine) == {None: "open"})
        ids = add(engine, *(enqueue(breaker_app.call) for _ in range(40)))
        (tmp_path / "refuses").unlink()
        before = len(starts())
        rested(engine)
        wait_until(lambda: len(starts()) > before)
        (probe,) = statuses(engine, Job.status == JobStatus.RUNNING)
        assert (len(starts()), probe) == (before + 1, JobStatus.RUNNING)
        os.kill(starts()[-1], signal.SIGKILL)
        wait_until(lambda: len(starts()) > before + 1)
        assert len(starts()) == before + 2
        assert starts()[-1] != starts()[-2]
        assert states(engine) == {None: "probes"}
        (tmp_path / "answers").touch()
        wait_until(lambda: finished(engine, *ids))
    assert states(engine) == {}
    assert {job_of(engine, id).attempt for id in ids} == {1}


def test_operators_see_it_open_it_and_close_it(engine: Engine, url: str, registry: Registry) -> None:
    """In `limits list`, and on the dashboard's pages of the limits and the audit, of a task and of a key."""
    assert output("limits", "open", "call", "--rest", "1h", url=url) == "opened the breaker of task call\n"
    assert as_json("limits", "open", "call", "--key", "a", url=url)["touched"]
    listed = as_json("limits", "list", url=url)
    assert [(row["name"], row["key"], row["broken_until"] is not None) for row in listed] == [
        ("call", None, True), ("call", "a", True),
    ]  # fmt: skip
    assert output("limits", "list", url=url).count("breaker open for") == 2
    viewer = Viewer(engine, Access.READ)
    assert viewer.see("/limits").text.count("breaker open until") == 2
    rested(engine)
    assert output("limits", "list", url=url).count("breaker probes") == 2
    assert viewer.see("/limits").text.count("breaker probes since") == 2

    assert output("limits", "close", "call", url=url) == "closed the breaker of task call\n"
    assert output("limits", "close", "call", "--key", "a", url=url) == "closed the breaker of task call, key a\n"
    with engine.begin() as connection:
        make_worker(connection, tasks={"call": {}})
    unknown = invoke("limits", "open", "cal", url=url)
    assert (unknown.exit_code, notes(unknown)) == (0, "no live worker knows a task of this name\n")
    assert invoke("limits", "close", "cal", url=url).exit_code == 0
    again = invoke("limits", "close", "call", url=url)
    assert (again.exit_code, notes(again)) == (1, "the breaker of task call is closed already\n")
    assert as_json("limits", "list", url=url) == []
    assert "--rest must be a time, as 90s or 10m, not 'soon'" in refused(
        "limits", "open", "call", "--rest", "soon", url=url
    )
    assert [action for action, _ in audited(engine)] == ["open_breaker"] * 2 + ["close_breaker"] * 2 + [
        "open_breaker", "close_breaker",
    ]  # fmt: skip
    seen = viewer.see("/audit").text
    assert (seen.count("open breaker"), seen.count("close breaker")) == (4, 4)  # with the filter's


def test_a_breaker_that_no_job_probes_for_a_day_closes(engine: Engine) -> None:
    """The code has no such task any more, or the key has no more jobs. An open breaker would make all workers claim under limits. A pause stays."""

    def rested_for(hours: int) -> None:
        with engine.begin() as connection:
            for mapped in (LimitRow, KeyRow):
                ago = func.clock_timestamp() - timedelta(hours=hours)
                connection.execute(update(mapped).values(broken_until=ago).where(mapped.broken_until.is_not(None)))
            default_store.forget_states(connection)

    with engine.begin() as connection:
        for name, key in (("gone", None), ("paused", None), ("probed", None), ("hosts", "a"), ("hosts", "b")):
            connection.execute(open_breaker(name, key=key, who="ada"))
        connection.execute(pause("paused", owner="task"))
        make_job(connection, "running", task="probed")
    rested_for(hours=23)
    assert len(audited(engine)) == 5
    rested_for(hours=25)
    assert audited(engine)[5:] == [("close_breaker", "a worker")] * 4
    with engine.connect() as connection:
        left = connection.execute(select(LimitRow.name, LimitRow.broken_until.is_not(None)).order_by(LimitRow.name))
        assert left.all() == [("paused", False), ("probed", True)]
        assert connection.scalar(select(func.count()).select_from(KeyRow)) == 0


@pytest.mark.parametrize("named", [True, False], ids=["key", "task"])
def test_what_operators_have_set_outlives_it(engine: Engine, named: bool) -> None:
    """A pause and a limit stay when the breaker closes, and the breaker stays when they go."""
    given: dict[str, Any] = {"owner": "task", "key": "a" if named else None}
    breaker = {"key": given["key"]}
    with engine.begin() as connection:
        connection.execute(pause("call", **given))
        connection.execute(set_limit("call", running=3, **given))
        connection.execute(open_breaker("call", **breaker))
        assert connection.scalar(close_breaker("call", **breaker))
        (row,) = [row for row in connection.execute(list_limits()) if row.key == given["key"]]
        assert (row.running, row.paused_at is not None, row.broken_until) == (3, True, None)
        connection.execute(open_breaker("call", **breaker))
        connection.execute(resume("call", **given))
        connection.execute(remove_limit("call", **given))
        (row,) = [row for row in connection.execute(list_limits()) if row.key == given["key"]]
        assert (row.running, row.paused_at, row.broken_until is not None) == (None, None, True)
