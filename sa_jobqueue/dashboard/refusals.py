"""Reasons for which a page or an action is refused, in words for its reader. None is a fault of our code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from ..errors import JobQueueError, SchemaError
from ..util.log import one_line
from ..util.urls import mask_passwords

What: TypeAlias = Literal[
    "slow", "away", "rights", "schema", "locked", "conflict", "replica", "refused", "value", "trial"
]

#: The HTTP status for programs, and the words for a reader; backticks mark commands.
_ANSWERS: Mapping[What, tuple[int, str]] = {
    "slow": (200, "The database took too long, and the page was given up. Narrow the filter."),
    "value": (400, "The database cannot take a value of this request."),
    "rights": (
        403,
        "The database role of this dashboard may not do this. `sa-jobqueue grants --can read --can admin` prints the GRANTs that it needs.",
    ),
    "locked": (409, "Another transaction has locked it. Try again."),
    "replica": (
        409,
        "This database is a standby, which can only be read. Give the dashboard the primary as its engine.",
    ),
    "trial": (409, "A handler that is being tried has not ended. Until it has, no job can be tried."),
    "refused": (409, "The database refused it."),
    "away": (503, "The database does not answer. This page tries again on its own."),
    "conflict": (503, "It conflicted with another transaction, or with the standby's replay. Try again."),
    "schema": (503, "The tables do not fit this release."),
}
_BY_SQLSTATE: Mapping[str, What] = {
    "57014": "slow", "25P03": "slow", "25P04": "slow", "42501": "rights", "42P01": "schema", "42703": "schema",
    "42883": "schema", "55P03": "locked", "25006": "replica", "P0001": "refused",
}  # fmt: skip
#: By class: values and filters that the database cannot take; constraints of a table; deadlocks, and conflicts with a standby's replay.
_BY_CLASS: Mapping[str, What] = {"22": "value", "54": "value", "23": "refused", "40": "conflict"}
#: Classes of lost connections, of servers without resources or in shutdown, and of roles that may not log in.
_AWAY = frozenset(("08", "53", "57", "58", "28", "3D"))


class Refusal(Exception):
    """A page or an action that the database did not allow."""

    def __init__(self, what: What, detail: str = "") -> None:
        super().__init__(f"{what}: {detail}")
        self.what: What = what
        self.detail = detail
        self.status, self.words = _ANSWERS[what]


class BadInput(ValueError):
    """An invalid value of a filter or a form; the text says what was expected. `there`: the name whose current limits can be shown."""

    status = 400

    def __init__(self, name: str, value: str, expected: str, *, there: str = "") -> None:
        shown = value if len(value) <= 60 else f"{value[:60]}…"
        super().__init__(f"{name}: {shown!r} was given, expected {expected}")
        self.name, self.value, self.there = name, value, there


@dataclass(eq=False)
class BadForm(Exception):
    """Invalid values of a form whose page shows the errors next to its fields. `values`: those of the page."""

    values: Mapping[str, Any]


def refusal_of(error: Exception) -> Refusal | None:
    """The refusal that an error of a read or an action means; None: the error is a fault of our code."""
    if isinstance(error, SchemaError):
        return Refusal("schema", str(error))
    if isinstance(error, JobQueueError) and isinstance(error.__cause__, DBAPIError):
        return refusal_of(error.__cause__)  # a role that may not even read the version of the tables
    if isinstance(error, PoolTimeout):
        return Refusal("away", "all connections of this dashboard are in use")
    if not isinstance(error, DBAPIError):
        # An OSError comes from a function that connects, or from a driver before it has a connection.
        return Refusal("away", str(error)) if isinstance(error, OSError) else None
    detail = one_line(mask_passwords(str(error.orig)))
    state = str(getattr(error.orig, "sqlstate", None) or getattr(error.orig, "pgcode", None) or "")
    if state[:2] in _BY_CLASS and state != "23503":
        # The rest of the message shows the row, which the application may mask.
        detail = detail.partition(" DETAIL:")[0].partition(" CONTEXT:")[0]
    if (what := _BY_SQLSTATE.get(state) or _BY_CLASS.get(state[:2])) is not None:
        return Refusal(what, detail)
    is_away = isinstance(error, (OperationalError, InterfaceError)) and not state
    return Refusal("away", detail) if error.connection_invalidated or is_away or state[:2] in _AWAY else None
