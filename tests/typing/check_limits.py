"""What type checkers make of limits: read by mypy and pyright (`test_typing.py`), never run."""

from __future__ import annotations

from datetime import timedelta
from typing import assert_type

from sqlalchemy import Executable
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from sa_jobqueue import Breaker, Call, KeyLimits, Limits, Rate, Registry, TaskName, enqueue, task
from sa_jobqueue.statements import close_breaker, list_limits, open_breaker, pause, remove_limit, resume, set_limit

LIMITS = Limits(
    running=100, rate=Rate(500, per=timedelta(minutes=1), burst=50), per_key=KeyLimits(running=1, rate=Rate(20, per=1))
)


@task(
    queue="sync",
    limits=LIMITS,
    breaker=Breaker(failures=5, per=60, rest=timedelta(minutes=2), on=(TimeoutError, OSError), by="key"),
)
def sync(tenant_id: int) -> None: ...


def limits_are_typed(registry: Registry) -> None:
    registry.queue("sync", limits=LIMITS)
    assert_type(sync.limits, Limits | None)
    assert_type(sync.options(key="42", units=3).call(1), Call)
    assert_type(sync.options(key="42", keys={"provider": "openai"}).call(1), Call)
    assert_type(Limits(per={"provider": KeyLimits(running=8)}), Limits)
    assert_type(sync.options(key=False, debounce=5, max_wait=timedelta(minutes=1)).call(1).key, str | None)
    TaskName("sync").options(debounce=False)
    enqueue(sync.options(key="42"), 1)


async def statements_are_executables(session: Session, async_session: AsyncSession) -> None:
    assert_type(set_limit("sync", running=None, rate=Rate(3), per_key=None, strict=True), Executable)
    assert_type(set_limit("sync", share="time"), Executable)
    assert_type(set_limit("llm", key="openai", of="provider", running=3), Executable)
    assert_type(set_limit("llm", rates=[Rate(500, per=60), Rate(200_000, per=60, unit="tokens")]), Executable)
    assert_type(sync.options(units={"tokens": 1_800}).call(1), Call)
    assert_type(set_limit(sync, key="42", weight=5, when_full="wait", max_waiting=None), Executable)
    for statement in (
        pause(sync, reason="audit"),
        resume("sync", key="42"),
        remove_limit("sync", owner="task"),
        open_breaker(sync, key="42", rest=60),
        close_breaker("sync"),
    ):
        session.execute(statement)
        await async_session.execute(statement)
    session.execute(list_limits().where())


def what_cannot_be_is_an_error(registry: Registry) -> None:
    Limits(when_full="drop")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Limits(share="jobs")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    sync.options(units={"tokens": "many"})  # type: ignore[dict-item]  # pyright: ignore[reportArgumentType]
    Limits(rates=3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Rate("3")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    registry.queue("sync", limits=3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    sync.options(key=42)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    set_limit("sync", owner="worker", running=3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    set_limit("sync", strict=None)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
