"""Real workers on a database of the test's own: `shop` is the test's view of both."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from sqlalchemy import Engine, create_engine, select
from sqlalchemy.orm import Session

from sa_jobqueue import Job, JobStatus, Registry, Worker
from sa_jobqueue.util.schema import SCHEMA
from tests.acceptance.app import Base, Effect, registry
from tests.support import pooler
from tests.support.commands import Command, start_command
from tests.support.waiting import PATIENCE, wait_until
from tests.support.working import add, lapse, long_healthy, working

APP = "tests.acceptance.app:registry"
#: Options of one worker process under a supervisor, where it is not about several.
ONE = ("--processes=1", "--max-jobs=1000000")


@dataclass
class Shop:
    """An application, its database, and the folder in which its handlers and the test leave word."""

    url: str
    engine: Engine
    folder: Path
    schema: str = SCHEMA

    # ---- workers

    @contextmanager
    def work(self, *options: str, app: str = APP, env: Mapping[str, str] | None = None) -> Generator[Command]:
        """A worker: `sa-jobqueue work`, up and claiming; whatever is left of it is killed at the end."""
        arguments = ["work", f"--app={app}", "--lease=60", "--poll=0.1", f"--schema={self.schema}", *options]
        extra = {"ACCEPTANCE_FOLDER": str(self.folder), **(env or {})}
        with start_command(*arguments, url=self.url, env=extra) as worker:
            family: list[psutil.Process] = []
            try:
                worker.wait_for(" serves ")
                family = worker.children()
                yield worker
            finally:
                if psutil.pid_exists(worker.pid):
                    family += worker.children()
                    worker.kill()
                for process in family:
                    with suppress(psutil.NoSuchProcess):
                        process.kill()

    @contextmanager
    def work_here(self, registry: Registry = registry, **options: Any) -> Generator[Worker]:
        """A worker in the test's own process: for what comes after another worker's death, whoever does it."""
        with working(self.url, registry, **options) as worker:
            yield worker

    # ---- jobs

    def add(self, *jobs: Job) -> list[int]:
        """Enqueue jobs in one transaction; their ids."""
        return add(self.engine, *jobs)

    def jobs(self, *where: Any) -> Sequence[Job]:
        """The jobs as they are now, by id."""
        with Session(self.engine) as session:
            return session.scalars(select(Job).where(*where).order_by(Job.id)).all()

    def job(self, id: int) -> Job:
        """One job as it is now."""
        (found,) = self.jobs(Job.id == id)
        return found

    def wait_for(self, *ids: int, status: JobStatus = JobStatus.COMPLETED, timeout: float = PATIENCE) -> list[Job]:
        """Wait until these jobs (all, if none is named) have a status."""

        def look() -> list[Job]:
            found = self.jobs(*([Job.id.in_(ids)] if ids else []))
            others = [job for job in found if job.status != status]
            assert not others, f"{len(others)} jobs are not {status} yet, among them {others[:3]}: {others[0].errors}"
            return list(found)

        return wait_until(look, timeout)

    def lose(self, *ids: int) -> None:
        """Their workers do not come back: the next worker that begins takes these jobs, as if a lease had passed.

        So no lease is so short that a process loses it on a busy machine.
        """
        lapse(self.engine, *ids)
        long_healthy(self.engine)

    def execute(self, statement: Any) -> Any:
        """Execute a statement in a transaction of its own; its rows."""
        with self.engine.begin() as connection:
            result = connection.execute(statement)
            return result.all() if result.returns_rows else []

    def execute_alone(self, statement: str) -> None:
        """Execute a statement that wants no transaction, as VACUUM."""
        with self.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql(statement)

    def effects(self) -> list[Effect]:
        """What handlers have written, and committed."""
        with Session(self.engine) as session:
            return list(session.scalars(select(Effect).order_by(Effect.id)))

    # ---- handlers

    def pids(self, file: str) -> list[int]:
        """The processes whose handlers left word in this file."""
        try:
            return [int(line) for line in (self.folder / file).read_text(encoding="ascii").split()]
        except FileNotFoundError:
            return []

    def wait_said(self, file: str, times: int = 1) -> list[int]:
        """Wait until handlers have left word in this file `times` times."""
        return (
            wait_until(
                lambda: said if len(said := self.pids(file)) >= times else None,
                message=f"{times} lines in {file!r}; there are {sorted(path.name for path in self.folder.iterdir())}",
            )
            or []
        )

    def go(self, name: str) -> None:
        """Let the handler go on that waits under this name."""
        (self.folder / f"go-{name}").touch()


@pytest.fixture
def shop(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    """The application on a database of its own."""
    monkeypatch.setenv("ACCEPTANCE_FOLDER", str(tmp_path))
    engine = create_engine(database_url, **pooler.engine_options(database_url))
    Base.metadata.create_all(engine)
    yield Shop(database_url, engine, tmp_path)
    engine.dispose()
