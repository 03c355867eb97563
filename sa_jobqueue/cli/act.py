"""Acting on jobs: `retry`, `cancel`, `discard`, `prune`. Each takes ids or filters and says how many it touched."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Self

import typer
from sqlalchemy import ARRAY, BigInteger, ColumnElement, Connection, Engine, func, literal, select, true
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import InstrumentedAttribute

from sa_jobqueue.errors import ConfigurationError
from sa_jobqueue.lifecycle import FINISHED, Event, JobStatus, sources
from sa_jobqueue.models import Job, status_in, status_literal
from sa_jobqueue.statements import cancel_jobs, discard_jobs, prune_jobs, retry_jobs

from .common import Config, Json, open_engine, transaction
from .filters import PANEL, Chosen, Status, parse_id
from .output import count, note, print_json, say

__all__ = ["cancel", "discard", "prune", "retry"]

Criterion = ColumnElement[bool]
Criteria = Sequence[Criterion]

_PAGE = 1_000

_OPTIONS: Mapping[str, tuple[Any, Any]] = {
    "ids": (
        Annotated[
            list[int] | None, typer.Argument(metavar="ID", parser=parse_id, help="These jobs.", show_default=False)
        ],
        None,
    ),
    "all": (
        Annotated[bool, typer.Option("--all", help="All jobs in a state that allows it.", rich_help_panel=PANEL)],
        False,
    ),
    "dry_run": (
        Annotated[bool, typer.Option("--dry-run", help="Only say how many jobs it would be; change nothing.")],
        False,
    ),
    "json": (Json, False),
}


@dataclass(frozen=True, slots=True)
class Order:
    """What the four commands have in common."""

    options: ClassVar[Mapping[str, tuple[Any, Any]]] = _OPTIONS

    ids: Sequence[int]
    all: bool
    dry_run: bool
    json: bool

    @classmethod
    def from_options(cls, *, ids: Sequence[int] | None = None, **given: Any) -> Self:
        """From what Typer found."""
        return cls(ids=ids or (), **given)

    def criteria(self, chosen: Chosen, *, by: InstrumentedAttribute[Any] = Job.created_at) -> list[Criterion]:
        """The ids given, and what else was said of the jobs."""
        return [*([self.named] if self.ids else []), *chosen.criteria(by=by)]

    @property
    def named(self) -> Criterion:
        """The jobs whose ids are given: one parameter, for a statement takes 65,535 at most."""
        return Job.id == func.any(literal(list(self.ids), ARRAY(BigInteger)))

    def check(self, chosen: Chosen) -> None:
        """Everything is not meant by mistake."""
        narrowed = bool(self.ids or chosen)
        if self.all and narrowed:
            raise ConfigurationError("--all and a choice of jobs contradict each other: give one of them")
        if not self.all and not narrowed:
            raise ConfigurationError("say which jobs: by ids, by filters such as --queue, --task or --status, or --all")


def retry(config: Config, chosen: Chosen, order: Order) -> None:
    """Run jobs again, now.

    With filters or --all it takes the failed jobs, unless --status says otherwise; by id any job that is not running.
    Each gets all its attempts again. A job that waits for a later time becomes due now.

    sa-jobqueue retry 17 18
    sa-jobqueue retry --queue mail --newer-than 2h
    """
    order.check(chosen)
    if not order.ids and not chosen.status:
        chosen = replace(chosen, status=[Status.FAILED])
    _act(config, order, order.criteria(chosen), RETRY)


def cancel(config: Config, chosen: Chosen, order: Order) -> None:
    """Cancel jobs; running ones are asked to stop.

    sa-jobqueue cancel 17
    sa-jobqueue cancel --queue mail --status scheduled --dry-run
    """
    order.check(chosen)
    _act(config, order, order.criteria(chosen), CANCEL)


def discard(
    config: Config,
    chosen: Chosen,
    order: Order,
    *,
    reason: Annotated[
        str, typer.Option(metavar="TEXT", help="What the jobs' errors will say.")
    ] = "discarded by an operator",
) -> None:
    """Give up waiting jobs: they end as failed.

    Their errors say the reason. Running jobs are not touched: cancel those.

    sa-jobqueue discard --task shop.send_receipt --status retrying --reason "the shop is closed"
    """
    order.check(chosen)
    action = replace(DISCARD, do=_by(lambda *where: discard_jobs(*where, reason=reason)))
    _act(config, order, order.criteria(chosen), action)


def prune(
    config: Config,
    chosen: Chosen,
    order: Order,
    *,
    expired: Annotated[
        bool,
        typer.Option(
            "--expired",
            help="Those that have been kept for long enough: what workers delete by themselves.",
            rich_help_panel=PANEL,
        ),
    ] = False,
) -> None:
    """Delete finished jobs.

    In pages of 1,000, each in a transaction of its own. Ages count from a job's end. A job stays where a
    foreign key of the application refers to it.

    sa-jobqueue prune --expired
    sa-jobqueue prune --status completed --older-than 3d --dry-run
    """
    criteria = order.criteria(chosen, by=Job.finished_at)
    if expired:
        if order.all:
            raise ConfigurationError("--all and --expired contradict each other: give one of them")
        criteria.append(Job.purge_at <= func.now())
    else:
        order.check(chosen)
    _act(config, order, criteria, PRUNE)


def _act(config: Config, order: Order, criteria: Criteria, action: Action) -> None:
    """Do it, or count by the same criteria and states; say how many, and which of the ids given were left out."""
    possible = [*criteria, status_in(Job.status, action.statuses)]
    running = [*possible, Job.status == status_literal(JobStatus.RUNNING)]
    engine = open_engine(config)
    with transaction(config, engine) as connection:
        asked = connection.scalar(select(func.count()).where(*running)) or 0
        rows = connection.execute(select(Job.id, Job.status).where(order.named))
        found = {row.id: row.status for row in rows}
        touched = set(connection.scalars(select(Job.id).where(*possible))) if order.dry_run else set[int]()
    if not order.dry_run:
        touched = set(action.do(engine, criteria))
    left = {one: str(found.get(one, "no such job")) for one in dict.fromkeys(order.ids) if one not in touched}
    if order.json:
        print_json({"action": action.verb, "count": len(touched), "dry_run": order.dry_run, "not_touched": left})
    else:
        stop = f", {asked:,} of them still running and asked to stop" if asked else ""
        say(f"{f'would {action.verb}' if order.dry_run else action.done} {count(len(touched))}{stop}")
        if left:
            note("not touched: " + ", ".join(f"{one} ({why})" for one, why in left.items()))
    if left:
        raise typer.Exit(1)


def _by(build: Callable[..., Any]) -> Callable[[Engine, Criteria], list[int]]:
    """Execute a builder's statement, in one transaction."""

    def do(engine: Engine, criteria: Criteria) -> list[int]:
        with engine.begin() as connection:
            return list(connection.scalars(build(*criteria or [true()])))

    return do


def _prune(engine: Engine, criteria: Criteria) -> list[int]:
    """Page by page, each in a transaction of its own. Where a foreign key holds a row, the page shrinks to find it."""
    deleted: list[int] = []
    kept: list[int] = []
    after: int | None = None
    page = _PAGE
    while True:
        where = [*criteria, true() if after is None else Job.id > after]
        try:
            with engine.begin() as connection:
                ids = list(connection.scalars(prune_jobs(*where, limit=page)))
        except IntegrityError:
            if page > 1:
                page = max(page // 10, 1)
                continue
            with engine.begin() as connection:
                after = _first_finished(connection, where)
            kept.append(after)
            continue
        deleted += ids
        if len(ids) < page:
            break
        after, page = max(ids), min(page * 10, _PAGE)
    if kept:
        note(f"{count(len(kept))} kept, because other rows refer to them: {', '.join(map(str, kept[:10]))}")
    return deleted


def _first_finished(connection: Connection, where: Criteria) -> int:
    first = select(func.min(Job.id)).where(*where, status_in(Job.status, FINISHED))
    return int(connection.scalar(first) or 0)


@dataclass(frozen=True, slots=True)
class Action:
    """Something that can be done to jobs in certain states; `do` returns the ids it was done to."""

    verb: str
    done: str
    statuses: Sequence[JobStatus]
    do: Callable[[Engine, Criteria], Iterable[int]]


RETRY = Action("retry", "retried", sources(Event.REQUEUE), _by(retry_jobs))
CANCEL = Action("cancel", "cancelled", sources(Event.CANCEL), _by(cancel_jobs))
DISCARD = Action("discard", "discarded", sources(Event.DISCARD), _by(discard_jobs))
PRUNE = Action("prune", "pruned", tuple(status for status in JobStatus if status in FINISHED), _prune)
