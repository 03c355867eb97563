"""What type checkers make of `enqueue_select`: read by mypy and pyright (`test_typing.py`), never run."""

from __future__ import annotations

from datetime import datetime
from typing import assert_type

from sqlalchemy import Insert, func, literal, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sa_jobqueue import Job, TaskName, enqueue_select, task


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    due: Mapped[datetime]
    tenant: Mapped[str]
    note: Mapped[str | None]
    urgency: Mapped[int | None]


@task
def remind(order_id: int) -> None: ...


async def rows_become_jobs(session: Session, async_session: AsyncSession) -> None:
    statement = enqueue_select(remind.options(priority=9), select(Order.id).where(Order.due < func.now()))
    assert_type(statement, Insert)
    session.execute(statement)
    await async_session.execute(statement)
    ids: list[int] = list(session.scalars(statement.returning(Job.id)))
    assert ids

    session.execute(enqueue_select("shop.remind", select(Order.id.label("order_id"))))
    session.execute(enqueue_select(TaskName("shop.remind"), select(Order.id.label("order_id"))))
    session.execute(
        enqueue_select(
            remind,
            select(Order.id),
            queue=Order.tenant,
            run_at=Order.due,
            key=Order.tenant,
            priority=literal(9),
            units=Order.urgency,
        )
    )
    session.execute(
        enqueue_select(
            remind,
            select(Order.id),
            queue=Order.note,
            units=Order.id % 3,
            delay=Order.id % 3_600,
            deadline=Order.due,
            expires_in=literal(1.5),
        )
    )

    enqueue_select(remind, Order)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    enqueue_select(remind, select(Order.id), queue="mail")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    enqueue_select(remind, select(Order.id), priority=9)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    enqueue_select(remind.call(1), select(Order.id))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
