"""Detects state that a handler has left on its connection, and that the next handler would find: a setting, a role, a lock.

Such a connection is closed instead of given back. Resetting it would cost a round trip, and undo what the application itself set
when the connection was opened. A handler that leaves nothing behind pays for a search of each new statement text, and for reading
two settings that libpq knows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from time import monotonic
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import sqlalchemy as sa
from sqlalchemy import event

from ...sql.tables import OWN_LISTENERS
from ...util import forks
from ...util.log import get_logger

logger = get_logger(__name__)

#: Statements whose effect outlasts their transaction.
_LASTING = re.compile(
    r"""
    (?: \A | ; ) \s*+ (?: /\*.*?\*/ \s*+ | --[^\n]*\n \s*+ )*+
    (?: SET \s++ (?! LOCAL\b | TRANSACTION\b | CONSTRAINTS\b )
      | (?: RESET | LISTEN | LOAD | DISCARD ) \b
      | PREPARE \s++ (?! TRANSACTION\b )
      | CREATE \s+ (?: OR \s+ REPLACE \s+ )? (?: (?:GLOBAL|LOCAL) \s+ )? TEMP(?:ORARY)? \b (?! [^;]* \bON \s+ COMMIT \s+ DROP\b )
      | DECLARE \b [^;]* \b WITH \s+ HOLD \b )
    | \b set_config \s* \( (?! [^;]* \b true \s* \) )
    | \b pg_(?:try_)?advisory_lock
    | \b pg_temp \b
    """,
    re.IGNORECASE | re.VERBOSE | re.DOTALL,
)
#: Texts remembered as harmless, at most; and how many characters of each are searched.
_MOST, _LENGTH = 2_000, 10_000
#: At most one connection of a pool is closed in this many seconds because an attempt failed: a new connection takes some
#: milliseconds, and attempts may fail by the thousand.
_BETWEEN = 0.1
#: In a connection's `info`: whether a handler has had it before, and the statement that spoiled it.
_KNOWN, _SPOILED = "sa_jobqueue.known", "sa_jobqueue.spoiled"
#: Settings that the server reports without being asked: `search_path` (since PostgreSQL 18) and `default_transaction_read_only`;
#: None with another driver than psycopg.
_Reported: TypeAlias = tuple[bytes | None, bytes | None] | None
#: A connection's `info`, and the settings that were reported when the handler got it.
Found: TypeAlias = tuple[dict[Any, Any], _Reported]

_harmless: set[str] = set()
_dropped: WeakKeyDictionary[sa.Pool, float] = WeakKeyDictionary()
_logged: set[str] = set()


def begin(connection: sa.Connection, raw: Any) -> Found:
    """Watch a connection that a handler gets, as the application has made and checked it out. Returns its known state.

    `raw`: the result of `driver.psycopg_of`.
    """
    info = connection.info
    if _KNOWN not in info:
        info[_KNOWN] = True
        # On the dialect, whose event it is: events are found by ids, and an engine can have the id of an engine that is gone.
        if not event.contains(connection.dialect, "do_execute", _check_statement):
            event.listen(connection.dialect, "do_execute", _check_statement)
        forks.guard(raw)
    info.pop(_SPOILED, None)  # set by the application itself, at checkout
    return info, _reported(raw)


def is_spoiled(raw: Any, found: Found) -> bool:
    """Whether the handler has left something behind. `found`: what `begin` returned."""
    info, before = found
    what = info.get(_SPOILED)
    if what is None:
        if _reported(raw) == before:
            return False
        what = "settings that were changed"
    if what not in _logged and len(_logged) < _MOST:
        _logged.add(what)
        logger.warning(
            "a handler has left something behind on its connection, which is closed after each such job (SET LOCAL, "
            "pg_advisory_xact_lock and ON COMMIT DROP end with the transaction): %s", what,
        )  # fmt: skip
    return True


def _reported(raw: Any) -> _Reported:
    if raw is None:
        return None
    status = raw.pgconn.parameter_status
    return status(b"search_path"), status(b"default_transaction_read_only")


def may_be_dropped(pool: sa.Pool) -> bool:
    """Whether a connection may be closed now because an attempt failed, perhaps because of leftovers that cannot be seen."""
    now = monotonic()
    if now - _dropped.get(pool, 0.0) < _BETWEEN:
        return False
    _dropped[pool] = now
    return True


def _check_statement(cursor: Any, statement: str, parameters: Any, context: Any) -> None:
    """Check each statement before it is executed."""
    if statement in _harmless:
        return
    found = _LASTING.search(statement, 0, _LENGTH)
    if found is None:
        if len(_harmless) >= _MOST:
            _harmless.clear()
        if len(statement) <= _LENGTH:
            _harmless.add(statement)
    elif "set_config" not in found.group().lower() or not _is_local(parameters):
        context.root_connection.info[_SPOILED] = statement[:100]


def _is_local(parameters: Any) -> bool:
    """Whether the parameters of a `set_config` make it local to the transaction."""
    values: Iterable[Any] = parameters.values() if isinstance(parameters, Mapping) else parameters or ()
    flags = [value for value in values if isinstance(value, bool)]
    return bool(flags) and all(flags)


OWN_LISTENERS.append(_check_statement)
