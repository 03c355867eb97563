"""Actions of forms: each executes statements of `sa_jobqueue.statements`, and writes its row of the audit, in one transaction."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ...rules.lifecycle import JobStatus
from ..access import Action
from ..database import Anywhere
from ..query import Query
from ..request import PageContext

#: Called with the engine after the action's transaction.
View: TypeAlias = Callable[[Anywhere], Awaitable[Mapping[str, Any]]]


@dataclass(frozen=True, slots=True)
class Done:
    """The result of an action."""

    count: int
    """The number of changed things."""
    left: int = 0
    """The number of things that were not changed, because others had locked or changed them."""
    after: int | None = None
    """The last id that was changed, if more jobs remain to be changed; else None."""
    to: str | None = None
    """The next page, as a path below the dashboard; None: the page with the form."""
    target: Mapping[str, Any] | None = None
    """The target in the audit; None: the fields of the form."""
    of: str = ""
    """The name of the target, if the text names it."""
    change: str = ""
    """The change in words, for the text on the next page."""
    variants: Mapping[str, int] = field(default_factory=dict[str, int])
    """The numbers of things, of `count`, with another result than `PageAction.done`, by the names of `PageAction.variants`."""
    view: View | None = None
    """Reads the values of the answer, which is the template `pages/NAME.html` of the action; None: the next page is the answer."""
    more: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Further values for the target in the audit, by which the action can be undone."""
    undo: str = ""
    """The name of the action that undoes this action; "": `PageAction.undo`."""


#: Performs the action in the request's transaction. Raises BadInput for an invalid form.
Do: TypeAlias = Callable[[PageContext], Done]


@dataclass(frozen=True, slots=True)
class PageAction:
    """An action that forms can request at `act/NAME`."""

    name: str
    """Its name in the audit."""
    label: str
    """The text of its button."""
    done: str
    """The text about its result on the next page: `{n}` is the number, `{of}` the name of the target."""
    needs: Action
    do: Do
    count: Callable[[PageContext], int] | None = None
    """Counts the things that it would change, up to a cap, if a filter chooses them: the viewer must confirm the number. None: it is done at once."""
    question: str = ""
    """The question to confirm: `{n}` is the number, `{unit}` the unit, `{of}` what `named` returns."""
    careful: bool = False
    """Whether the viewer must confirm it even if each thing was chosen singly."""
    asks: Callable[[PageContext], bool] | None = None
    """Whether the viewer must confirm it for these things, which were chosen singly."""
    typed: str | None = None
    """The field whose value the viewer must type to confirm the action. "action": the first word of the action's name, unless the viewer chose a single job."""
    target: tuple[str, ...] = ("id",)
    """The fields that name the target."""
    variants: Mapping[str, str] = field(default_factory=dict[str, str])
    """Other possible results, by the names that `Done.variants` may have: texts like `done`."""
    unit: str = "job"
    """The counted things, in the singular."""
    statuses: Sequence[JobStatus] = tuple(JobStatus)
    """The statuses of jobs that it can change."""
    undo: str = ""
    """The name of the action that undoes it."""
    left: str = "another transaction had locked or changed them"
    """Why things were not changed."""
    named: Callable[[PageContext], str] = lambda context: ""
    """The name of the target in the question, where the form has only the id."""

    def to_type(self, query: Query) -> str | None:
        """The text that the viewer must type to confirm it; None: nothing."""
        if self.typed != "action":
            return None if self.typed is None else query.one(self.typed)
        return None if query.one("id") else self.name.partition("_")[0]
