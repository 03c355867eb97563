"""What an operator sees of the whole: the workers, and running jobs that no worker holds any more."""

from __future__ import annotations

import sqlalchemy as sa

from ..models import Job, JobMixin, WorkerRow
from .ends import has_run_out, is_held
from .parts import table_of

__all__ = ["LISTENS_FOR", "STALE", "count_expired", "list_workers"]

#: A connection that listens for a worker has this and the worker's id as its application_name.
LISTENS_FOR = "sa-jobqueue "
#: Seconds without a sign of life after which a worker is stale. It gives one every 20 s at the latest.
STALE = 60.0

_UUID_LENGTH = 36
_ACTIVITY = sa.table("pg_stat_activity", sa.column("datname"), sa.column("application_name"), schema="pg_catalog")


def list_workers(*, job: type[JobMixin] = Job, worker: type[WorkerRow] = WorkerRow) -> sa.Executable:
    """A row per worker process that has not left, the oldest first.

    Its columns; `age` and `unseen` in seconds; the number of jobs `running`; whether it is `listening` for wake-ups; and
    whether it is `stale`: unseen for `STALE` seconds, or a lease of its has expired.
    """
    jobs = table_of(job).c
    held = (
        sa.select(sa.func.count())
        .where(is_held(table_of(job)), jobs.worker == sa.cast(worker.id, sa.Text))
        .correlate(worker)
    )
    running = held.scalar_subquery()
    expired = held.where(jobs.lease_expires_at <= sa.func.now()).scalar_subquery()
    started = sa.func.extract("epoch", sa.func.now() - worker.started_at)
    seen = sa.func.extract("epoch", sa.func.now() - worker.seen_at)
    listeners = sa.select(sa.func.left(_ACTIVITY.c.application_name, len(LISTENS_FOR) + _UUID_LENGTH)).where(
        _ACTIVITY.c.datname == sa.func.current_database()
    )
    return sa.select(
        worker.id,
        worker.host,
        worker.pid,
        worker.queues,
        worker.concurrency,
        worker.version,
        worker.schema_version,
        worker.lease,
        worker.memory,
        worker.loop_lag,
        worker.pressure,
        worker.drain_requested_at,
        worker.started_at,
        worker.seen_at,
        sa.cast(started, sa.Float).label("age"),
        sa.cast(seen, sa.Float).label("unseen"),
        sa.or_(seen > STALE, expired > 0).label("stale"),
        running.label("running"),
        sa.func.concat(LISTENS_FOR, sa.cast(worker.id, sa.Text)).in_(listeners).label("listening"),
    ).order_by(worker.started_at, worker.id)


def count_expired(*, job: type[JobMixin] = Job) -> sa.Executable:
    """The number of running jobs whose lease has expired: their worker died or is cut off."""
    return sa.select(sa.func.count()).where(is_held(table_of(job)), has_run_out(table_of(job)))
