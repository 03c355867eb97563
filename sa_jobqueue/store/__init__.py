"""The I/O edge: what a worker does to the database, as methods that take a `sqlalchemy.Connection`.

A `Store` is bound to its tables and keeps the statements that it has built for them. Its methods run in whatever
transaction the connection is in, and never commit.

>>> from sa_jobqueue.store import Store, Tables
>>> store = Store(Tables())
>>> store.tables.job.__name__
'Job'

`default_store` is the one of the package's own tables. All SQL is in `sa_jobqueue.statements`.
"""

from ..statements.claim import ClaimRequest
from ..statements.limit_state import FIRST_STATE
from ..statements.limited import LimitedRequest, Ring, RingState
from ..statements.parts import FIRST_ID, FIRST_TIME
from .claims import MOST_TEXT, Texts
from .declared import definition_of
from .declared_limits import limits_definition
from .definitions import Declaring, Definition
from .expiry import Late
from .faults import Fault, fault_of, is_data_fault, is_limits_changed, is_month_missing, is_too_much
from .leases import Expired, Renewal
from .limits import KnownLimits
from .notes import LogLines, Report
from .outcomes import Answer, alike, kept_for_now
from .pressure import Pressure, read_pressure
from .pruning import Pruned
from .schedules import Ticked
from .store import Store, default_store, store_of
from .tables import Tables
from .unique import started_keys, without_key
from .workers import end_backend
from .workflows import Advanced, Input

__all__ = [
    "FIRST_ID",
    "FIRST_STATE",
    "FIRST_TIME",
    "MOST_TEXT",
    "Advanced",
    "Answer",
    "ClaimRequest",
    "Declaring",
    "Definition",
    "Expired",
    "Fault",
    "Input",
    "KnownLimits",
    "Late",
    "LimitedRequest",
    "LogLines",
    "Pressure",
    "Pruned",
    "Renewal",
    "Report",
    "Ring",
    "RingState",
    "Store",
    "Tables",
    "Texts",
    "Ticked",
    "alike",
    "default_store",
    "definition_of",
    "end_backend",
    "fault_of",
    "is_data_fault",
    "is_limits_changed",
    "is_month_missing",
    "is_too_much",
    "kept_for_now",
    "limits_definition",
    "read_pressure",
    "started_keys",
    "store_of",
    "without_key",
]
