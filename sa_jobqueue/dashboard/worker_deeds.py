"""What is done to workers: to ask one to drain."""

from __future__ import annotations

from uuid import UUID

from ..statements import drain_workers
from ..statements.overview import list_workers
from .deeds import Deed, Done
from .look import Look
from .page import Missing
from .refusals import BadInput
from .strings import text

__all__ = ["WORKER_DEEDS", "may_drain"]


def may_drain(look: Look) -> bool:
    """Whether the viewer may ask any worker to drain. One that serves several queues does not drain for one of them alone."""
    return look.access.may("drain_worker") and look.queues is None and not look.access.is_partial


def _drain(look: Look) -> Done:
    given = look.query.one("worker")
    try:
        wanted = UUID(given)
    except ValueError as error:
        raise BadInput("worker", given, "the id of a worker") from error
    if not may_drain(look):
        raise Missing(text("missing.worker"))
    worker = look.options.beside.worker
    asked = look.connection.execute(drain_workers(worker.id == wanted, job=look.job)).all()
    seen = list_workers(job=look.job, worker=worker)
    stale = sum(row.stale for row in look.connection.execute(seen) if row.id == wanted) if asked else 0
    return Done(len(asked), apart={"stale": stale})


#: By name.
WORKER_DEEDS = {
    "drain_worker": Deed("drain_worker", "drain_worker", _drain, target=("worker",), apart=("stale",), unit="worker")
}
