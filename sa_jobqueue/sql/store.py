"""`Store` has all statements that a worker executes on a job table and the tables of its schema."""

from __future__ import annotations

from ..models import Job, JobMixin
from .archive import Archive
from .expiry import Expiry
from .leases import Leases
from .limits.claims import LimitedClaims
from .limits.declared import DeclaredLimits
from .notes import JobNotes
from .prune import Pruning
from .readings.backlog import Backlogs
from .readings.stats import Stats
from .schedules.declared import DeclaredSchedules
from .schedules.due import Schedules
from .steps import Steps
from .unique import UniqueKeys
from .waking import EndWaits, Waking
from .workers import Workers
from .workflows.pruning import Workflows


class Store(
    Steps,
    LimitedClaims,
    Expiry,
    Leases,
    JobNotes,
    Pruning,
    Archive,
    UniqueKeys,
    Schedules,
    DeclaredSchedules,
    DeclaredLimits,
    Stats,
    Backlogs,
    EndWaits,
    Waking,
    Workers,
    Workflows,
):
    """What a worker does to one job table, and to the other tables of its schema.

    It holds its statements, and no connection: threads and workers may share it.
    """


default_store = Store(Job)


def store_of(job: type[JobMixin]) -> Store:
    """The store of the jobs of this class, and of their companions."""
    return default_store if job is Job else Store(job)
