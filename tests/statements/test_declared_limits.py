"""What code declares of limits: a deploy changes it, an operator's change stays, and an older release brings nothing back."""

from __future__ import annotations

import threading
import uuid
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, select, text, update
from sqlalchemy.orm import Session

from sa_jobqueue import KeyLimits, Limits, Rate, Registry
from sa_jobqueue.models import LimitRow
from sa_jobqueue.sql.limits.declared import limits_definition
from sa_jobqueue.sql.schedules.declared import Declaring
from sa_jobqueue.sql.store import default_store
from sa_jobqueue.statements import pause, remove_limit, resume, set_limit
from tests.support.waiting import wait_until

LIMIT = LimitRow.__table__
GONE = timedelta(minutes=5)


def release(**queues: Limits) -> Registry:
    """An application's registry that declares these."""
    made = Registry()
    for name, limits in queues.items():
        made.queue(name, limits=limits)
    return made


def deploy(engine: Engine, app: Registry) -> Declaring:
    """What a worker of this release does when it begins."""
    definitions = {owner: limits_definition(limits) for owner, limits in app.limits.items()}
    with engine.begin() as connection:
        return default_store.declare_limits(connection, definitions, gone=GONE)


def operate(engine: Engine, *statements: Any) -> None:
    with engine.begin() as connection:
        for one in statements:
            connection.execute(one)


def limit(engine: Engine, name: str = "sync") -> Any:
    with engine.connect() as connection:
        return connection.execute(select(LIMIT).where(LIMIT.c.name == name)).one_or_none()


def leave_alone(engine: Engine, by: timedelta) -> None:
    """As if the workers that declare them had left some time ago."""
    operate(engine, update(LIMIT).values(declared_at=LIMIT.c.declared_at - by))


def drop(engine: Engine) -> list[str]:
    with engine.begin() as connection:
        return default_store.drop_undeclared_limits(connection, after=GONE)


def is_seen(engine: Engine) -> bool:
    """Whether a worker that says that it is alive hears of limits that no code declares any more."""
    with engine.begin() as connection:
        return default_store.enrol(
            connection, uuid.uuid4(), host="a", pid=1, queues=["q"], concurrency=1, version="1", undeclared_for=GONE
        ).undeclared


THREE, FOUR = release(sync=Limits(running=3)), release(sync=Limits(running=4))


def test_a_deploy_changes_what_it_declares(engine: Engine) -> None:
    """All of it, also what it declares no more; the same release once more changes nothing."""
    full = Limits(
        5, Rate(9, per=2.5, burst=3), KeyLimits(1, Rate(2)), strict=True, when_full="drop_newest", max_waiting=7
    )
    assert deploy(engine, release(sync=full)).made == ["queue 'sync'"]
    row = limit(engine)
    assert {name: getattr(row, name) for name in full.columns()} == full.columns() == row.declared
    assert (row.held, row.declared_at is None, len(row.definitions)) == (False, False, 1)
    version = row.version
    assert deploy(engine, release(sync=full)) == Declaring()
    assert limit(engine).version == version
    assert deploy(engine, THREE).changed == ["queue 'sync'"]
    row = limit(engine)
    assert {name: getattr(row, name) for name in full.columns()} == Limits(running=3).columns() == row.declared
    assert row.version != version


def test_a_deploy_leaves_what_an_operator_holds(engine: Engine) -> None:
    """What the code declares meanwhile is there when the operator's change is removed."""
    deploy(engine, THREE)
    operate(engine, set_limit("sync", running=50))
    assert deploy(engine, FOUR).held == ["queue 'sync'"]
    row = limit(engine)
    assert (row.running, row.declared["running"], row.held) == (50, 4, True)
    assert deploy(engine, FOUR) == Declaring()
    operate(engine, remove_limit("sync"))
    assert (limit(engine).running, limit(engine).held) == (4, False)


def test_what_an_operator_has_set_before_the_first_deploy_stays(engine: Engine) -> None:
    """And a pause, which holds no limit back."""
    operate(engine, set_limit("sync", running=50), pause("other", reason="audit"))
    result = deploy(engine, release(sync=Limits(running=3), other=Limits(running=4, strict=True)))
    assert (result.held, result.changed) == (["queue 'sync'"], ["queue 'other'"])
    assert limit(engine).running == 50
    row = limit(engine, "other")
    assert (row.running, row.strict, row.pause_reason) == (4, True, "audit")
    operate(engine, resume("other"))
    assert limit(engine, "other").running == 4


def test_a_column_that_was_edited_as_a_row_stays(engine: Engine) -> None:
    """The others follow the code, as those of a schedule do."""
    deploy(engine, THREE)
    with Session(engine) as session:
        session.scalars(select(LimitRow)).one().running = 7
        session.commit()
    deploy(engine, release(sync=Limits(running=4, strict=True)))
    row = limit(engine)
    assert (row.running, row.strict, row.held) == (7, True, False)


def test_an_older_worker_does_not_bring_back_a_definition_that_was_replaced(engine: Engine) -> None:
    """It starts again while a deployment rolls. After a rollback, when no worker has the newer definition any more, it does."""
    deploy(engine, THREE)
    deploy(engine, FOUR)
    assert deploy(engine, THREE).superseded == ["queue 'sync'"]
    assert limit(engine).running == 4
    leave_alone(engine, GONE)
    assert deploy(engine, THREE).changed == ["queue 'sync'"]
    assert limit(engine).running == 3
    assert deploy(engine, FOUR).superseded == ["queue 'sync'"]


def test_what_no_code_declares_any_more_is_deleted(engine: Engine) -> None:
    """But not what an operator holds or has paused, what was made at run time, and what other workers declare."""
    deploy(engine, release(sync=Limits(running=3), held=Limits(running=3), paused=Limits(running=3)))
    operate(engine, set_limit("held", running=5), pause("paused"))
    with Session(engine) as session:
        session.add(LimitRow(owner="queue", name="by hand", running=3))
        session.commit()
    assert (drop(engine), is_seen(engine)) == ([], False)
    leave_alone(engine, 2 * GONE)
    deploy(engine, release(other=Limits(running=3)))
    assert is_seen(engine)
    assert (drop(engine), is_seen(engine)) == (["queue 'sync'"], False)
    operate(engine, resume("paused"), remove_limit("held"))
    assert sorted(drop(engine)) == ["queue 'held'", "queue 'paused'"]
    assert limit(engine, "other") is not None
    assert limit(engine, "by hand") is not None


def test_a_living_worker_keeps_its_declarations(engine: Engine) -> None:
    """It says again what it declares, which no other worker is told of."""
    deploy(engine, THREE)
    version = limit(engine).version
    leave_alone(engine, GONE - timedelta(seconds=1))
    deploy(engine, THREE)
    leave_alone(engine, timedelta(seconds=2))
    assert drop(engine) == []
    assert limit(engine).version == version


def test_a_definition_is_not_written_while_its_row_is_locked(engine: Engine) -> None:
    """A worker that declares waits for none; it comes again."""
    deploy(engine, THREE)
    with engine.begin() as connection:
        connection.execute(select(LIMIT.c.name).with_for_update())
        assert deploy(engine, FOUR).locked == ["queue 'sync'"]
        assert deploy(engine, THREE) == Declaring()
    assert deploy(engine, FOUR).changed == ["queue 'sync'"]


def test_two_workers_that_declare_at_once_do_not_deadlock(engine: Engine) -> None:
    """Each writes in the order of the names. A third transaction holds the name in the middle until both of them wait."""
    apps = [release(**{name: Limits(running=3) for name in names}) for names in ("amz", "zma")]
    results: list[Declaring] = []
    threads = [threading.Thread(target=lambda app=app: results.append(deploy(engine, app))) for app in apps]
    waiting = text(
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    )
    with engine.begin() as connection:
        connection.execute(set_limit("m", running=9))
        for thread in threads:
            thread.start()
        with engine.connect() as watching:
            autocommit = watching.execution_options(isolation_level="AUTOCOMMIT")
            wait_until(lambda: autocommit.scalar(waiting) == 2)
    for thread in threads:
        thread.join()
    assert sorted(name for result in results for name in result.made) == ["queue 'a'", "queue 'z'"]
    assert limit(engine, "m").running == 9


@pytest.mark.parametrize("declared", ["5", "[]", "null"])
def test_a_row_whose_declaration_is_nonsense_holds_up_no_other(engine: Engine, declared: str) -> None:
    """What it says counts as edited."""
    deploy(engine, THREE)
    with engine.begin() as connection:
        connection.execute(text("UPDATE sa_jobqueue.job_limit SET declared = CAST(:said AS jsonb)"), {"said": declared})
    result = deploy(engine, release(sync=Limits(running=4), other=Limits(running=4)))
    assert (result.changed, result.made) == (["queue 'sync'"], ["queue 'other'"])
