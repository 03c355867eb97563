"""What a viewer may see and do. The application says it for each request; without that, the dashboard is closed.

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

#: What can be allowed one by one. "read" is meant with each of the others.
Action: TypeAlias = Literal[
    "read", "retry", "cancel", "pause", "run_schedule", "drain_worker", "retry_workflow",
    "discard", "delete", "edit", "copy", "limit", "backfill", "cancel_workflow", "search_arguments",
]  # fmt: skip

_ALL: frozenset[str] = frozenset(get_args(Action))
#: What can be taken back, or does what would have been done anyway.
_OPERATE = frozenset(("read", "retry", "cancel", "pause", "run_schedule", "drain_worker", "retry_workflow"))


@dataclass(frozen=True, slots=True)
class Access:
    """What one viewer may do.

    `can`: names of actions, as in `Access(can={"retry", "cancel"})`. `queues`: only what belongs to these queues. `where`: only these
    jobs, such as `Job.tenant_id == 3`; pages that add up the jobs of all tenants are not shown then. `who`: the viewer's name, for the audit.

    Raises ConfigurationError for an action that there is not.
    """

    can: Iterable[str] = frozenset()
    queues: Iterable[str] | None = None
    where: sa.ColumnElement[bool] | None = None
    who: str = ""

    NONE: ClassVar[Access]
    """Nothing: the answer is 403."""
    READ: ClassVar[Access]
    """Look at everything, change nothing."""
    OPERATE: ClassVar[Access]
    """And what can be taken back: retry, cancel, pause, run a schedule, ask a worker to drain."""
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
        """The same for a viewer of this name: `Access.OPERATE.named(user.email)`."""
        return replace(self, who=who)

    @property
    def is_partial(self) -> bool:
        """Whether some jobs are hidden from the viewer by a condition, so that sums over all jobs are not for them."""
        return self.where is not None


Access.NONE = Access()
Access.READ = Access(can=("read",))
Access.OPERATE = Access(can=_OPERATE)
Access.ADMIN = Access(can=_ALL)

#: Says of each request what its sender may do; a coroutine function or a plain one.
Who: TypeAlias = Callable[[Request], Access | Awaitable[Access]]


async def access_of(who: Who | None, request: Request) -> Access:
    """What the application says of this request; nothing is allowed where it says nothing."""
    if who is None:
        return Access.NONE
    found: Any = who(request)
    if inspect.isawaitable(found):
        found = await found
    if not isinstance(found, Access):
        raise ConfigurationError(f"the dashboard's access callback must return an Access, not {found!r}")
    return found
