"""What a viewer may see and do. The application decides for each request; without `access=` the dashboard is closed.

>>> Access.READ.may("read"), Access.READ.may("retry")
(True, False)
>>> Access(can={"retry"}, queues={"mail"}).may("retry")
True
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, TypeAlias, get_args

import sqlalchemy as sa
from starlette.requests import Request

from ..errors import ConfigurationError

#: The rights that can be granted singly. Each includes "read".
Action: TypeAlias = Literal[
    "read", "retry", "cancel", "pause", "run_schedule", "drain_worker", "set_slots", "retry_workflow", "enqueue", "try",
    "acknowledge", "discard", "delete", "edit", "copy", "answer", "limit", "backfill", "cancel_workflow", "search_arguments",
]  # fmt: skip

_ALL: frozenset[str] = frozenset(get_args(Action))
#: Actions that can be undone, or that only do earlier what would be done anyway.
_OPERATE = frozenset((
    "read", "retry", "cancel", "pause", "run_schedule", "drain_worker", "set_slots", "retry_workflow", "enqueue", "try",
    "acknowledge",
))  # fmt: skip


@dataclass(frozen=True, slots=True)
class Access:
    """The rights of a viewer.

    `can`: names of actions, as in `Access(can={"retry", "cancel"})`. `queues`: only these queues and their jobs. `where`: only these
    jobs, such as `Job.tenant_id == 3`, without pages that sum up the jobs of all tenants. `who`: the viewer's name, for the audit.

    Raises ConfigurationError for an unknown action.
    """

    can: Iterable[str] = frozenset()
    queues: Iterable[str] | None = None
    where: sa.ColumnElement[bool] | None = None
    who: str = ""

    NONE: ClassVar[Access]
    """Nothing: the answer is 403."""
    READ: ClassVar[Access]
    """See everything, change nothing."""
    OPERATE: ClassVar[Access]
    """Also actions that can be undone: retry, cancel, pause, run a schedule, ask a worker to drain, enqueue and try a job, acknowledge a finding of the doctor."""
    ADMIN: ClassVar[Access]
    """Everything."""

    def __post_init__(self) -> None:
        for name in ("can", "queues"):
            if isinstance(getattr(self, name), str):
                raise ConfigurationError(
                    f"Access({name}=...) takes several names, as in {{'mail'}}, not {getattr(self, name)!r}"
                )
        given = frozenset(self.can)
        if unknown := sorted(map(str, given - _ALL)):
            raise ConfigurationError(f"there is no action {unknown[0]!r}; expected some of {', '.join(sorted(_ALL))}")
        object.__setattr__(self, "can", given | {"read"} if given else given)
        if self.queues is not None:
            object.__setattr__(self, "queues", frozenset(self.queues))

    def may(self, action: Action) -> bool:
        """Whether this action is allowed."""
        return action in frozenset(self.can)

    def named(self, who: str) -> Access:
        """A copy with the viewer's name: `Access.OPERATE.named(user.email)`."""
        return replace(self, who=who)

    @property
    def sees_all(self) -> bool:
        """Whether the viewer may see all jobs."""
        return self.queues is None and self.where is None

    @property
    def is_partial(self) -> bool:
        """Whether a condition hides some jobs from the viewer, who then must not see sums over all jobs."""
        return self.where is not None


Access.NONE = Access()
Access.READ = Access(can=("read",))
Access.OPERATE = Access(can=_OPERATE)
Access.ADMIN = Access(can=_ALL)

#: Returns the rights of a request's sender; a coroutine function or a plain function.
Who: TypeAlias = Callable[[Request], Access | Awaitable[Access]]


async def access_of(who: Who | None, request: Request) -> Access:
    """The rights that the application grants to this request; none without an access callback."""
    if who is None:
        return Access.NONE
    found: Any = who(request)
    if inspect.isawaitable(found):
        found = await found
    if not isinstance(found, Access):
        raise ConfigurationError(f"the dashboard's access callback must return an Access, not {found!r}")
    return found
