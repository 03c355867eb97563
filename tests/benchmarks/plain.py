"""What the queue is compared with on the application's side: a table to write into, and a plain mapped row."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, Column, Identity, Integer, MetaData, SmallInteger, Table, Text, func, text
from sqlalchemy.dialects.postgresql import JSONB, TIMESTAMP
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from .schema import SCHEMA, Bench

metadata = MetaData(schema=SCHEMA)

#: What a measured handler writes into.
notes = Table("note", metadata, Column("id", BigInteger, Identity(), primary_key=True), Column("n", Integer))


class Base(DeclarativeBase):
    metadata = metadata


class Plain(Base):
    """A row with the columns of a job: no index but its key, no trigger, no type of ours."""

    __tablename__ = "plain"

    id: Mapped[int] = mapped_column(BigInteger, Identity(), primary_key=True)
    run_at: Mapped[datetime] = mapped_column(TIMESTAMP(timezone=True), server_default=func.now())
    created_at: Mapped[datetime] = mapped_column(TIMESTAMP(timezone=True), server_default=func.now())
    claimed_at: Mapped[datetime | None] = mapped_column(TIMESTAMP(timezone=True))
    lease_expires_at: Mapped[datetime | None] = mapped_column(TIMESTAMP(timezone=True))
    finished_at: Mapped[datetime | None] = mapped_column(TIMESTAMP(timezone=True))
    purge_at: Mapped[datetime | None] = mapped_column(TIMESTAMP(timezone=True))
    cancel_requested_at: Mapped[datetime | None] = mapped_column(TIMESTAMP(timezone=True))
    claims: Mapped[int] = mapped_column(Integer, server_default=text("0"))
    priority: Mapped[int] = mapped_column(SmallInteger, server_default=text("4"))
    attempt: Mapped[int] = mapped_column(SmallInteger, server_default=text("0"))
    max_attempts: Mapped[int] = mapped_column(SmallInteger, server_default=text("10"))
    rescues: Mapped[int] = mapped_column(SmallInteger, server_default=text("0"))
    status: Mapped[str] = mapped_column(Text, server_default=text("'queued'"))
    queue: Mapped[str] = mapped_column(Text, server_default=text("'default'"))
    task: Mapped[str] = mapped_column(Text)
    args: Mapped[dict[str, Any]] = mapped_column(JSONB, server_default=text("'{}'::jsonb"))
    meta: Mapped[dict[str, Any]] = mapped_column(JSONB, server_default=text("'{}'::jsonb"))
    worker: Mapped[str | None] = mapped_column(Text)
    errors: Mapped[list[Any]] = mapped_column(JSONB, server_default=text("'[]'::jsonb"))
    result: Mapped[Any | None] = mapped_column(JSONB(none_as_null=True))


class Item(Base):
    """What a measured handler loads and changes."""

    __tablename__ = "item"

    id: Mapped[int] = mapped_column(BigInteger, Identity(), primary_key=True)
    n: Mapped[int]


def plain_row(n: int) -> Plain:
    """A row that says as much as `enqueue(nothing, n)` writes."""
    return Plain(task="nothing", args={"n": n}, queue="default", priority=4, max_attempts=10, meta={})


def make_tables(bench: Bench) -> None:
    """Both tables, empty."""
    metadata.drop_all(bench.engine)
    metadata.create_all(bench.engine)
