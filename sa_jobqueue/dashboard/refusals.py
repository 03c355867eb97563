"""What keeps a page from being shown, in words for its reader. None of it is a fault of the page's."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, TypeAlias

from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from ..errors import JobQueueError, SchemaError
from ..util.log import one_line
from ..util.urls import mask_passwords

What: TypeAlias = Literal["slow", "away", "rights", "schema", "locked", "conflict", "replica", "refused", "value"]

#: The HTTP status that says it to a program, and the words for a reader; backticks mark what can be typed.
_ANSWERS: Mapping[What, tuple[int, str]] = MappingProxyType(
    {
        "slow": (200, "The database took too long for this, and it was given up. Narrow the filter."),
        "value": (400, "The database cannot take a value of this request."),
        "rights": (
            403,
            "The database role of this dashboard may not do this. `sa-jobqueue grants --can read --can admin` prints what it needs.",
        ),
        "locked": (409, "Another transaction has locked it. Try again."),
        "replica": (
            409,
            "This database is a standby, which can only be read. Give the dashboard the primary as its engine.",
        ),
        "refused": (409, "It was refused."),
        "away": (503, "The database does not answer. This page tries again by itself."),
        "conflict": (503, "Another transaction, or what the standby has to replay, was in the way. Try again."),
        "schema": (503, "The tables do not fit this release."),
    }
)
_BY_SQLSTATE: Mapping[str, What] = MappingProxyType(
    {
        "57014": "slow",
        "25P03": "slow",
        "25P04": "slow",
        "42501": "rights",
        "42P01": "schema",
        "42703": "schema",
        "42883": "schema",
        "55P03": "locked",
        "25006": "replica",
        "P0001": "refused",
    }
)
#: By the class of it: values and filters that the database cannot take; constraints of a table; a deadlock, or what a standby has to replay.
_BY_CLASS: Mapping[str, What] = MappingProxyType({"22": "value", "54": "value", "23": "refused", "40": "conflict"})
#: Classes of a connection that is gone, of a server that has no room or goes; of a role that may not come in.
_AWAY = frozenset(("08", "53", "57", "58", "28", "3D"))


class Refusal(Exception):
    """A page or an action that the database did not let through."""

    def __init__(self, what: What, detail: str = "") -> None:
        super().__init__(f"{what}: {detail}")
        self.what: What = what
        self.detail = detail
        self.status, self.words = _ANSWERS[what]


class BadInput(ValueError):
    """A value of a filter or a form that cannot be read; as text it says what was expected. `there`: the name whose limits say what there is."""

    def __init__(self, name: str, value: str, expected: str, *, there: str = "") -> None:
        shown = value if len(value) <= 60 else f"{value[:60]}…"
        super().__init__(f"{name}: {shown!r} was given, expected {expected}")
        self.name, self.value, self.there = name, value, there


def refusal_of(error: Exception) -> Refusal | None:
    """What this error of a read or an action means to a reader; None: it is a fault of ours, and to be raised."""
    if isinstance(error, SchemaError):
        return Refusal("schema", str(error))
    if isinstance(error, JobQueueError) and isinstance(error.__cause__, DBAPIError):
        return refusal_of(error.__cause__)  # a role that may not even look which version the tables have
    if isinstance(error, PoolTimeout):
        return Refusal("away", "all connections of this dashboard are in use")
    if not isinstance(error, DBAPIError):
        # Of a function that connects, or of a driver before it has a connection.
        return Refusal("away", str(error)) if isinstance(error, OSError) else None
    said = one_line(mask_passwords(str(error.orig)))
    state = str(getattr(error.orig, "sqlstate", None) or getattr(error.orig, "pgcode", None) or "")
    if state[:2] in _BY_CLASS and state != "23503":
        # The rest of it shows the row, which the application may mask.
        said = said.partition(" DETAIL:")[0]
    if (what := _BY_SQLSTATE.get(state) or _BY_CLASS.get(state[:2])) is not None:
        return Refusal(what, said)
    is_away = isinstance(error, (OperationalError, InterfaceError)) and not state
    if error.connection_invalidated or is_away or state[:2] in _AWAY:
        return Refusal("away", said)
    return None
