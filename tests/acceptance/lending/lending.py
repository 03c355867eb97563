"""A lending library with several branches: an application that has its jobs on its own base, each job of a branch.

The lines that end with "since release 2" are not yet in the first release: `tests/acceptance/test_lending.py` leaves them out there.
"""

from __future__ import annotations

from datetime import date, timedelta
from typing import Annotated

from sqlalchemy import ForeignKey, MetaData, func, select
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship, selectinload

from sa_jobqueue import AsyncJobContext, Enqueue, JobContext, JobMixin, Load, Registry, jobs_relationship, task


class Base(DeclarativeBase):
    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
            "pk": "pk_%(table_name)s",
        }
    )


class Branch(Base):
    """The tenant."""

    __tablename__ = "branch"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    all_jobs: Mapped[list[Job]] = relationship(back_populates="branch")


class Job(JobMixin, Base):
    __table_args__ = ({"schema": "lending_queue"},)

    tenant_id: Mapped[int] = mapped_column(ForeignKey(Branch.id), index=True)
    asked_by: Mapped[str | None] = mapped_column()  # since release 2
    branch: Mapped[Branch] = relationship(back_populates="all_jobs")


class Book(Base):
    """A copy of a book, by its number in its branch."""

    __tablename__ = "book"

    branch_id: Mapped[int] = mapped_column(ForeignKey(Branch.id), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    title: Mapped[str]
    state: Mapped[str] = mapped_column(default="good")
    branch: Mapped[Branch] = relationship()
    jobs: Mapped[list[Job]] = jobs_relationship(job=Job)


class Loan(Base):
    __tablename__ = "loan"

    id: Mapped[int] = mapped_column(primary_key=True)
    branch_id: Mapped[int] = mapped_column(ForeignKey(Branch.id))
    reader: Mapped[str]
    due: Mapped[date] = mapped_column(default=lambda: date.today() + timedelta(days=28))  # noqa: DTZ011
    renewals: Mapped[int] = mapped_column(server_default="0")  # since release 2
    branch: Mapped[Branch] = relationship()
    letters: Mapped[list[Letter]] = relationship(back_populates="loan", order_by="Letter.id")
    jobs: Mapped[list[Job]] = jobs_relationship(job=Job)


class Letter(Base):
    """What a handler writes, and which job it was."""

    __tablename__ = "letter"

    id: Mapped[int] = mapped_column(primary_key=True)
    loan_id: Mapped[int] = mapped_column(ForeignKey(Loan.id))
    job_id: Mapped[int | None] = mapped_column(ForeignKey(Job.id, ondelete="SET NULL"))
    text: Mapped[str]
    loan: Mapped[Loan] = relationship(back_populates="letters")


enqueue = Enqueue(Job)
registry = Registry(job=Job)


@task(registry=registry, queue="mail", max_attempts=3)
def confirm(ctx: JobContext, loan: Loan) -> None:
    """The first letter, when a book is lent."""
    by = ctx.session.get_one(Job, ctx.job_id).branch.name
    loan.letters.append(Letter(text=f"{by}: lent to {loan.reader}", job_id=ctx.job_id))


@task(registry=registry, queue="mail")
async def remind(
    ctx: AsyncJobContext, loan: Annotated[Loan, Load(selectinload(Loan.letters), for_update=True)], text: str
) -> None:
    """One more letter, with its number."""
    loan.letters.append(Letter(text=f"{text} ({len(loan.letters)})", job_id=ctx.job_id))


@task(registry=registry, queue="desk", record=True, max_attempts=1)
def inspect(book: Book, loans: list[Loan]) -> str:
    """Look at a book that came back."""
    if book.state == "lost":
        raise LookupError(f"{book.title} is not on its shelf")
    book.state = "worn" if loans else "good"
    return book.state


@task(registry=registry, queue="desk", record=True)  # since release 2
async def renew(ctx: AsyncJobContext, loan: Annotated[Loan, Load(for_update=True)]) -> int:  # since release 2
    """Later by four weeks, and a letter about it."""  # since release 2
    loan.due += timedelta(days=28)  # since release 2
    loan.renewals += 1  # since release 2
    job = enqueue(confirm.options(columns={"asked_by": "renew"}), loan)  # since release 2
    job.tenant_id = loan.branch_id  # since release 2
    ctx.session.add(job)  # since release 2
    return loan.renewals  # since release 2


overdue = select(Loan.id.label("loan")).where(Loan.due < func.current_date())
