"""Objects in messages, by their class and key: their own repr might ask the database."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import InstanceState

__all__ = ["deleted", "named", "named_anything", "named_object"]


def named(cls: type[Any], key: tuple[Any, ...]) -> str:
    """Order 7."""
    return f"{cls.__name__} {', '.join(map(str, key))}"


def named_object(state: InstanceState[Any]) -> str:
    """The same of an object; "the Order" if it has no key yet."""
    return f"the {state.class_.__name__}" if state.key is None else named(state.class_, tuple(state.key[1]))


def named_anything(value: object) -> str:
    """An object, or any other value by its repr, cut."""
    state: object = sa.inspect(value, raiseerr=False)
    if isinstance(state, InstanceState):
        return named_object(state)
    try:
        return f"{value!r:.80}"
    except Exception:  # from the application's __repr__
        return f"a {type(value).__name__}"


def deleted(state: InstanceState[Any]) -> str | None:
    """What to say of an object that was deleted, or is about to be."""
    if state.deleted or state.was_deleted:
        return f"{named_object(state)} was deleted"
    if state.session is not None and state.obj() in state.session.deleted:
        return f"{named_object(state)} is about to be deleted"
    return None
