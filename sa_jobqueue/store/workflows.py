"""Workflows: moving them on, what members take of others, and deleting those whose time is over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from ..log import get_logger
from ..statements.parts import FIRST_ID
from ..statements.prune import limit_statements, refuse_at_once
from ..statements.workflows.actions import advance_parameters, advance_workflows, cancel_workflows, stray_workflows
from ..statements.workflows.healing import heal_members, heal_workflows
from ..statements.workflows.inputs import inputs_of, page_of_inputs
from ..statements.workflows.pruning import (
    forget_workflows,
    make_months_of_members,
    move_members,
    postpone_workflow,
    prune_members,
    workflows_over,
)
from .compiled import Compiled
from .faults import Fault, fault_of, is_month_missing
from .tables import OfTables

__all__ = ["Advanced", "Input", "Workflows"]

logger = get_logger(__name__)

#: A member with more parents than this, or with results of more bytes, reads them itself, page by page.
_MOST_INPUTS, _MOST_BYTES = 256, 65_536


#: The values are given at each execution.
_NONE: Mapping[int, int] = {}


class Advanced(NamedTuple):
    """What a step has done: workflows that have more to read, those that another transaction has locked or members of which, the last
    event that was read of each, the queues in which jobs were released, and how many events were read.
    """

    again: frozenset[int]
    busy: frozenset[int]
    read: Mapping[int, int]
    queues: Sequence[str]
    eaten: int


class Input(NamedTuple):
    """What became of a parent of a member. `result` and `error`: as JSON text."""

    position: int | None
    policy: str
    parent_id: int
    status: str | None
    result: str | None
    error: str | None


class Workflows(OfTables):
    """What moves workflows on, and what the members take."""

    def advance(self, connection: sa.Connection, after: Mapping[int, int], *, most: int = 1_000) -> Advanced:
        """Read what has happened in these workflows, behind these events, and release the members that waited for it."""
        ((again, busy, read, last, queues, eaten),) = self._advance.rows(
            connection, advance_parameters(after, most=most)
        )
        points: dict[int, int] = dict(zip(read or (), last or (), strict=True))
        return Advanced(frozenset(again or ()), frozenset(busy or ()), points, queues or (), eaten)

    @cached_property
    def _advance(self) -> Compiled:
        return Compiled(advance_workflows(_NONE, most=0, schema=self.tables.job.__table__.schema or ""))

    def stray_workflows(self, connection: sa.Connection, *, limit: int = 1_000) -> list[int]:
        """Workflows with events that perhaps no worker has heard of. Those whose deadline is over are cancelled first."""
        schema = self.tables.job.__table__.schema or ""
        looked = stray_workflows(limit=limit, workflow=self.tables.workflow, event=self.tables.event)
        found, overdue = connection.execute(looked).one()
        strays: list[int] = list(found or ())
        if overdue:
            ended = cancel_workflows(*overdue, reason="the deadline of the workflow is over", schema=schema)
            strays += connection.scalars(ended).all()
        return strays

    def heal_members(
        self, connection: sa.Connection, *, after: int = FIRST_ID, limit: int = 1_000
    ) -> tuple[int | None, int]:
        """Look at a page of the members that wait for another. Returns where it ended, None if it was the last; and how many were healed."""
        tables = self.tables
        statement = heal_members(
            after=after, limit=limit, job=tables.job, workflow=tables.workflow, event=tables.event
        )  # fmt: skip
        last, healed, gone = connection.execute(statement).one()
        if gone:
            connection.execute(
                cancel_workflows(*gone, reason="its workflow was deleted", schema=tables.job.__table__.schema or "")
            )
        return last, healed

    def heal_workflows(
        self, connection: sa.Connection, *, after: int = FIRST_ID, limit: int = 1_000
    ) -> tuple[int | None, int]:
        """Look at a page of the workflows: whether one goes on of which all has ended. Returns what `heal_members` does."""
        tables = self.tables
        statement = heal_workflows(
            after=after, limit=limit, job=tables.job, workflow=tables.workflow, dependency=tables.dependency,
            join=tables.join, event=tables.event,
        )  # fmt: skip
        last, healed = connection.execute(statement).one()
        return last, healed

    # ---- what members take

    def inputs_of(self, connection: sa.Connection, ids: Sequence[int]) -> dict[int, list[Input] | None]:
        """What each of these members takes, by its id; None where that is too much to be read at once."""
        statement = inputs_of(
            ids, most=_MOST_INPUTS, size=_MOST_BYTES, job=self.tables.job, dependency=self.tables.dependency
        )
        found: dict[int, list[Input] | None] = {one: [] for one in ids}
        for child, *values in connection.execute(statement):
            taken = Input(*values)
            if taken.position is None:
                found[child] = None
            elif (inputs := found[child]) is not None:
                inputs.append(taken)
        return found

    def page_of_inputs(self, connection: sa.Connection, id: int, *, after: int, limit: int) -> list[Input]:
        """A page of what one member takes, by position."""
        statement = page_of_inputs(id, after=after, limit=limit, job=self.tables.job, dependency=self.tables.dependency)
        return [Input(*row) for row in connection.execute(statement)]

    # ---- deleting

    def workflows_over(self, connection: sa.Connection, *, limit: int = 100) -> list[int]:
        """Workflows whose time to be kept is over."""
        return list(
            connection.scalars(workflows_over(limit=limit, workflow=self.tables.workflow, event=self.tables.event))
        )

    def make_months_of_members(self, connection: sa.Connection, id: int, *, limit: int = 1_000) -> int:
        """Make the months of the archive that a page of its members needs; how many were missing."""
        return int(connection.scalar(make_months_of_members(id, limit=limit, job=self.tables.job)) or 0)

    def prune_workflow(
        self,
        connection: sa.Connection,
        id: int,
        *,
        limit: int = 1_000,
        seconds: float,
        archive: bool = False,
        months: bool = False,
    ) -> int | None:
        """Delete a page of its members, and it too if that was the last. Returns how many there were; None: one cannot be deleted.

        Then the workflow stays for another day. `archive`: as for `Pruning`. `months`: those that it needs have been made: one that is
        missing cannot be there.
        """
        try:
            with connection.begin_nested():
                connection.execute(refuse_at_once())
                connection.execute(limit_statements(seconds))
                gone = self._prune_members(connection, id, limit, archive)
                if gone < limit:
                    tables = self.tables
                    connection.execute(
                        forget_workflows(
                            [id], job=tables.job, workflow=tables.workflow, callback=tables.callback, join=tables.join,
                            event=tables.event,
                        )
                    )  # fmt: skip
                return gone
        except DBAPIError as error:
            fault = fault_of(error)
            if fault is Fault.AWAY or (is_month_missing(error) and not months):
                raise
            if archive and fault is Fault.LATE and self.is_archive_locked(connection):
                raise
            connection.execute(postpone_workflow(id, workflow=self.tables.workflow))
            logger.warning("workflow %d cannot be deleted; it stays for another day: %s", id, error.orig)
            return None

    def _prune_members(self, connection: sa.Connection, id: int, limit: int, archive: bool) -> int:
        tables = self.tables
        of_flow: dict[str, Any] = {
            "limit": limit, "dependency": tables.dependency, "workflow": tables.workflow, "event": tables.event,
        }  # fmt: skip
        if archive:
            return int(connection.execute(move_members(id, **of_flow, **tables.of_job)).one().jobs)
        page = prune_members(
            id, **of_flow, job=tables.job, progress=tables.progress, log=tables.log, archived_task=tables.archived_task
        )
        return len(connection.execute(page).all())
