"""What is done to limits: set those of a queue, a task or a key as a form says them, and take them back."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from ..errors import OptionError
from ..limits import MOST_JOBS, KeyLimits, Rate, read_rate
from ..statements import remove_limit, set_limit
from ..statements.parts import table_of
from .deeds import Deed, Done
from .look import Look
from .places import PLACE, Place, done_to, place_of, shown_limits
from .query import Query
from .refusals import BadInput

__all__ = ["LIMIT_DEEDS"]

_BURSTS = range(1, 1_000_000_001)


def _set(look: Look) -> Done:
    """An empty field takes the limit away. So a form that has not shown all there are is refused."""
    place, query, beside = place_of(look), look.query, look.options.beside
    there = _there(look, place)
    if there != query.one("seen"):
        shown = query.one("seen") or "none"
        expected = f"{there}, which there are" if there else "none: they were removed meanwhile"
        raise BadInput("the limits that the form has shown", shown, expected, there=place.name)
    given: dict[str, Any] = {"running": _running(query, "running"), "rate": _rate(query, "")}
    if place.key is None:
        of_keys = KeyLimits(_running(query, "key_running"), _rate(query, "key_"))
        given["per_key"] = of_keys
    else:
        given["weight"] = query.number("weight", 1, range(1, 1_001))
    try:
        statement = set_limit(place.name, **place.given, **given, limit=beside.limit, limit_key=beside.key)
    except OptionError as error:
        raise BadInput("the limit", place.name, str(error)) from error
    return done_to(look, place, len(look.connection.execute(statement).all()))


def _there(look: Look, place: Place) -> str:
    """The limits that there are, as a form says that it has shown them. They stay until the transaction ends.

    A row that is not there is made, without limits: another that makes it, too, is waited for, and its limits are found.
    """
    of = table_of(look.options.beside.limit if place.key is None else look.options.beside.key)
    its = {"owner": place.owner, "name": place.name, **({} if place.key is None else {"key": place.key})}
    look.connection.execute(insert(of).values(its).on_conflict_do_nothing())
    row = look.connection.execute(sa.select(of).filter_by(**its).with_for_update()).mappings().one_or_none()
    return shown_limits({} if row is None else {**row})


def _remove(look: Look) -> Done:
    place, beside = place_of(look), look.options.beside
    try:
        statement = remove_limit(place.name, **place.given, limit=beside.limit, limit_key=beside.key)
    except OptionError as error:
        raise BadInput("the limit", place.name, str(error)) from error
    return Done(len(look.connection.execute(statement).all()), of=place.said)


def _running(query: Query, name: str) -> int | None:
    return query.number(name, 0, range(1, MOST_JOBS + 1)) or None


def _rate(query: Query, prefix: str) -> Rate | None:
    name, of_burst = f"{prefix}rate", f"{prefix}burst"
    given = query.one(name)
    burst = query.number(of_burst, 0, _BURSTS) or None
    if not given:
        if burst is not None:
            raise BadInput(of_burst, str(burst), f"nothing: it is that of a rate, and {name} is empty")
        return None
    try:
        return read_rate(given, burst=burst)
    except OptionError as error:
        raise BadInput(name, given, f"a number and a time, as in 500/1m or 20/s: {error}") from error
    except ValueError as error:
        raise BadInput(name, given, "a number and a time, as in 500/1m or 20/s") from error


#: By name.
LIMIT_DEEDS = {
    deed.name: deed
    for deed in (
        Deed("set_limit", "limit", _set, target=(*PLACE, "running", "rate", "burst", "weight", "key_running", "key_rate", "key_burst"), apart=("unserved",), unit="limit"),
        Deed("remove_limit", "limit", _remove, target=PLACE, unit="limit"),
    )
}  # fmt: skip
