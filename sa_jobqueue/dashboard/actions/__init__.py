"""What a form of a page may do: each action is a statement of `sa_jobqueue.statements`, and a row that says who did it, in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ..access import Action
from ..request import PageContext


@dataclass(frozen=True, slots=True)
class Done:
    """What came of it."""

    count: int
    """How many things were changed."""
    left: int = 0
    """How many were left because others had locked them, or changed them meanwhile."""
    after: int | None = None
    """There is more to do, behind this id; None: it is done."""
    to: str | None = None
    """The page to show then, as a path below the dashboard; None: the one that the form was on."""
    target: Mapping[str, Any] | None = None
    """What it was done to, for the audit; None: the fields of the form say it."""
    of: str = ""
    """The name of what it was done to, where the text names it."""
    apart: Mapping[str, int] = field(default_factory=dict[str, int])
    """Of `count`, how many became something else than `PageAction.done` says, by the names of `PageAction.apart`."""


#: Performs the action in the request's transaction. Raises BadInput for a form that cannot be read.
Do: TypeAlias = Callable[[PageContext], Done]


@dataclass(frozen=True, slots=True)
class PageAction:
    """One thing that a form can ask for, at `act/NAME`."""

    name: str
    """Its name in the audit."""
    label: str
    """The text of its button."""
    done: str
    """What came of it, as the next page says it: `{n}` is how many, `{of}` what it was done to."""
    needs: Action
    do: Do
    count: Callable[[PageContext], int] | None = None
    """Says how many it would be, up to a cap: it is asked where a filter says which, and the viewer must confirm. None: it is done at once."""
    question: str = ""
    """What the viewer is asked to confirm: `{n}` is how many, `{unit}` what is counted."""
    careful: bool = False
    """Whether the viewer must confirm it also where each was named."""
    asks: Callable[[PageContext], bool] | None = None
    """Says whether the viewer must confirm it for those that were named."""
    typed: str | None = None
    """The field whose value the viewer must type once more to confirm it."""
    target: tuple[str, ...] = ("id",)
    """The fields that say what it is done to."""
    apart: Mapping[str, str] = field(default_factory=dict[str, str])
    """What may come of some of them instead, by the names that `Done.apart` may have: texts such as `done`."""
    unit: str = "job"
    """What is counted, in the singular."""
