"""A small application with tables of its own, a naming convention, and a foreign key to the job queue's jobs."""

from __future__ import annotations

from sqlalchemy import ForeignKey, MetaData
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sa_jobqueue.models import Job


class Base(DeclarativeBase):
    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(column_0_label)s",
            "uq": "uq_%(table_name)s_%(column_0_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )


class Order(Base):
    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    code: Mapped[str] = mapped_column(unique=True)


class Stock(Base):
    """In another schema than the orders: the reason for `include_schemas`."""

    __tablename__ = "stock"
    __table_args__ = ({"schema": "depot"},)

    id: Mapped[int] = mapped_column(primary_key=True)


class Worker(Base):
    """A table of the same name as one of the queue's."""

    __tablename__ = "worker"

    id: Mapped[int] = mapped_column(primary_key=True)
    job_id: Mapped[int] = mapped_column(ForeignKey(Job.id), index=True)
