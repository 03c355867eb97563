"""A job that was made and added to no session is warned about; every other one is not."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, ForeignKey
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, relationship

from sa_jobqueue import Batch, Job, Registry, Workflow, enqueue, enqueue_many, task
from sa_jobqueue.enqueueing.unadded import watched_jobs

registry = Registry()


@task(registry=registry)
def send(order_id: int) -> None: ...


class Base(DeclarativeBase): ...


class Report(Base):
    __tablename__ = "unadded_reports"

    id: Mapped[int] = mapped_column(primary_key=True)
    job_id: Mapped[int | None] = mapped_column(ForeignKey(Job.id))
    job: Mapped[Job | None] = relationship(Job)


@task(registry=registry)
def build(report: Report) -> None: ...


@pytest.fixture
def tables(engine: Engine) -> Engine:
    Base.metadata.tables["unadded_reports"].create(engine)
    return engine


def test_a_job_that_no_session_gets_is_warned_about() -> None:
    """With the line that made it, when it ends or the test does."""
    kept = []
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with watched_jobs():
            enqueue(send, 1)
            assert len(said) == 1
            kept.append(enqueue(send, 2))
        enqueue(send, 3)

    assert [str(one.message) for one in said] == [
        f"a job of task {send.name!r} was never added to a session: write session.add(enqueue(...)), and commit"
    ] * 2
    assert {one.filename for one in said} == {__file__}


def rolled_back(session: Session) -> None:
    session.add(enqueue(send, 1))
    session.flush()
    session.rollback()


def refused(session: Session) -> None:
    session.add(enqueue(send, 1))
    session.rollback()


def by_cascade(session: Session) -> None:
    report = Report()
    report.job = enqueue(build, report)
    session.add(report)
    session.commit()


def beside_its_new_object(session: Session) -> None:
    report = Report()
    session.add_all([enqueue(build, report), report])
    session.commit()


def in_a_workflow(session: Session) -> None:
    made = Workflow("two")
    made.after(made.add(send, 1), send, 2)
    batch = Batch("one")
    batch.add(send, 1)
    session.add_all([made, batch])
    session.commit()


def copied(session: Session) -> None:
    session.merge(enqueue(send, 1))
    report = Report()
    report.job = enqueue(send, 2)
    session.merge(report)
    merge_all = getattr(session, "merge_all", lambda _: None)  # from SQLAlchemy 2.1 on
    merge_all([report])


GOOD: list[Callable[[Session], Any]] = [
    lambda session: session.add_all([enqueue(send, n) for n in range(3)]),
    lambda session: session.bulk_save_objects(enqueue(send, n) for n in range(3)),
    lambda session: session.execute(enqueue_many(send.call(n) for n in range(3))),
    rolled_back,
    refused,
    by_cascade,
    beside_its_new_object,
    in_a_workflow,
    copied,
]


def test_a_job_that_a_session_has_got_is_not(tables: Engine) -> None:
    """By add, merge, bulk helpers, cascades and workflows; whatever became of the transaction."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for good in GOOD:
            with watched_jobs(), Session(tables) as session:
                good(session)

    assert not said


def forget_two() -> None:
    """One is collected meanwhile, and one is kept."""
    with watched_jobs():
        enqueue(send, 1)
        kept = enqueue(send, 2)
    del kept


@pytest.mark.filterwarnings("error:a job of task:RuntimeWarning")
def test_a_warning_that_is_an_error_is_raised_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not where a job is collected: there Python prints it, and goes on."""
    lost: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda of: lost.append(of.exc_value))
    with pytest.raises(RuntimeWarning, match="a job of task"):
        forget_two()
    assert lost == []
    with watched_jobs():
        """Nothing is left of those."""


def test_development_mode_watches(tmp_path: Path) -> None:
    """`python -X dev` shows the line; without it nothing is said."""
    program = tmp_path / "shop.py"
    program.write_text("from sa_jobqueue import enqueue\n\nenqueue('shop.send', order_id=7)\n")

    def said(*options: str) -> str:
        run = subprocess.run([sys.executable, *options, str(program)], text=True, capture_output=True, check=True)
        return run.stderr

    assert f"{program}:3: RuntimeWarning: a job of task 'shop.send' was never added to a session" in said("-X", "dev")
    assert said() == ""
