"""A whole application on its own base: its history, its jobs with objects, and all that finds, enqueues, tests and explains them.

The application is in `lending/`. Its two releases are written from that, and Alembic's autogenerate writes the revisions.
"""

from __future__ import annotations

import importlib.util
import io
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import Engine, NullPool, create_engine, literal, select, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import Session, selectinload

from sa_jobqueue import JobStatus, companions_of, enqueue_select, explain_job
from sa_jobqueue.rules.lifecycle import FINISHED
from sa_jobqueue.statements import pause, resume
from sa_jobqueue.testing import JobQueue
from tests.support.cli import as_json, invoke
from tests.support.commands import Command, start_command
from tests.support.joined import joined, settle
from tests.support.waiting import wait_until

APP = Path(__file__).parent / "lending"
SCHEMA = "lending_queue"
_LATER = "# since release 2\n"

#: All that is in the database beside what PostgreSQL brings.
_EVERYTHING = text(
    "WITH theirs AS (SELECT oid, nspname FROM pg_namespace WHERE nspname !~ '^pg_' AND nspname <> 'information_schema') "
    "SELECT 'schema ' || nspname FROM theirs UNION ALL "
    "SELECT 'relation ' || relname FROM pg_class JOIN theirs ON theirs.oid = relnamespace UNION ALL "
    "SELECT 'function ' || proname FROM pg_proc JOIN theirs ON theirs.oid = pronamespace UNION ALL "
    "SELECT 'type ' || typname FROM pg_type JOIN theirs ON theirs.oid = typnamespace"
)


@dataclass
class Library:
    """A release of the application in a folder of its own, and its database."""

    folder: Path
    url: str
    engine: Engine
    patch: pytest.MonkeyPatch

    def release(self, number: int) -> Any:
        """Deploy it here; returns its module."""
        lines = (APP / "lending.py").read_text().splitlines(keepends=True)
        file = self.folder / "lending.py"
        file.write_text("".join(line for line in lines if number > 1 or not line.endswith(_LATER)))
        spec = importlib.util.spec_from_file_location("lending", file)
        assert spec is not None
        assert spec.loader is not None
        module: ModuleType = importlib.util.module_from_spec(spec)
        self.patch.setitem(sys.modules, "lending", module)
        spec.loader.exec_module(module)
        return module

    @property
    def alembic(self) -> Config:
        return Config(self.folder / "alembic.ini", stdout=io.StringIO())

    def migrate(self, name: str) -> str:
        """Write a revision for what the release needs, and upgrade to it; afterwards the two are alike."""
        script: Any = command.revision(self.alembic, name, autogenerate=True, rev_id=name)
        command.upgrade(self.alembic, "head")
        command.check(self.alembic)
        return Path(script.path).read_text()

    def work(self) -> AbstractContextManager[Command]:
        """A worker process of the release that is here now."""
        queues = ("--queue", "mail=2", "--queue", "desk=2")
        arguments = ("work", "--app", "lending:registry", *queues, "--poll", "0.1")
        return start_command(*arguments, url=self.url, cwd=self.folder)

    def everything(self) -> set[str]:
        with self.engine.connect() as connection:
            return set(connection.scalars(_EVERYTHING))


@pytest.fixture
def library(empty_database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Library]:
    folder = tmp_path / "lending"
    shutil.copytree(APP, folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "history" / "versions").mkdir()
    monkeypatch.setenv("SA_JOBQUEUE_DATABASE_URL", empty_database_url)
    engine = create_engine(empty_database_url, poolclass=NullPool)
    yield Library(folder, empty_database_url, engine, monkeypatch)
    engine.dispose()


@pytest.fixture
async def async_engine(library: Library) -> Any:
    engine = create_async_engine(library.url, poolclass=NullPool)
    yield engine
    await engine.dispose()


def ended(library: Library, job: Any, *ids: int) -> dict[int, JobStatus]:
    """Wait until these jobs have ended."""

    def look() -> dict[int, JobStatus] | None:
        with Session(library.engine) as session:
            rows = session.execute(select(job.id, job.status).where(job.id.in_(ids)))
            found = {row.id: row.status for row in rows}
        return found if all(status in FINISHED for status in found.values()) else None

    return wait_until(look)


def letters(library: Library, lending: Any, loan: int) -> list[str]:
    with Session(library.engine) as session:
        return list(
            session.scalars(
                select(lending.Letter.text).where(lending.Letter.loan_id == loan).order_by(lending.Letter.id)
            )
        )


@pytest.mark.nightly
async def test_two_releases_with_jobs_of_their_own(library: Library, async_engine: AsyncEngine) -> None:
    """From an empty database to the second release, under which jobs wait, and back to an empty database."""
    before = library.everything()
    lending: Any = library.release(1)
    Branch, Job, Book, Loan = lending.Branch, lending.Job, lending.Book, lending.Loan
    assert "sa_jobqueue.migrations.upgrade(op, to=1, schema='lending_queue')" in library.migrate("first")

    # A branch, a loan and a job are new together: one flush gives each what it needs of the others.
    with Session(library.engine) as session:
        north = Branch(name="North")
        loan, late = (Loan(branch=north, reader=reader) for reader in ("Ann", "Bob"))
        late.due = date(2026, 1, 2)
        confirmation = lending.enqueue(lending.confirm, loan)
        confirmation.branch = north
        session.add_all([confirmation, loan, late])
        session.commit()
        assert confirmation.args == {"loan": loan.id}
        assert confirmation.subject == ("Loan", str(loan.id))
        assert (confirmation.tenant_id, north.all_jobs) == (north.id, [confirmation])
        loan_id, late_id, north_id, confirmation_id = loan.id, late.id, north.id, confirmation.id

    async with AsyncSession(async_engine, expire_on_commit=False) as async_session:
        of_north = lending.inspect.options(columns={"tenant_id": north_id})
        found, lost = Book(branch_id=north_id, number=1, title="Emma"), Book(branch_id=north_id, number=2, title="Kim")
        lost.state = "lost"
        loans = [await async_session.get_one(Loan, loan_id)]
        inspections = [lending.enqueue(of_north, found, loans), lending.enqueue(of_north, lost, [])]
        async_session.add_all([*inspections, found, lost])
        await async_session.commit()
        assert inspections[0].args == {"book": [north_id, 1], "loans": [loan_id]}

        reminders = enqueue_select(
            lending.remind,
            lending.overdue.add_columns(literal("it is late").label("text")),
            columns={"tenant_id": Loan.branch_id},
            job=Job,
        )
        (reminder_id,) = (await async_session.scalars(reminders.returning(Job.id))).all()
        await async_session.commit()
        unserved = await explain_job(async_session, reminder_id, job=Job)
        assert unserved.reasons[0].what == "unserved"
    assert invoke("why", str(reminder_id), "--schema", SCHEMA, url=library.url).exit_code == 1

    with library.work() as worker:
        first_jobs = (confirmation_id, reminder_id, *(job.id for job in inspections))
        ends = ended(library, Job, *first_jobs)
        assert list(ends.values()).count(JobStatus.FAILED) == 1
        assert letters(library, lending, loan_id) == ["North: lent to Ann"]
        assert letters(library, lending, late_id) == ["it is late (0)"]
        with Session(library.engine) as session:
            is_failed = Book.jobs.any(Job.status == "failed")
            (book,) = session.scalars(select(Book).where(is_failed).options(selectinload(Book.jobs)))
            assert (book.title, [job.id for job in book.jobs]) == ("Kim", [inspections[1].id])
            assert lending.inspect.result(session.get_one(Job, inspections[0].id)) == "worn"
            assert [job.id for job in session.get_one(Loan, late_id).jobs] == [reminder_id]

            # Jobs of the first release wait, when the second is deployed.
            beside = companions_of(Job)
            session.execute(pause("mail", limit=beside.limit, limit_key=beside.key))
            waiting = lending.enqueue(
                lending.confirm.options(columns={"tenant_id": north_id}), session.get_one(Loan, late_id)
            )
            session.add(waiting)
            session.commit()
            paused = explain_job(session, waiting.id, job=Job)
            assert paused.reasons[0].what == "paused"
            waiting_id = waiting.id

        lending = library.release(2)
        Job, Loan = lending.Job, lending.Loan
        up = library.migrate("second").split("def downgrade()")[0]
        assert [line.strip().split(",")[1] for line in up.splitlines() if "op." in line] == [
            " sa.Column('renewals'", " sa.Column('asked_by'",
        ]  # fmt: skip

        # The worker of the first release goes on meanwhile, also with a job of the second.
        async with AsyncSession(async_engine, expire_on_commit=False) as async_session:
            book = await async_session.get_one(lending.Book, (north_id, 1))
            asked = lending.inspect.options(columns={"tenant_id": north_id, "asked_by": "the desk"})
            async_session.add(job := lending.enqueue(asked, book, []))
            await async_session.commit()
        assert ended(library, Job, job.id) == {job.id: JobStatus.COMPLETED}
        worker.send(signal.SIGTERM)
        assert worker.wait() == 0

    with library.work(), Session(library.engine) as session:
        renewal = lending.enqueue(lending.renew, session.get_one(Loan, loan_id))
        renewal.tenant_id = north_id
        session.add(renewal)
        beside = companions_of(Job)
        session.execute(resume("mail", limit=beside.limit, limit_key=beside.key))
        session.commit()
        assert set(ended(library, Job, waiting_id, renewal.id).values()) == {JobStatus.COMPLETED}
        assert lending.renew.result(session.get_one(Job, renewal.id, populate_existing=True)) == 1
        added = session.scalars(select(Job).where(Job.asked_by == "renew")).one()
        assert ended(library, Job, added.id) == {added.id: JobStatus.COMPLETED}
        assert letters(library, lending, late_id) == ["it is late (0)", "North: lent to Bob"]
        assert letters(library, lending, loan_id) == ["North: lent to Ann"] * 2
        assert session.get_one(Loan, loan_id, populate_existing=True).renewals == 1
    assert {
        one["status"] for one in as_json("list", "--schema", SCHEMA, "--subject", f"Loan:{loan_id}", url=library.url)
    } == {"completed"}

    command.downgrade(library.alembic, "first")
    lending = library.release(1)
    with Session(library.engine) as session:
        assert len(session.scalars(select(lending.Job)).all()) == 8
    command.downgrade(library.alembic, "base")
    assert {one for one in library.everything() - before if "alembic_version" not in one} == set()


async def test_the_application_runs_its_jobs_in_its_own_tests(library: Library) -> None:
    """In a transaction that is rolled back, with both kinds of session; nothing of it stays."""
    lending: Any = library.release(2)
    library.migrate("first")

    for is_async in (False, True):
        async with joined(library.url, "psycopg", is_async=is_async, how="outer") as session:
            kit: Any = JobQueue(session, registry=lending.registry)
            south = lending.Branch(name="South")
            loan = lending.Loan(branch=south, reader="Cleo", due=date(2026, 1, 2))
            job = lending.enqueue(lending.confirm.options(delay=timedelta(days=1), columns={"asked_by": "web"}), loan)
            job.branch = south
            session.add_all([job, loan])
            await settle(session.commit())

            assert await settle(kit.assert_enqueued(lending.confirm, loan=loan)) is job
            assert "is due in 24 h: move_clock()" in str(await settle(kit.explain()))
            assert [one.what for one in (await settle(explain_job(session, job.id, job=lending.Job))).reasons] == [
                "later", "unserved",
            ]  # fmt: skip
            await settle(kit.move_clock(timedelta(days=1)))
            assert (await settle(kit.drain())).outcomes == {"completed": 1}

            reminders = lending.overdue.add_columns(literal("late").label("text"))
            columns = {"tenant_id": lending.Loan.branch_id}
            await settle(session.execute(enqueue_select(lending.remind, reminders, columns=columns, job=lending.Job)))
            await settle(kit.assert_enqueued(lending.remind, loan=loan, text="late"))
            drained = await settle(kit.drain())
            assert drained.outcomes == {"completed": 1}
            texts = select(lending.Letter.text).order_by(lending.Letter.id)
            assert (await settle(session.scalars(texts))).all() == ["South: lent to Cleo", "late (1)"]
    with Session(library.engine) as session:
        assert session.scalars(select(lending.Branch)).all() == []
        assert session.scalars(select(lending.Job)).all() == []
