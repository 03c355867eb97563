"""Claiming where limits hold, or keys take turns.

A function of the schema picks the jobs, under the locks that make counting exact, and the statement claims them. It returns the columns of
`claim_jobs`, and for each queue a row without an id, with the time of the next claim from that queue.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

from ...arguments.context import ClaimedJob
from ...models import Job, JobMixin, schema_function
from ...rules.lifecycle import Change
from ..apply import Answer, any_members
from ..claims import INLINE_LIMIT, NOTHING_INLINE, Point, Slot, in_order, packed_points, taken, taken_by
from ..complete import complete_jobs, completion_parameters, delete_completed, has_results, written_ids
from ..parts import array, materialized, packed, packed_texts, table_of
from ..tables import Compiled, Flight, StorePart
from .state import FIRST_STATE, StateKey, forget_states, limit_queues, read_limits

#: The `opener` of permits that no waiting worker has freed. Not 0: the gate says 0 where several wait.
NOBODY = -1


class KeyCursor(NamedTuple):
    """Where the last claim from a queue stopped: the key, None before the first claim; and how many turns in a row the key has had."""

    after: str | None = None
    turns: int = 0


@dataclass(frozen=True, slots=True)
class QueueAnswer:
    """A claim's answer about a queue."""

    cursor: KeyCursor
    again: bool
    """Whether another claim may find jobs that this claim has left over."""
    unseen: bool
    """Whether the claim has left out some keys. The next claim begins with them."""
    permit: bool
    """Whether jobs wait for a permit: for the end of others."""
    picked: int
    """How many jobs the claim has picked."""
    rate_in: float | None
    """Seconds after which a rate allows more; None: no rate holds jobs back."""
    due_in: float | None
    """Seconds after which the next job with a key is due; None: there is none."""
    keyed: bool = False
    """Whether jobs with keys had their turns, too."""
    started: Sequence[tuple[int, str, int]] | None = None
    """The id, the key and the key's weight of each claimed job, if the keys of the queue share its time; else None."""


@dataclass(frozen=True, slots=True)
class LimitedRequest:
    """A claim under limits; the counterpart of `ClaimRequest`."""

    worker: str
    queues: Mapping[str, int]
    lease: float
    cursors: Mapping[str, KeyCursor] = field(default_factory=dict)
    after: Mapping[Slot, Point] | None = None
    """As in `ClaimRequest`, for jobs without a key. If too few jobs are behind these, the claim begins at the front once more."""
    tasks: Sequence[str] = ()
    """All tasks that have limits."""
    unknown: Sequence[str] = ()
    """Tasks that the worker does not know. Their jobs are for others."""
    known: int | None = None
    """The versions of the limits that the worker has read."""
    but: Sequence[int] = ()
    opener: int = 0
    """1 to 999: the worker, to know its own request for a permit again."""
    freed: bool = False
    """Whether limited jobs of this worker have ended since its last claim."""
    charges: str | None = None
    """The charges of keys from `TimeShares`, as JSON."""
    inline: bool = True


#: The request with which statements are built. The values are given at each execution.
_NO_REQUEST = LimitedRequest("", {}, 0.0)


def pick_parameters(request: LimitedRequest) -> dict[str, Any]:
    """The parameters of `picked_jobs`, by name."""
    cursors = [request.cursors.get(queue, KeyCursor()) for queue in request.queues]
    times, ids = packed_points(request.queues, request.after or {}) if request.after else ("{}", "{}")
    return {
        "limited_queues": packed_texts(request.queues),
        "limited_free": packed(request.queues.values()),
        "ring_after": packed_texts([cursor.after for cursor in cursors]),
        "ring_turns": packed([cursor.turns for cursor in cursors]),
        "front_times": times,
        "front_ids": ids,
        "limited_tasks": packed_texts(request.tasks),
        "unknown_tasks": packed_texts(request.unknown),
        "known_limits": request.known,
        "limited_but": packed(request.but),
        "limit_opener": request.opener,
        "limit_freed": request.freed,
        "time_charges": request.charges,
    }


def claim_limited(request: LimitedRequest, *, job: type[JobMixin] = Job) -> sa.CompoundSelect[Any]:
    """Claim due jobs of queues with limits or keys. Returns the columns of `ClaimedJob`; and for each queue a row with no id, whose
    `meta` is for `queue_answers`.
    """
    table = table_of(job)
    picked = _picked(table, pick_parameters(request), visible=sa.func.pg_current_snapshot())
    claimed = taken(
        table,
        sa.select(picked.c.id).where(picked.c.id.is_not(None)),
        worker=request.worker,
        lease=request.lease,
        args_limit=INLINE_LIMIT if request.inline else NOTHING_INLINE,
        at=sa.select(sa.func.max(picked.c.at)).scalar_subquery(),
    ).cte("taken")
    states = [picked.c.info if column.key == "meta" else sa.null() for column in claimed.c]
    return sa.union_all(sa.select(*claimed.c), sa.select(*states).select_from(picked).where(picked.c.id.is_(None)))


def picked_jobs(request: LimitedRequest, *, job: type[JobMixin] = Job) -> sa.Select[Any]:
    """The ids of the jobs that `claim_limited` would claim; they are locked, and so are their keys, until the transaction ends."""
    picked = _picked(table_of(job), pick_parameters(request), visible=sa.null())
    return sa.select(picked.c.id).where(picked.c.id.is_not(None))


def permits_freed(*, opener: int = NOBODY, job: type[JobMixin] = Job) -> sa.Select[Any]:
    """Notify the workers that wait for a permit, except the `opener`, that permits are free. It does nothing if none waits."""
    schema = table_of(job).schema
    return sa.select(
        schema_function("permits_freed", schema, sa.bindparam("limit_opener", opener, sa.Integer), of=sa.Text())
    )


def queue_answers(rows: Sequence[tuple[Any, ...]]) -> dict[str, QueueAnswer]:
    """By queue, the answers in the rows that a claim has returned."""
    return dict(_queue_answer(row[_META]) for row in rows if row[_ID] is None and row[_META] is not None)


def _queue_answer(info: str) -> tuple[str, QueueAnswer]:
    answer = json.loads(info)
    cursor = KeyCursor(answer["after"], answer["turns"])
    names = ("again", "unseen", "permit", "picked", "rate_in", "due_in", "keyed", "started")
    return answer["queue"], QueueAnswer(cursor, *(answer[name] for name in names))


def read_limited(
    changes: Sequence[Change], rows: Sequence[tuple[Any, ...]]
) -> tuple[dict[int, Answer], list[ClaimedJob]]:
    """The answers to these changes and the claimed jobs, of the rows that a claim has returned."""
    written = written_ids(rows[0]) if changes else []
    return dict.fromkeys(written, Answer.APPLIED), in_order(row for row in rows if row[_ID] is not None)


_ID, _META = ClaimedJob._fields.index("id"), ClaimedJob._fields.index("meta")


def _picked(table: sa.Table, given: Mapping[str, Any], *, visible: sa.ColumnElement[Any]) -> sa.CTE:
    call: Any = schema_function(
        "pick_limited",
        table.schema,
        array("limited_queues", given["limited_queues"], sa.Text()),
        array("limited_free", given["limited_free"], sa.Integer()),
        array("ring_after", given["ring_after"], sa.Text()),
        array("ring_turns", given["ring_turns"], sa.Integer()),
        array("front_times", given["front_times"], sa.Float(53)),
        array("front_ids", given["front_ids"], sa.BigInteger()),
        array("limited_tasks", given["limited_tasks"], sa.Text()),
        array("unknown_tasks", given["unknown_tasks"], sa.Text()),
        sa.bindparam("known_limits", given["known_limits"], sa.BigInteger),
        array("limited_but", given["limited_but"], sa.BigInteger()),
        sa.bindparam("limit_opener", given["limit_opener"], sa.Integer),
        sa.bindparam("limit_freed", given["limit_freed"], sa.Boolean),
        sa.cast(sa.bindparam("time_charges", given["time_charges"], sa.Text), JSONB),
        visible,
        of=sa.Text(),
    )
    rows = call.table_valued(
        sa.column("id", sa.BigInteger),
        sa.column("at", sa.DateTime(timezone=True)),
        sa.column("info", sa.Text),
        name="picking",
    ).render_derived(name="picking")
    found: sa.CTE = materialized(sa.select(rows.c.id, rows.c.at, rows.c.info), "picked")
    return found


# ---- Claiming where limits hold, and knowing where they do.


class KnownLimits(NamedTuple):
    """Where there are limits."""

    version: int | None
    queues: frozenset[str]
    """Queues that have limits, are paused, or have waiting jobs with keys."""
    tasks: tuple[str, ...]
    capped: frozenset[str] = frozenset()
    """Queues that limit how many of their jobs run or start, of whatever key."""
    broken: frozenset[str] = frozenset()
    """Tasks with a breaker that is not closed."""


class ForgottenStates(NamedTuple):
    """A page of states: the last that was read, None if no others follow; and how many were deleted."""

    last: StateKey | None
    forgotten: int


class LimitedClaims(StorePart):
    """Claims of queues with limits or keys."""

    def read_limits(self, connection: sa.Connection, queues: Collection[str]) -> KnownLimits:
        """Where there are limits, of these queues and of all tasks."""
        row = connection.execute(read_limits(queues=queues, job=self.job)).one()
        tasks = tuple(sorted(row.tasks or ()))
        queues, capped, broken = (frozenset(names or ()) for names in (row.queues, row.capped, row.broken))
        return KnownLimits(row.version, queues, tasks, capped, broken)

    def claim_limited(
        self, connection: sa.Connection, changes: Sequence[Change], request: LimitedRequest
    ) -> tuple[dict[int, Answer], list[ClaimedJob], dict[str, QueueAnswer]]:
        """Like `exchange`, where limits hold. Returns also the answer about each queue, by its name."""
        statement, parameters = self._limited_exchange(changes, request)
        rows = statement.rows(connection, parameters)
        return *read_limited(changes, rows), queue_answers(rows)

    def send_limited(self, connection: sa.Connection, changes: Sequence[Change], request: LimitedRequest) -> Flight:
        """Send what `claim_limited` executes; `read_limited` and `queue_answers` read the answer."""
        statement, parameters = self._limited_exchange(changes, request)
        return statement.send(connection, parameters)

    def _limited_exchange(self, changes: Sequence[Change], request: LimitedRequest) -> tuple[Compiled, dict[str, Any]]:
        inline = INLINE_LIMIT if request.inline else NOTHING_INLINE
        parameters = pick_parameters(request) | taken_by(request.worker, request.lease, inline)
        if not changes:
            return self._claim_limited, parameters
        kept = not changes[0].deletes
        parameters |= completion_parameters(changes, kept=kept)
        kind = (has_results(parameters), any_members(changes)) if kept else None
        return self._limited_exchanges[kind], parameters

    def pick_limited(self, connection: sa.Connection, request: LimitedRequest) -> list[int]:
        """The ids of the jobs that a claim would take. They are locked until the transaction ends."""
        return [row[0] for row in self._pick.rows(connection, pick_parameters(request))]

    def permits_freed(self, connection: sa.Connection, *, opener: int = NOBODY) -> None:
        """Permits are free: notify the workers that wait for them, except the `opener`, which knows."""
        connection.execute(permits_freed(opener=opener, job=self.job))

    def forget_states(
        self, connection: sa.Connection, *, after: StateKey = FIRST_STATE, limit: int = 1_000
    ) -> ForgottenStates:
        """Go over a page of limit states, and delete those that no longer affect any claim."""
        row = connection.execute(forget_states(after=after, limit=limit, job=self.job)).one()
        if row.unlimited:
            connection.execute(limit_queues(row.unlimited, job=self.job))
        last = StateKey(row.owner, row.name, row.key) if row.looked_at == limit else None
        return ForgottenStates(last, row.forgotten)

    _claim_limited = cached_property(lambda self: Compiled(claim_limited(_NO_REQUEST, job=self.job), binary=True))
    _pick = cached_property(lambda self: Compiled(picked_jobs(_NO_REQUEST, job=self.job), binary=True))

    @cached_property
    def _limited_exchanges(self) -> dict[tuple[bool, bool] | None, Compiled]:
        """By whether results are recorded, and whether there are members of workflows; None: the jobs are deleted."""
        claim = claim_limited(_NO_REQUEST, job=self.job)
        of_jobs: dict[str, Any] = {"ids": [], "tokens": [], "claim": claim, "job": self.job}
        found: dict[tuple[bool, bool] | None, Compiled] = {
            (recording, in_workflows): Compiled(
                complete_jobs(**of_jobs, retain=[], results=[] if recording else None, in_workflows=in_workflows),
                binary=True,
            )
            for recording in (False, True)
            for in_workflows in (False, True)
        }
        return found | {None: Compiled(delete_completed(**of_jobs), binary=True)}
