"""All that a store can do, in one object; and the store of the package's own tables."""

from __future__ import annotations

from ..models import Job, JobMixin
from .archive import Archive
from .declared import DeclaredSchedules
from .declared_limits import DeclaredLimits
from .expiry import Expiry
from .leases import Leases
from .limits import LimitedClaims
from .notes import JobNotes
from .outcomes import Outcomes
from .pruning import Pruning
from .schedules import Schedules
from .stats import Stats
from .tables import Tables
from .unique import UniqueKeys
from .waiting import Waiting
from .waking import Waking
from .workers import Workers
from .workflows import Workflows

__all__ = ["Store", "default_store", "store_of"]


class Store(
    Outcomes,
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
    Waiting,
    Waking,
    Workers,
    Workflows,
):
    """What a worker does to one bundle of tables.

    It holds its statements, and nothing of any connection: threads and workers may share it.
    """


default_store = Store(Tables())


def store_of(job: type[JobMixin]) -> Store:
    """The store of the jobs of this class, and of their companions."""
    return default_store if job is Job else Store(Tables.of(job))
