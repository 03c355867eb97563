"""What a page has at hand while it reads: a connection, what was asked for, and for whom."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import sqlalchemy as sa

from ..arguments.subjects import Subject
from ..models import Companions, Job, JobMixin, companions_of
from .access import Access
from .query import Query

Part: TypeAlias = Literal["args", "meta", "result"]
#: Gets a task's name, which part of the job it is, and its JSON; returns what is shown of it.
FormatArgs: TypeAlias = Callable[[str, Part, Any], Any]
#: Gets the row that a job is about; returns the address of its page in the application, or None.
LinkSubject: TypeAlias = Callable[[Subject], str | None]


@dataclass(frozen=True, slots=True)
class Options:
    """What the application said of its dashboard."""

    title: str = "Jobs"
    job: type[JobMixin] = Job
    format_args: FormatArgs | None = None
    link_subject: LinkSubject | None = None

    @property
    def beside(self) -> Companions:
        """The tables beside the jobs."""
        return companions_of(self.job)


@dataclass(frozen=True, slots=True)
class PageContext:
    """What a page or an action works with: a connection, the query, the viewer's access, and the dashboard's options."""

    connection: sa.Connection
    query: Query
    access: Access
    options: Options
    path: Mapping[str, str] = field(default_factory=dict[str, str])
    """What stands in the path, by name."""

    @property
    def job(self) -> type[JobMixin]:
        """The mapped class of the jobs."""
        return self.options.job

    @property
    def queues(self) -> frozenset[str] | None:
        """The queues that the viewer may see; None: all."""
        return None if self.access.queues is None else frozenset(self.access.queues)

    def mine(self) -> list[sa.ColumnElement[bool]]:
        """The criteria of the jobs that the viewer may see."""
        return jobs_of(self.access, self.job)

    def seen(self, ids: Sequence[int]) -> Sequence[int]:
        """Those of these jobs that the viewer may see."""
        if not ids or not (mine := self.mine()):
            return ids
        which = sa.literal(list(ids), sa.ARRAY(sa.BigInteger))
        statement = sa.select(self.job.id).where(self.job.id == sa.func.any(which), *mine).order_by(self.job.id)
        return self.connection.scalars(statement).all()


def jobs_of(access: Access, job: type[JobMixin]) -> list[sa.ColumnElement[bool]]:
    """The criteria of the jobs that this access reaches, for pages and for actions alike."""
    found: list[sa.ColumnElement[bool]] = []
    if access.queues is not None:
        found.append(job.queue.in_(sorted(access.queues)))
    if access.where is not None:
        found.append(access.where)
    return found


# ---- A page: where it is, what it reads, and how it is shown.

#: Reads what the template shows, by name. Raises BadInput for a filter that cannot be read, Missing, and Elsewhere.
Read: TypeAlias = Callable[[PageContext], dict[str, Any]]


class Missing(Exception):
    """There is no such thing, or the viewer may not know that there is; as text it says what was looked for."""


class Elsewhere(Exception):
    """What was asked for is at another path, below the dashboard."""

    def __init__(self, path: str, query: Query | None = None) -> None:
        super().__init__(path)
        self.path, self.query = path, Query() if query is None else query


@dataclass(frozen=True, slots=True)
class Page:
    """A page of the dashboard. Its template is `pages/NAME.html`."""

    name: str
    title: str
    """Its heading, and the text of its link."""
    path: str
    read: Read
    in_menu: bool = True
    adds_up: bool = False
    """Whether it shows sums over the jobs of all tenants, and so is not for a viewer who may see only some of them."""
    of_all_queues: bool = False
    """Whether it shows what concerns all queues, and so is not for a viewer who may see only some."""
    is_live: bool = True
    """Whether it refreshes itself."""
