"""What operators do to limits: only what is given changes, code's own come back, and two of them at once are no trouble."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, Executable, insert, select, text, update
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from sa_jobqueue import KeyLimits, Limits, Rate, Registry, TaskName, task
from sa_jobqueue.errors import OptionError
from sa_jobqueue.models import Base, KeyRow, LimitRow, LimitState
from sa_jobqueue.sql.store import default_store
from sa_jobqueue.statements import list_limits, pause, remove_limit, resume, set_limit
from tests.statements.conftest import connected
from tests.support import pooler
from tests.support.databases import connect
from tests.support.factory import make_job
from tests.support.waiting import wait_until

LIMIT, KEY = LimitRow.__table__, KeyRow.__table__


@task(registry=Registry(), name="shop.sync")
def sync() -> None: ...


def limit(connection: Connection, name: str = "sync", owner: str = "queue") -> Any:
    return connection.execute(select(LIMIT).where(LIMIT.c.name == name, LIMIT.c.owner == owner)).one_or_none()


def key_of(connection: Connection, key: str = "42", name: str = "sync") -> Any:
    return connection.execute(select(KEY).where(KEY.c.name == name, KEY.c.key == key)).one_or_none()


def did(connection: Connection, *statements: Executable) -> list[list[str]]:
    return [list(connection.scalars(one)) for one in statements]


def declare(connection: Connection, limits: Limits, name: str = "sync", owner: str = "queue", **more: Any) -> None:
    """As a worker does for its code."""
    columns = limits.columns()
    connection.execute(
        insert(LIMIT).values(
            owner=owner, name=name, **columns, declared=columns, declared_at=text("now()"), definitions=["a"], **more
        )
    )


# ---- setting


def test_only_what_is_given_changes(connection: Connection) -> None:
    """None takes a limit away; the row is the operator's from now on."""
    assert did(connection, set_limit("sync", running=50, rate=Rate(500, per=60, burst=5))) == [["sync"]]
    did(connection, set_limit("sync", per_key=KeyLimits(running=1), strict=True))
    row = limit(connection)
    assert (row.running, row.rate_count, row.rate_seconds, row.rate_burst) == (50, 500, 60.0, 5)
    assert (row.key_running, row.key_rate_count, row.strict, row.held) == (1, None, True, True)
    did(connection, set_limit("sync", rate=None, per_key=KeyLimits(rate=Rate(3)), strict=False))
    row = limit(connection)
    assert (row.running, row.rate_count, row.rate_seconds, row.rate_burst) == (50, None, None, None)
    assert (row.key_running, row.key_rate_count, row.strict) == (None, 3, False)
    did(connection, set_limit("sync", running=None, per_key=None, max_waiting=0, when_full="drop_newest"))
    row = limit(connection)
    assert (row.running, row.key_rate_count, row.max_waiting, row.when_full) == (None, None, 0, "drop_newest")


def test_a_task_has_limits_of_its_own(connection: Connection) -> None:
    """It is given as itself, as a name, or by `owner`."""
    did(
        connection,
        set_limit(sync, running=3),
        set_limit(TaskName("b"), running=4),
        set_limit("c", owner="task", running=5),
    )
    found = connection.execute(select(LIMIT.c.owner, LIMIT.c.name, LIMIT.c.running).order_by(LIMIT.c.running))
    assert [tuple(row) for row in found] == [("task", "shop.sync", 3), ("task", "b", 4), ("task", "c", 5)]
    assert limit(connection, "shop.sync") is None


def test_a_key_has_limits_of_its_own(connection: Connection) -> None:
    """In a table of their own, beside those of its queue, which need not be there."""
    did(connection, set_limit("sync", key="42", running=3, weight=5))
    did(connection, set_limit("sync", key="42", rate=Rate(7, burst=2)), set_limit("sync", key="43", weight=2))
    row = key_of(connection)
    assert (row.running, row.weight, row.rate_count, row.rate_seconds, row.rate_burst) == (3, 5, 7, 1.0, 2)
    did(connection, set_limit("sync", key="42", running=None, rate=None))
    row = key_of(connection)
    assert (row.running, row.weight, row.rate_count) == (None, 5, None)
    assert limit(connection) is None


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: set_limit("sync"), "say what changes"),
        (lambda: set_limit("sync", key="42"), "say what changes"),
        (lambda: set_limit("", running=1), "the queue's name must have 1 to 200 characters"),
        (lambda: set_limit(sync.name * 30, owner="task", running=1), "the task's name must have 1 to 200"),
        (lambda: set_limit("sync", owner="worker", running=1), "owner of a limit must be one of queue, task, not 'worker'"),  # type: ignore[arg-type]
        (lambda: set_limit("sync", running=0), "running must be an integer from 1 to 1,000,000, not 0"),
        (lambda: set_limit("sync", rate=5), r"rate must be Rate\("),  # type: ignore[arg-type]
        (lambda: set_limit("sync", per_key=5), r"per_key must be KeyLimits\("),  # type: ignore[arg-type]
        (lambda: set_limit("sync", strict=None), "strict must be True or False, not None"),  # type: ignore[arg-type]
        (lambda: set_limit("sync", when_full="drop"), "when_full must be one of wait"),  # type: ignore[arg-type]
        (lambda: set_limit("sync", max_waiting=-1), "max_waiting must be an integer from 0"),
        (lambda: set_limit("sync", weight=3), "a weight is that of a key"),
        (lambda: set_limit("sync", key="42", weight=0), "weight must be an integer from 1 to 1,000, not 0"),
        (lambda: set_limit("sync", key="42", per_key=None), "per_key is for all keys of the queue"),
        (lambda: set_limit("sync", key="42", max_waiting=3), "max_waiting is for all keys of the queue"),
        (lambda: set_limit("sync", key="", running=3), "key must have 1 to 200 characters"),
        (lambda: pause("sync", key="\x01sync"), "key .* must not begin with"),
        (lambda: pause("sync", reason=3), "the reason must be a text, not 3"),  # type: ignore[arg-type]
        (lambda: resume(3), "the queue's name must be a string, not 3"),  # type: ignore[arg-type]
        (lambda: remove_limit("a\0"), "the queue's name .* holds a NUL"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(made: Callable[[], object], said: str) -> None:
    """Before any SQL."""
    with pytest.raises(OptionError, match=said):
        made()


# ---- taking it back


def test_what_code_declares_comes_back(connection: Connection) -> None:
    """All of it, and the row is the code's again."""
    declared = Limits(
        running=5, rate=Rate(9, per=2.5, burst=3), per_key=KeyLimits(1, Rate(2)), strict=True, when_full="drop_newest",
        max_waiting=7,
    )  # fmt: skip
    declare(connection, declared)
    before = limit(connection)
    did(
        connection,
        set_limit("sync", running=None, rate=None, per_key=None, strict=False, when_full="wait", max_waiting=None),
    )
    assert limit(connection).held
    assert did(connection, remove_limit("sync"), remove_limit("sync")) == [["sync"], []]
    after = limit(connection)
    assert dict(after._mapping, version=0) == dict(before._mapping, version=0)
    assert not after.held


def test_a_limit_that_no_code_declares_is_gone(connection: Connection) -> None:
    """And one of a key; where there was none, nothing is returned."""
    did(connection, set_limit("sync", running=5), set_limit("sync", key="42", running=5))
    assert did(connection, remove_limit("sync"), remove_limit("sync", key="42")) == [["sync"], ["sync"]]
    assert (limit(connection), key_of(connection)) == (None, None)
    assert did(connection, remove_limit("sync"), remove_limit("sync", key="42")) == [[], []]


def test_what_code_declares_alone_is_not_removed(connection: Connection) -> None:
    """It would be back with the next worker."""
    declare(connection, Limits(running=5))
    assert did(connection, remove_limit("sync")) == [[]]
    assert limit(connection).running == 5


def test_a_pause_stays_when_a_limit_is_removed(connection: Connection) -> None:
    """They are two things an operator has said."""
    did(connection, pause("sync"), set_limit("sync", running=5), remove_limit("sync"))
    did(connection, pause("sync", key="42"), set_limit("sync", key="42", weight=5), remove_limit("sync", key="42"))
    row, key = limit(connection), key_of(connection)
    assert (row.running, row.held, row.paused_at is None) == (None, False, False)
    assert (key.weight, key.paused_at is None) == (1, False)
    assert did(connection, resume("sync"), resume("sync", key="42")) == [["sync"], ["sync"]]
    assert (limit(connection), key_of(connection)) == (None, None)


# ---- pauses


def test_a_pause_has_its_first_time_and_its_last_reason(engine: Engine) -> None:
    with engine.begin() as connection:
        did(connection, pause("sync", reason="because\0"), pause("sync", key="42"))
        first, key = limit(connection), key_of(connection)
    assert (first.pause_reason, first.held, key.pause_reason) == ("because\ufffd", False, None)
    with engine.begin() as connection:
        did(connection, pause("sync", reason="again"), pause("sync", key="42", reason="too"))
        second, after = limit(connection), key_of(connection)
    assert (second.paused_at, second.pause_reason) == (first.paused_at, "again")
    assert (after.paused_at, after.pause_reason) == (key.paused_at, "too")


def test_the_end_of_a_pause_leaves_the_limits(connection: Connection) -> None:
    """The operator's, the code's, and those that plain SQL has made."""
    declare(connection, Limits(running=5), "declared")
    connection.execute(insert(LIMIT).values(owner="queue", name="by hand", key_running=1))
    did(connection, set_limit("held", running=3), set_limit("sync", key="42", weight=3))
    for name in ("declared", "by hand", "held"):
        assert did(connection, pause(name), resume(name), resume(name)) == [[name], [name], []]
        assert limit(connection, name).paused_at is None
        assert limit(connection, name).pause_reason is None
    assert did(connection, pause("sync", key="42"), resume("sync", key="42")) == [["sync"], ["sync"]]
    assert (key_of(connection).weight, key_of(connection).paused_at) == (3, None)


def test_what_a_task_says_may_go_and_its_keys_stay_paused(connection: Connection) -> None:
    """Whether an operator takes the task's limits or pause back, or no code declares its limits any more."""
    names = ["limited", "paused", "undeclared"]
    declare(connection, Limits(running=3), "undeclared", owner="task")
    did(connection, set_limit("limited", owner="task", running=3), pause("paused", owner="task"))
    did(connection, *(pause(name, owner="task", key="42") for name in names))
    ended = did(connection, remove_limit("limited", owner="task"), resume("paused", owner="task"))
    assert ended == [["limited"], ["paused"]]
    assert default_store.drop_undeclared_limits(connection, after=-timedelta(1)) == ["task 'undeclared'"]
    assert list(default_store.read_limits(connection, []).tasks) == names
    rows = [limit(connection, name, "task") for name in names]
    assert [(row.running, row.held, row.paused_at, row.declared) for row in rows] == [(None, False, None, None)] * 3


def test_the_end_of_a_queues_pause_is_not_that_of_its_key(connection: Connection) -> None:
    did(connection, pause("sync"), pause("sync", key="42"), resume("sync"))
    assert key_of(connection).paused_at is not None
    did(connection, pause(sync), resume("shop.sync"))
    assert limit(connection, "shop.sync", "task").paused_at is not None


# ---- two at once


@pytest.mark.parametrize("first", [None, set_limit("sync", weight=2, key="42"), set_limit("sync", running=1)])
def test_two_operators_at_once_change_one_row_after_the_other(
    engine: Engine, connection: Connection, first: Executable | None
) -> None:
    """Each what it was told to, whether the row was there or not."""
    if first is not None:
        with engine.begin() as before:
            before.execute(first)
    did(connection, set_limit("sync", running=7), pause("sync", key="42"))

    def other() -> None:
        with connected(engine) as second:
            did(second, set_limit("sync", strict=True), set_limit("sync", key="42", running=4))
            second.commit()

    thread = threading.Thread(target=other)
    thread.start()
    connection.commit()
    thread.join()
    row, key = limit(connection), key_of(connection)
    assert (row.running, row.strict, key.running, key.paused_at is None) == (7, True, 4, False)


@pytest.mark.parametrize(
    ("before", "waits", "left"),
    [
        ([pause("sync"), set_limit("sync", running=3)], remove_limit("sync"), (None, True)),
        ([pause("sync")], resume("sync"), (9, False)),
        ([pause("sync")], set_limit("sync", strict=True), (9, True)),
    ],
    ids=["remove", "resume", "set"],
)
def test_what_is_left_is_looked_at_when_the_other_has_committed(
    engine: Engine, connection: Connection, before: list[Executable], waits: Executable, left: tuple[Any, bool]
) -> None:
    """What the statement has waited for is not lost with the row."""
    with engine.begin() as first:
        did(first, *before)
    did(connection, set_limit("sync", running=9))
    pid = connection.scalar(text("SELECT pg_backend_pid()"))
    done: list[list[list[str]]] = []

    def other() -> None:
        with connected(engine) as second:
            done.append(did(second, waits))
            second.commit()

    thread = threading.Thread(target=other)
    thread.start()
    with engine.connect() as looking:
        blocked = text("SELECT count(*) FROM pg_stat_activity WHERE :pid = ANY (pg_blocking_pids(pid))")
        wait_until(lambda: looking.execute(blocked, {"pid": pid}).scalar())
    connection.commit()
    thread.join()
    row = limit(connection)
    assert done == [[["sync"]]]
    assert (row.running, row.paused_at is not None) == left


# ---- as statements


def test_each_is_told_to_workers_at_the_commit(engine: Engine, url: str) -> None:
    """They claim at once by the limits that hold now."""
    with connect(pooler.direct(url)) as hearing:
        with engine.connect() as connection:
            hearing.execute(f"LISTEN {default_store.channel(connection)}")
        for statement in (
            set_limit("sync", running=3),
            set_limit("sync", key="42", weight=3),
            pause("sync"),
            resume("sync"),
            pause("sync", key="42"),
            resume("sync", key="42"),
            remove_limit("sync"),
            remove_limit("sync", key="42"),
        ):
            with engine.begin() as connection:
                connection.execute(statement)
            assert {one.payload for one in hearing.notifies(timeout=30, stop_after=1)} == {"(limits)"}, statement
            list(hearing.notifies(timeout=0))


async def test_they_run_in_an_async_session(async_session: AsyncSession) -> None:
    """In its transaction."""
    for statement in (
        set_limit("sync", running=3), set_limit("sync", key="42", running=3), pause("sync"), resume("sync"), remove_limit("sync"),
    ):  # fmt: skip
        assert list(await async_session.scalars(statement)) == ["sync"]
    (row,) = await async_session.execute(list_limits())
    assert (row.key, row.running) == ("42", 3)
    await async_session.rollback()
    assert (await async_session.execute(list_limits())).all() == []


def test_they_run_in_a_session_beside_its_objects(engine: Engine) -> None:
    """What it has not flushed is there for them; where it is bound by class, its engine is found."""
    with Session(binds={Base: engine}) as session:
        row = LimitRow(owner="queue", name="sync", running=3)
        session.add(row)
        session.execute(set_limit("sync", strict=True))
        assert row.strict is False
        session.refresh(row)
        assert (row.running, row.strict, row.held) == (3, True, True)
        for statement in (pause("sync"), resume("sync"), remove_limit("sync"), list_limits()):
            session.execute(statement)


# ---- the list


def test_the_list_says_what_runs_and_what_waits(connection: Connection) -> None:
    """Counted, for queues, tasks and keys, whichever index has the jobs."""
    did(
        connection,
        set_limit("mail", running=3), set_limit("mail", key="42", weight=2), set_limit("send", owner="task", running=9),
        pause("send", owner="task", key="42"), pause("empty", reason="audit"),
    )  # fmt: skip
    connection.execute(
        insert(LimitState).values(owner="queue", name="mail", key="42", blocked_until=text("now() + interval '1 h'"))
    )
    for queue, key, status, later in [
        ("mail", None, "running", False), ("mail", "42", "running", False), ("mail", "43", "running", False),
        ("mail", None, "queued", False), ("mail", None, "queued", True), ("mail", "42", "queued", False),
        ("mail", "42", "queued", True), ("mail", "43", "queued", True), ("mail", "42", "completed", False),
        ("other", "42", "queued", False), ("other", "42", "running", False),
    ]:  # fmt: skip
        run_at = timedelta(hours=1) if later else timedelta(0)
        make_job(connection, status, queue=queue, concurrency_key=key, task="send", run_at=run_at)
    rows = connection.execute(list_limits()).all()
    assert [(row.owner, row.name, row.key, row.runs, row.waits) for row in rows] == [
        ("queue", "empty", None, 0, 0),
        ("queue", "mail", None, 3, 5),
        ("queue", "mail", "42", 1, 2),
        ("task", "send", None, 4, 6),
        ("task", "send", "42", 2, 3),
    ]
    assert [row.weight for row in rows] == [None, None, 2, None, 1]
    assert [row.held for row in rows] == [False, True, None, True, None]
    assert [row.blocked_until is not None for row in rows] == [False, False, True, False, False]
    assert [(row.pause_reason, row.paused_at is None) for row in rows] == [
        ("audit", False), (None, True), (None, True), (None, True), (None, False),
    ]  # fmt: skip


def test_a_pause_by_the_mapped_class_is_one(engine: Engine) -> None:
    """Limits are rows that an application may write by itself."""
    with Session(engine) as session:
        session.add(LimitRow(owner="queue", name="sync", paused_at=datetime.now(UTC)))
        session.commit()
        assert list(session.scalars(resume("sync"))) == ["sync"]
        session.execute(update(LimitRow).values(running=3))
        assert session.scalars(select(LimitRow)).all() == []
