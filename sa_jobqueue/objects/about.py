"""Which object a job is about: its first argument that is one, or what an option says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

import sqlalchemy as sa

from ..errors import PayloadError
from .references import Reference, SubjectOption
from .subjects import Subject, checked_subject
from .waiting import ObjectText, Waiting

__all__ = ["About", "about", "checked_about"]

#: What is said of it: the object itself while it has no key; False: nothing.
About: TypeAlias = Subject | Reference | Literal[False]


def checked_about(value: object) -> About:
    """`value`, an object of a mapped class, a `Subject` or False. Raises SubjectError or PayloadError for any other."""
    if value is False:
        return False
    if isinstance(value, Subject):
        return checked_subject(value)
    found = SubjectOption.refer(value)
    return found if found.key is None else found.subject()


def about(
    task: str, args: str, said: About | None, rule: Callable[[str], str] | None
) -> tuple[str, Subject | None, Waiting | None]:
    """The arguments of a job; what it is about; and what completes both once objects in them have their keys.

    `said`: None: the first argument that is an object. `rule`: see `Waiting`. Raises PayloadError for a key that cannot be a subject's.
    """
    unflushed = list(args.unflushed) if isinstance(args, ObjectText) else []
    if said is None and isinstance(args, ObjectText):
        said = args.first
    if isinstance(said, Reference):
        if said.object is None or sa.inspect(said.object).key is not None:
            said = _known(task, said)
        elif all(one is not said for one in unflushed):
            unflushed.append(said)
    subject = said if isinstance(said, Subject) else None
    text = str.__str__(args)
    if not unflushed:
        return text, subject, None
    return text, subject, Waiting(task, unflushed, rule, said if isinstance(said, Reference) else None)


def _known(task: str, said: Reference) -> Subject:
    try:
        return said.subject()
    except PayloadError as error:
        raise PayloadError(f"task {task!r}: {error}") from error
