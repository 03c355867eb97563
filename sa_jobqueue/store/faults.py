"""What an error says of the database, and whether a row is to blame for it."""

from __future__ import annotations

from enum import Enum

from sqlalchemy.exc import DBAPIError

from ..models import ArchivedJob
from ..statements.limits import LIMITS_CHANGED

__all__ = ["Fault", "fault_of", "is_data_fault", "is_limits_changed", "is_month_missing", "is_too_much"]

#: Classes of SQLSTATE. The server, its resources or its connections are out of order; or another transaction was in the way.
_AWAY = frozenset({"08", "0A", "25", "26", "28", "3D", "40", "53", "57"})
#: The server refuses, and may not do so for good: a privilege, what a trigger misses, a damaged page, another server's failure.
_REFUSED = frozenset({"0L", "0P", "20", "24", "2B", "2F", "34", "3B", "3F", "42", "55", "58", "72", "F0", "HV", "XX"})
#: query_canceled, by `statement_timeout` for example, and lock_not_available.
_LATE = frozenset({"57014", "55P03"})
#: A row may be to blame for these, or else the server: no memory left, a statement that took too long.
_TOO_MUCH = frozenset({"53200", "57014"})


class Fault(Enum):
    """What an error says of the database."""

    AWAY = "there is no use in asking it for anything just now"
    LATE = "a lock could not be had in time, or the statement took too long"
    REFUSED = "it answers, and refuses; the rows may be to blame, or who asks"
    ROW = "a row or its values are to blame: data, constraints, limits, and what the application's triggers raise"


def fault_of(error: DBAPIError) -> Fault:
    """What is wrong, by SQLSTATE. A code of the application's own, which PostgreSQL does not know, is the row's fault."""
    state = getattr(error.orig, "sqlstate", None) or ""
    if error.connection_invalidated or not state:
        return Fault.AWAY
    if state in _LATE:
        return Fault.LATE
    if state[:2] in _AWAY:
        return Fault.AWAY
    return Fault.REFUSED if state[:2] in _REFUSED else Fault.ROW


def is_data_fault(error: DBAPIError) -> bool:
    """Whether a row or its values are to blame."""
    return fault_of(error) is Fault.ROW


def is_too_much(error: DBAPIError) -> bool:
    """Whether a row may hold more than the server can turn into text in its time and its memory."""
    if error.connection_invalidated:
        return False
    return is_data_fault(error) or getattr(error.orig, "sqlstate", None) in _TOO_MUCH


def is_limits_changed(error: BaseException) -> bool:
    """Whether a claim failed because its worker has not read the limits that there are."""
    return isinstance(error, DBAPIError) and getattr(error.orig, "sqlstate", None) == LIMITS_CHANGED


def is_month_missing(error: DBAPIError) -> bool:
    """Whether a job could not be moved because the archive has no partition for the month in which it finished."""
    said = getattr(error.orig, "diag", None)
    if getattr(error.orig, "sqlstate", None) != "23514" or said is None:
        return False
    return said.table_name == ArchivedJob.__tablename__ and said.constraint_name is None
