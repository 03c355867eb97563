"""Which object a job is about: its first argument that is a mapped object, or the option `about`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from pydantic_core import to_json
from sqlalchemy.orm import InstanceState
from sqlalchemy.orm.attributes import instance_state

from ..errors import PayloadError
from .references import Reference, SubjectOption, references
from .subjects import Subject, checked_subject


class ObjectText(str):
    """The arguments of a call that may have objects, as JSON text, with a placeholder for each key that is not known yet."""

    __slots__ = ("first", "unflushed")

    first: Reference | None
    """The first argument that is an object."""
    unflushed: Sequence[Reference]
    """The objects whose keys are not known."""

    @classmethod
    def of(cls, text: str, arguments: Mapping[str, Any]) -> ObjectText:
        """`text`, with what was validated."""
        made = cls(text)
        made.first = next((argument for argument in arguments.values() if isinstance(argument, Reference)), None)
        made.unflushed = [reference for reference in references(arguments) if reference.object is not None]
        return made


@dataclass(frozen=True, slots=True)
class PendingArguments:
    """Completes the arguments of a job when the keys of its objects are known."""

    task: str
    references: Sequence[Reference]
    rule: Callable[[str], str] | None = None
    """Makes the rule of a unique job from its arguments as JSON text; None: no rule depends on them."""
    about: Reference | None = None
    """The reference to the object that the job is about; None: its subject is known, or there is none."""

    def completed(self, args: Any, *, versioned: bool = True) -> str:
        """`args`, as JSON text or parsed, with all keys filled in. Raises PayloadError for a key that is not known yet."""
        text = as_text(args)
        for reference in self.references:
            try:
                plain = reference.now(versioned=versioned).plain()
            except PayloadError as error:
                raise self.error(str(error)) from error
            text = text.replace(reference.placeholder, to_json(plain).decode())
        return text

    def subject(self) -> Subject | None:
        """What the job is about, if that was not known. Raises PayloadError if it is not known yet."""
        try:
            return None if self.about is None else self.about.subject()
        except PayloadError as error:
            raise self.error(str(error)) from error

    def refuse_changes(self) -> None:
        """Raise PayloadError if the next flush would change a version."""
        for reference in self.references:
            state: InstanceState[Any] = instance_state(reference.object)
            if reference.of.spec.fresh and state.session is not None and state.session.is_modified(reference.object):
                raise self.error(
                    str(
                        reference.error(
                            f"{reference} has changes that are not flushed yet: flush first (session.flush())"
                        )
                    )
                )

    def decides_the_key(self, args: Any) -> bool:
        """Whether the key of a unique job depends on an object."""
        if self.rule is None:
            return False
        text = other = as_text(args)
        for reference in self.references:
            other = other.replace(reference.placeholder, "0")
        return self.rule(text) != self.rule(other)

    def error(self, reason: str) -> PayloadError:
        """The error to raise for an argument."""
        return PayloadError(f"task {self.task!r}: {reason}")


def as_text(args: Any) -> str:
    """Arguments as JSON text, which they may be already."""
    return str.__str__(args) if isinstance(args, str) else to_json(args).decode()


#: The subject; the object itself while it has no key; False: none.
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
    task: str, args: str, given: About | None, rule: Callable[[str], str] | None
) -> tuple[str, Subject | None, PendingArguments | None]:
    """The arguments of a job; its subject; and what completes both once objects in them have their keys.

    `given`: None: the first argument that is an object. `rule`: see `PendingArguments`. Raises PayloadError for a key that cannot be a subject's.
    """
    unflushed = list(args.unflushed) if isinstance(args, ObjectText) else []
    if given is None and isinstance(args, ObjectText):
        given = args.first
    if isinstance(given, Reference):
        if given.object is None or instance_state(given.object).key is not None:
            given = _known(task, given)
        elif all(reference is not given for reference in unflushed):
            unflushed.append(given)
    subject = given if isinstance(given, Subject) else None
    text = str.__str__(args)
    if not unflushed:
        return text, subject, None
    return text, subject, PendingArguments(task, unflushed, rule, given if isinstance(given, Reference) else None)


def _known(task: str, reference: Reference) -> Subject:
    try:
        return reference.subject()
    except PayloadError as error:
        raise PayloadError(f"task {task!r}: {error}") from error
