"""What type checkers make of objects as arguments: read by mypy and pyright, never run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, assert_type

from pydantic import BaseModel
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship, selectinload

from sa_jobqueue import (
    AsyncJobContext,
    Call,
    Fresh,
    Job,
    JobContext,
    Load,
    enqueue,
    on_change,
    on_change_revision,
    task,
)


class Base(DeclarativeBase): ...


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    status: Mapped[str]
    lines: Mapped[list[Line]] = relationship()


class Line(Base):
    __tablename__ = "lines"
    id: Mapped[int] = mapped_column(primary_key=True)


@dataclass
class Shipment:
    order: Order
    lines: list[Line]


class Request(BaseModel):
    order: Annotated[Order, Load()]


@task
def send(ctx: JobContext, order: Annotated[Order, Load(selectinload(Order.lines), for_update=True), Fresh()]) -> None:
    assert_type(order, Order)
    assert_type(order.lines, list[Line])


@task
async def pack(
    ctx: AsyncJobContext,
    orders: list[Order],
    line: Annotated[Line | None, Load(missing="none")] = None,
) -> None:
    assert_type(orders, list[Order])
    assert_type(line, Line | None)


@task
def ship(shipment: Shipment, request: Request) -> None: ...


def callers_give_objects(order: Order, line: Line) -> None:
    assert_type(enqueue(send, order), Job)
    assert_type(send.call(order), Call)
    enqueue(pack, [order], line)
    enqueue(pack, orders=[order])
    enqueue(ship, Shipment(order, [line]), Request(order=order))

    enqueue(send, 7)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    enqueue(send, line)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    enqueue(send, None)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    enqueue(pack, order)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    send.call(line)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def what_cannot_be_is_an_error() -> None:
    Load("lines")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Load(missing="skip")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Load(for_update="yes")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


@on_change(Order.status, from_="open", to="paid")
@on_change(Order.id, via="trigger")
@task
def thank(ctx: JobContext, order: Order) -> int:
    return 1


assert_type(enqueue(thank, Order()), Job)
assert_type(thank.call(Order()), Call)
assert_type(on_change_revision(thank, None), str)
on_change(Order.status, via="flush")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
on_change(Order.status)(print)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
