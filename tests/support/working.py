"""A worker inside the test's process.

worked = drain(url, registry)                     # until nothing is due; returns the worker
with working(url, registry) as worker: ...        # meanwhile, on a thread of its own
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from sqlalchemy import Engine, delete, func, insert, select, update
from sqlalchemy.orm import Session

from sa_jobqueue import Job, JobStatus, Registry, Worker, WorkerSettings
from sa_jobqueue.models import Uptime
from sa_jobqueue.rules.lifecycle import FINISHED
from sa_jobqueue.statements import cancel_jobs
from sa_jobqueue.worker.maintenance.renew import Rescue
from sa_jobqueue.worker.services import Services
from tests.support import pooler
from tests.support.databases import connect
from tests.support.waiting import wait_until


def worker_for(
    database: str | Engine, registry: Registry, *, queues: Mapping[str, int] | None = None, **options: Any
) -> Worker:
    """A worker that polls often, and that loses nothing while it stands still; options of `WorkerSettings` and of `Worker` alike."""
    url = database if isinstance(database, str) else database.url.render_as_string(hide_password=False)
    options = {**pooler.worker_options(url), **options}
    own = {name: options.pop(name) for name in list(options) if name in WorkerSettings.__dataclass_fields__}
    settings = WorkerSettings(
        **{"lease": 60.0, "hoard": 60.0, "poll": 0.1, "grace": 30.0, "unknown_delay": 60.0, **own}
    )
    return Worker(database, queues or {"default": 4}, registry=registry, settings=settings, **options)


def drain(database: str | Engine, registry: Registry, **options: Any) -> Worker:
    """Work until nothing is due."""
    worker = worker_for(database, registry, **options)
    asyncio.run(worker.serve(until_idle=True))
    return worker


@contextmanager
def working(database: str | Engine, registry: Registry, **options: Any) -> Iterator[Worker]:
    """A worker that works meanwhile; its error, if it cannot start, is raised here."""
    worker = worker_for(database, registry, **options)
    ended: list[BaseException] = []

    def run() -> None:
        try:
            asyncio.run(worker.serve())
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=run, name="worker of a test")
    thread.start()
    try:
        wait_until(lambda: worker.serving or ended)
        yield worker
    finally:
        worker.stop()
        thread.join(60)
    if ended:
        raise ended[0]


def add(engine: Engine, *jobs: Job) -> list[int]:
    """Enqueue jobs in one transaction; their ids, which a row that is done by now and deleted could not tell any more."""
    with Session(engine) as session:
        session.add_all(jobs)
        session.flush()
        ids = [job.id for job in jobs]
        session.commit()
    return ids


def add_one(engine: Engine, job: Job) -> int:
    """The same of one job."""
    (id,) = add(engine, job)
    return id


def cancel(engine: Engine, *ids: int) -> None:
    """Ask for these jobs to be cancelled, in one transaction."""
    with Session(engine) as session:
        session.execute(cancel_jobs(Job.id.in_(ids)))
        session.commit()


def services_of(worker: Worker) -> Services:
    """The parts of a worker that serves."""
    assert worker._serving is not None
    return worker._serving._services


# ---- what would take a lease, at once: none has to be so short that a busy machine loses it


def long_healthy(engine: Engine, lease: float = 60.0, *, seconds: float = 3_600.0) -> None:
    """A worker with this lease that begins now may rescue: leases could be renewed for so long."""
    length = round(lease * 1_000)
    with engine.begin() as connection:
        connection.execute(delete(Uptime).where(Uptime.lease == length))
        connection.execute(
            insert(Uptime).values(lease=length, since=func.now() - timedelta(seconds=seconds), until=func.now())
        )


def lapse(engine: Engine, *ids: int) -> None:
    """The leases of these jobs have run out an hour ago, as if the worker that holds them was dead."""
    with engine.begin() as connection:
        connection.execute(update(Job).where(Job.id.in_(ids)).values(lease_expires_at=func.now() - timedelta(hours=1)))


def rescue_now(worker: Worker) -> None:
    """It looks for lost jobs at once."""
    maintenance = services_of(worker).maintenance
    for chore in maintenance.chores:
        if isinstance(chore, Rescue):
            chore.at = 0.0
    maintenance.wake()


def renew_now(worker: Worker) -> None:
    """It renews all that it holds at once, and so hears what it holds no more."""
    services = services_of(worker)
    for run in services.runs.all():
        run.renewed -= worker.settings.lease / 2
    services.maintenance._renewal.at = 0.0
    services.maintenance.wake()


def time_out(worker: Worker) -> None:
    """The handlers that run have taken too long: as by their timeout, which no busy machine comes before."""
    services = services_of(worker)
    for run in services.runs.all():
        run.timeout_at = 0.0
    services.maintenance.wake()


def job_of(engine: Engine, id: int) -> Job:
    """The row as it is now."""
    with Session(engine) as session:
        return session.scalars(select(Job).where(Job.id == id)).one()


def statuses(engine: Engine, *where: Any) -> list[JobStatus]:
    """By id, and nothing but them: some rows hold what Python cannot."""
    with Session(engine) as session:
        return list(session.scalars(select(Job.status).where(*where).order_by(Job.id)))


def finished(engine: Engine, *ids: int) -> bool:
    """Whether all of these jobs have ended."""
    return all(status in FINISHED for status in statuses(engine, Job.id.in_(ids)))


def assert_nothing_leaked(engine: Engine, worker: Worker) -> None:
    """No slot is taken, no claim is held, no row is running."""
    services = services_of(worker)
    wait_until(lambda: len(services.runs) == 0)
    for slots in services.all_slots.values():
        wait_until(lambda slots=slots: slots.running == 0)  # type: ignore[misc]
    assert not statuses(engine, Job.status == JobStatus.RUNNING)


def gate_is_open(url: str) -> bool:
    """Whether some worker has asked to be woken, and not too long ago."""
    with connect(url) as connection:
        row: Any = connection.execute(
            "SELECT to_timestamp(pg_sequence_last_value('sa_jobqueue.gate_any')) > clock_timestamp()"
        ).fetchone()
        return bool(row[0])
