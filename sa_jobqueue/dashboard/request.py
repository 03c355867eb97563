"""Pages, and the context in which they read: a connection, the query, the viewer's access, the dashboard's options."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import sqlalchemy as sa

from ..arguments.subjects import Subject
from ..models import Companions, Job, JobMixin, companions_of
from ..tasks.registry import Registry
from .access import Access
from .query import Query

Part: TypeAlias = Literal["args", "meta", "result", "row"]
#: Takes a task's name, the part of the job, and its JSON, or the columns of a row that a tried job wrote; returns the value to show.
FormatArgs: TypeAlias = Callable[[str, Part, Any], Any]
#: Takes the row that a job is about; returns the address of its page in the application, or None.
LinkSubject: TypeAlias = Callable[[Subject], str | None]
#: Reads something with a connection of its own.
Later: TypeAlias = Callable[[sa.Connection], object]
ONE: sa.ColumnElement[int] = sa.literal_column("1")


@dataclass(frozen=True, slots=True)
class Options:
    """The application's options of its dashboard."""

    title: str = "Jobs"
    job: type[JobMixin] = Job
    format_args: FormatArgs | None = None
    link_subject: LinkSubject | None = None
    registry: Registry | None = None


@dataclass(frozen=True, slots=True)
class PageContext:
    """The connection, the query, the viewer's access, and the dashboard's options of a page or an action."""

    connection: sa.Connection
    query: Query
    access: Access
    options: Options
    path: Mapping[str, str] = field(default_factory=dict[str, str])
    """The parameters in the path, by name."""
    later: list[Later] = field(default_factory=list[Later])
    """What is read once the viewer has the page, for the next page."""

    @property
    def job(self) -> type[JobMixin]:
        """The mapped class of the jobs."""
        return self.options.job

    @property
    def tables(self) -> Companions:
        """The other tables in the schema of the jobs."""
        return companions_of(self.job)

    def now(self) -> Any:
        """The database's time."""
        return self.connection.scalar(sa.select(sa.func.now()))

    def count(self, some: sa.Select[Any]) -> int:
        """The number of rows of a query, which has a limit."""
        return self.connection.scalar(sa.select(sa.func.count()).select_from(some.subquery())) or 0

    @property
    def queues(self) -> frozenset[str] | None:
        """The queues that the viewer may see; None: all."""
        return None if self.access.queues is None else frozenset(self.access.queues)

    def mine(self) -> list[sa.ColumnElement[bool]]:
        """The criteria of the jobs that the viewer may see, and act on."""
        criteria = [] if self.access.where is None else [self.access.where]
        return criteria if self.queues is None else [self.job.queue.in_(sorted(self.queues)), *criteria]

    def seen(self, ids: Sequence[int]) -> Sequence[int]:
        """The ids among these of jobs that the viewer may see."""
        if not ids or not (mine := self.mine()):
            return ids
        which = sa.literal(list(ids), sa.ARRAY(sa.BigInteger))
        statement = sa.select(self.job.id).where(self.job.id == sa.func.any(which), *mine).order_by(self.job.id)
        return self.connection.scalars(statement).all()


# ---- Pages.

#: Reads the template's values, by name. Raises BadInput for an invalid filter, Missing, and Elsewhere.
Read: TypeAlias = Callable[[PageContext], dict[str, Any]]


class Missing(Exception):
    """The thing does not exist, or the viewer may not know that it does. The text names it."""

    status = 404


class Elsewhere(Exception):
    """The page is at another path, below the dashboard."""

    def __init__(self, path: str, query: Query | None = None) -> None:
        super().__init__(path)
        self.path, self.query = path, Query() if query is None else query


@dataclass(frozen=True, slots=True)
class Page:
    """A page of the dashboard. Its template is `pages/NAME.html`."""

    name: str
    title: str
    """The heading, and the text of the link."""
    path: str
    read: Read
    in_menu: bool = True
    adds_up: bool = False
    """Whether it shows sums over the jobs of all tenants, and is hidden from a viewer who may see only some tenants."""
    of_all_queues: bool = False
    """Whether it concerns all queues, and is hidden from a viewer who may see only some queues."""
    is_live: bool = True
    """Whether it refreshes itself."""
