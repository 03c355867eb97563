"""Which column of a query is which argument of a handler: as in a call, by position or by name.

>>> from sa_jobqueue.payload import Arguments
>>> def remind(order_id: int, *, note: str = "") -> None: ...
>>> plan = Arguments(remind, task="shop.remind").resolve()
>>> bound(plan, [Selected("id", None), Selected("note", "note")], what="task 'shop.remind'")
['order_id', 'note']
>>> bound(plan, [Selected("id", None), Selected("text", None)], what="task 'shop.remind'")
Traceback (most recent call last):
...
sa_jobqueue.errors.PayloadError: task 'shop.remind': takes 1 positional argument, and 2 columns have no label: id, text
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from ..errors import PayloadError
from .signature import Plan

__all__ = ["Selected", "bound", "bound_by_name"]


class Selected(NamedTuple):
    """A column of a query."""

    name: str
    label: str | None
    """The name that it was given by `.label(...)`, which makes it a keyword."""


def bound(plan: Plan, columns: Sequence[Selected], *, what: str) -> list[str]:
    """The parameter of each column. Raises PayloadError, which begins with `what`, where the columns do not fit the handler."""
    takes = f"it takes ({', '.join(plan.names)})"
    places, names = iter(plan.positional), list[str]()
    for column in columns:
        if column.label is not None:
            if plan.rest is None and column.label not in plan.names:
                raise PayloadError(f"{what}: unknown argument {column.label}, the label of a column; {takes}")
            if column.label in (plan.variable, plan.taken):
                raise PayloadError(f"{what}: argument {column.label} cannot be given by a label")
            names.append(column.label)
            continue
        place = next(places, plan.variable)
        if place is None:
            raise _too_many(plan, columns, what)
        if column.name != place and column.name in plan.names:
            raise PayloadError(
                f"{what}: by its position the column {column.name} is the argument {place}, but there is an argument "
                f"{column.name}, too: say which one is meant by a label, .label({column.name!r}) or .label({place!r})"
            )
        names.append(place)
    for name, times in Counter(names).items():
        if times > 1 and name != plan.variable:
            raise PayloadError(f"{what}: argument {name} is given twice: by its position and by a label")
    if missing := [name for name in plan.names if name in plan.required and name not in names]:
        raise PayloadError(f"{what}: argument {missing[0]} is missing; {takes}")
    return names


def bound_by_name(columns: Sequence[Selected], *, what: str) -> list[str]:
    """The same for a task that is known by name only: all columns are keywords."""
    names = [column.label or column.name for column in columns]
    if unnamed := [place for place, name in enumerate(names, 1) if not name]:
        raise PayloadError(f"{what}: column {unnamed[0]} has no name: say which argument it is, .label(...)")
    if twice := [name for name, times in Counter(names).items() if times > 1]:
        raise PayloadError(f"{what}: argument {twice[0]} is given twice")
    return names


def _too_many(plan: Plan, columns: Sequence[Selected], what: str) -> PayloadError:
    few, loose = (
        len(plan.positional),
        [column.name or "one without a name" for column in columns if column.label is None],
    )
    return PayloadError(
        f"{what}: takes {few} positional argument{'' if few == 1 else 's'}, and {len(loose)} columns have no label: "
        f"{', '.join(loose)}"
    )
