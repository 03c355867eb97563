"""Claiming where limits hold, and knowing where they do."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import sqlalchemy as sa

from ..context import ClaimedJob
from ..lifecycle import Change
from ..statements.complete import complete_jobs, completion_parameters, delete_completed, has_results, written_ids
from ..statements.limit_state import FIRST_STATE, StateKey, forget_states, limit_queues
from ..statements.limited import (
    NOBODY,
    LimitedRequest,
    RingState,
    claim_limited,
    is_state,
    limited_parameters,
    permits_freed,
    pick_parameters,
    picked_jobs,
    ring_state,
)
from ..statements.limits import read_limits
from .claims import in_order
from .compiled import Compiled
from .outcomes import Answer, any_members
from .tables import OfTables

__all__ = ["ForgottenStates", "KnownLimits", "LimitedClaims"]

_META = ClaimedJob._fields.index("meta")


class KnownLimits(NamedTuple):
    """Where there are limits."""

    version: int | None
    queues: frozenset[str]
    """Queues that have limits, are paused, or have waiting jobs with keys."""
    tasks: tuple[str, ...]


class ForgottenStates(NamedTuple):
    """A page of states that was looked at: the last of them, None if no others follow; how many of them are gone."""

    last: StateKey | None
    forgotten: int


class LimitedClaims(OfTables):
    """Claims of queues with limits or keys."""

    def read_limits(self, connection: sa.Connection, queues: Collection[str]) -> KnownLimits:
        """Where there are limits, of these queues and of all tasks."""
        tables = self.tables
        statement = read_limits(queues=queues, job=tables.job, limit=tables.limit, limit_key=tables.key)
        row = connection.execute(statement).one()
        return KnownLimits(row.version, frozenset(row.queues or ()), tuple(sorted(row.tasks or ())))

    def claim_limited(
        self, connection: sa.Connection, changes: Sequence[Change], request: LimitedRequest
    ) -> tuple[dict[int, Answer], list[ClaimedJob], dict[str, RingState]]:
        """As `exchange`, where limits hold; and by queue, how to go on."""
        parameters = limited_parameters(request)
        answers: dict[int, Answer] = {}
        if not changes:
            rows = self._claim_limited.rows(connection, parameters)
        else:
            kept = not changes[0].deletes
            parameters |= completion_parameters(changes, kept=kept)
            kind = (has_results(parameters), any_members(changes)) if kept else None
            statement = self._limited_exchanges[kind]
            first, *rows = statement.rows(connection, parameters)
            answers = dict.fromkeys(written_ids(first), Answer.APPLIED)
        states = dict(ring_state(row[_META]) for row in rows if is_state(row))
        return answers, in_order(row for row in rows if not is_state(row)), states

    def pick_limited(self, connection: sa.Connection, request: LimitedRequest) -> list[int]:
        """The jobs that a claim would take. They are locked till the transaction ends."""
        return [row[0] for row in self._pick.rows(connection, pick_parameters(request))]

    def permits_freed(self, connection: sa.Connection, *, opener: int = NOBODY) -> None:
        """Permits are free: tell the workers that wait for one, except the `opener`, which knows."""
        connection.execute(permits_freed(opener=opener, job=self.tables.job))

    def forget_states(
        self, connection: sa.Connection, *, after: StateKey = FIRST_STATE, limit: int = 1_000
    ) -> ForgottenStates:
        """Look at a page of what claims keep, and delete what says nothing any more."""
        tables = self.tables
        statement = forget_states(after=after, limit=limit, state=tables.limit_state, limits=tables.limit)
        row = connection.execute(statement).one()
        if row.unlimited:
            connection.execute(limit_queues(row.unlimited, job=tables.job))
        last = StateKey(row.owner, row.name, row.key) if row.looked_at == limit else None
        return ForgottenStates(last, row.forgotten)

    @cached_property
    def _claim_limited(self) -> Compiled:
        return Compiled(claim_limited(_NO_REQUEST, job=self.tables.job), binary=True)

    @cached_property
    def _pick(self) -> Compiled:
        return Compiled(picked_jobs(_NO_REQUEST, job=self.tables.job), binary=True)

    @cached_property
    def _limited_exchanges(self) -> dict[tuple[bool, bool] | None, Compiled]:
        """By whether results are recorded, and whether there are members of workflows; None: the jobs are deleted."""
        job = self.tables.job
        of_jobs: dict[str, Any] = {"ids": [], "tokens": [], "job": job}
        claim = claim_limited(_NO_REQUEST, job=job)
        found: dict[tuple[bool, bool] | None, Compiled] = {
            (recording, in_workflows): Compiled(
                complete_jobs(
                    **of_jobs, retain=[], results=[] if recording else None, claim=claim, in_workflows=in_workflows,
                    event=self.tables.event,
                ),
                binary=True,
            )
            for recording in (False, True)
            for in_workflows in (False, True)
        }  # fmt: skip
        return found | {None: Compiled(delete_completed(**of_jobs, claim=claim), binary=True)}


#: The values are given at each execution.
_NO_REQUEST = LimitedRequest("", {}, 0.0)
