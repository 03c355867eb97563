"""An application's own tables, for objects as arguments: each kind of key and of class that there is."""

from __future__ import annotations

import uuid

from sqlalchemy import ForeignKey, Integer, String, Uuid, func, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

from sa_jobqueue import Job, Registry, task

registry = Registry()
"""For child processes, which import this module."""


class Base(DeclarativeBase):
    """Not mapped itself."""


class Customer(Base):
    __tablename__ = "customer"
    id: Mapped[int] = mapped_column(primary_key=True)
    orders: Mapped[list[Order]] = relationship(back_populates="customer")


class Order(Base):
    """The server gives the key."""

    __tablename__ = "an_order"
    id: Mapped[int] = mapped_column(primary_key=True)
    note: Mapped[str] = mapped_column(default="")
    customer_id: Mapped[int | None] = mapped_column(ForeignKey(Customer.id))
    customer: Mapped[Customer | None] = relationship(back_populates="orders")
    lines: Mapped[list[Line]] = relationship(back_populates="order")


class Line(Base):
    """A composite key, a part of which the order has first."""

    __tablename__ = "line"
    order_id: Mapped[int] = mapped_column(ForeignKey(Order.id), primary_key=True)
    place: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    order: Mapped[Order] = relationship(back_populates="lines")


class Parcel(Base):
    """A uuid that the server gives."""

    __tablename__ = "parcel"
    id: Mapped[uuid.UUID] = mapped_column(Uuid, primary_key=True, server_default=text("gen_random_uuid()"))


class Stock(Base):
    """Several parts, of which the server gives one."""

    __tablename__ = "stock"
    place: Mapped[str] = mapped_column(String, primary_key=True)
    number: Mapped[int] = mapped_column(Integer, primary_key=True, server_default=func.floor(text("7.5")))


class Article(Base):
    """With a version."""

    __tablename__ = "article"
    id: Mapped[int] = mapped_column(primary_key=True)
    price: Mapped[int] = mapped_column(default=0)
    version: Mapped[int] = mapped_column()
    __mapper_args__ = {"version_id_col": version}  # noqa: RUF012


class Report(Base):
    """Refers to its job."""

    __tablename__ = "report"
    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int | None] = mapped_column(ForeignKey(Order.id))
    order: Mapped[Order | None] = relationship(Order)
    job_id: Mapped[int | None] = mapped_column(ForeignKey(Job.id))
    job: Mapped[Job | None] = relationship(Job)


class Document(Base):
    """With subclasses in its own table, and in a joined one."""

    __tablename__ = "document"
    id: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[str]
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "document"}  # noqa: RUF012


class Letter(Document):
    __mapper_args__ = {"polymorphic_identity": "letter"}  # noqa: RUF012


class Invoice(Document):
    __tablename__ = "invoice"
    id: Mapped[int] = mapped_column(ForeignKey(Document.id), primary_key=True)
    total: Mapped[int] = mapped_column(default=0)
    __mapper_args__ = {"polymorphic_identity": "invoice"}  # noqa: RUF012


@task(registry=registry, executor="process")
def pack(order: Order) -> None:
    order.note = f"packed, {len(order.lines)} lines"
