"""Writing what became of claimed jobs: each change behind its fence, with an answer for each job."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from functools import cached_property
from typing import Any

import sqlalchemy as sa

from ..context import ClaimedJob
from ..lifecycle import Change
from ..statements.apply import apply_changes, apply_parameters, written_before
from ..statements.claim import ClaimRequest, claim_parameters
from ..statements.complete import (
    complete_job,
    complete_jobs,
    completion_parameters,
    delete_completed,
    has_results,
    own_parameters,
    written_ids,
)
from ..statements.limit_state import block, limit_queues
from .claims import Claims, in_order
from .compiled import Compiled
from .faults import Fault

__all__ = ["Answer", "Outcomes", "alike", "any_members", "kept_for_now"]

#: A completed job that a foreign key keeps from being deleted at once stays this long before pruning tries; the second
#: where it only could not be deleted in time.
_UNDELETABLE_RETAIN, _UNDELETED_RETAIN = 86_400.0, 60.0


class Answer(StrEnum):
    """What a fenced write says of each row."""

    APPLIED = "applied"
    CANCELLED = "cancelled"
    """Applied as a cancel, which was asked for meanwhile."""
    LOST = "lost"
    LOCKED = "locked"


_WRITTEN = frozenset({Answer.APPLIED, Answer.CANCELLED})


def alike(changes: Sequence[Change]) -> bool:
    """Whether one of the faster statements can write them all."""
    deletes = bool(changes) and changes[0].deletes
    return all(change.plain and change.deletes is deletes for change in changes)


def any_members(changes: Sequence[Change]) -> bool:
    """Whether some are of members of workflows, to which their ends are told."""
    return any(change.workflow is not None for change in changes)


def kept_for_now(change: Change, fault: Fault) -> Change:
    """What to write in place of a change that would delete its row and, for this fault, cannot."""
    return change.kept(_UNDELETED_RETAIN if fault is Fault.LATE else _UNDELETABLE_RETAIN)


class Outcomes(Claims):
    """Writing changes: a batch, one in the transaction of its handler, or a batch together with the next claim."""

    def apply(self, connection: sa.Connection, changes: Sequence[Change]) -> dict[int, Answer]:
        """Write `changes`, each behind its fence. Returns the answer for each job id.

        The faster statements write those that say no more than "done". The general one writes all others, and asks about
        those that the faster ones left over.
        """
        kept = [change for change in changes if change.plain and not change.deletes]
        gone = [change for change in changes if change.plain and change.deletes] if len(kept) < len(changes) else []
        answers: dict[int, Answer] = {}
        if kept:
            parameters = completion_parameters(kept)
            statements = self._complete_members if any_members(kept) else self._complete
            ((written,),) = statements[has_results(parameters)].rows(connection, parameters)
            answers |= dict.fromkeys(written or (), Answer.APPLIED)
        if gone:
            ((written,),) = self._delete.rows(connection, completion_parameters(gone, kept=False))
            answers |= dict.fromkeys(written or (), Answer.APPLIED)
        if len(answers) < len(changes):
            left = [change for change in changes if change.id not in answers]
            for row in connection.execute(self._apply_to(left), apply_parameters(left)):
                answers[row.id] = Answer(row.answer)
            self._block(connection, [change for change in left if answers[change.id] in _WRITTEN])
        return answers

    def apply_one(self, connection: sa.Connection, change: Change) -> Answer:
        """Write one change in the transaction of its handler; waits for a row that is locked just now.

        So the change is applied or lost, perhaps to the transaction that had the lock.
        """
        if change.plain and not change.deletes:
            statements = self._complete_one if change.workflow is None else self._complete_member
            written = bool(statements[change.result is not None].rows(connection, own_parameters(change)))
        else:
            (row,) = connection.execute(self._apply_to([change], waiting=True), apply_parameters([change]))
            answer = Answer(row.answer)
            self._block(connection, [change] if answer in _WRITTEN else [])
            return Answer.LOST if answer is Answer.LOCKED else answer  # as the statement first saw it, before it waited
        return Answer.APPLIED if written else Answer.LOST

    def written_before(self, connection: sa.Connection, changes: Sequence[Change]) -> list[Change]:
        """Those of these that an earlier transaction has written, the answer to whose commit was lost; `cancelled` where it wrote that.
        Of several for one job, the first that it may have written.

        It has if the job is as the change makes it and was not claimed again, or is gone and should be.
        """
        statement = written_before(
            ids=[change.id for change in changes],
            tokens=[change.claim_token for change in changes],
            job=self.tables.job,
        )
        found = {row.id: row for row in connection.execute(statement)}
        written: dict[int, Change] = {}
        for change in changes:
            row = found[change.id]
            if row.status is None:
                if change.deletes:
                    written.setdefault(change.id, change)
            elif row.last and row.status == change.status:
                written.setdefault(change.id, change)
            elif row.last and row.status == change.if_cancelled:
                written.setdefault(change.id, change.cancelled)
        return list(written.values())

    def exchange(
        self, connection: sa.Connection, changes: Sequence[Change], request: ClaimRequest
    ) -> tuple[dict[int, Answer], list[ClaimedJob]]:
        """Write `changes`, which are `alike`, and claim, in one statement: it can be its own transaction.

        A change that was not written has no answer, and is for `apply`.
        """
        if not changes:
            return {}, self.claim(connection, request)
        kept = not changes[0].deletes
        parameters = claim_parameters(request) | completion_parameters(changes, kept=kept)
        if not kept:
            statements = self._delete_and_claim
        else:
            statements = self._completions_and_claims[has_results(parameters), any_members(changes)]
        first, *claimed = statements[bool(request.but)].rows(connection, parameters)
        return dict.fromkeys(written_ids(first), Answer.APPLIED), in_order(claimed)

    def _block(self, connection: sa.Connection, written: Sequence[Change]) -> None:
        """Where these have said that others are to wait, too: those that are written.

        Not in the transaction of a claim. Another worker's claim may write these rows, and wait for locks that this one would take.
        """
        wanted = [(change.id, change.blocks) for change in written if change.blocks is not None]
        if not wanted:
            return
        ids, seconds = zip(*wanted, strict=True)
        tables = self.tables
        blocked = connection.execute(block(ids, seconds, job=tables.job, state=tables.limit_state)).all()
        # Jobs with keys are never claimed but under limits.
        if queues := [row.name for row in blocked if not row.key]:
            connection.execute(limit_queues(queues, job=tables.job))

    # The values are given at each execution.

    def _apply_to(self, changes: Sequence[Change], *, waiting: bool = False) -> Any:
        """The statement that writes such changes."""
        kind = any(change.unique for change in changes), any_members(changes), waiting
        if (found := self._applies.get(kind)) is None:
            unique, in_workflows, _ = kind
            found = self._applies[kind] = apply_changes(
                [],
                skip_locked=not waiting,
                unique=unique,
                in_workflows=in_workflows,
                job=self.tables.job,
                keys=self.tables.unique_key,
                event=self.tables.event,
            )
        return found

    @cached_property
    def _applies(self) -> dict[tuple[bool, bool, bool], Any]:
        """By whether there are unique jobs, and members of workflows, and whether locked rows are waited for."""
        return {}

    @cached_property
    def _complete(self) -> tuple[Compiled, Compiled]:
        """Without results, and with some."""
        return self._completing(in_workflows=False)

    @cached_property
    def _complete_members(self) -> tuple[Compiled, Compiled]:
        """The same where some are members of workflows."""
        return self._completing(in_workflows=True)

    def _completing(self, *, in_workflows: bool) -> tuple[Compiled, Compiled]:
        kinds: tuple[list[str] | None, list[str] | None] = None, []
        plain, recording = (
            Compiled(
                complete_jobs(
                    ids=[], tokens=[], retain=[], results=results, in_workflows=in_workflows, job=self.tables.job,
                    event=self.tables.event,
                )
            )
            for results in kinds
        )  # fmt: skip
        return plain, recording

    @cached_property
    def _complete_one(self) -> tuple[Compiled, Compiled]:
        """Without a result, and with one."""
        return self._completing_one(in_workflow=False)

    @cached_property
    def _complete_member(self) -> tuple[Compiled, Compiled]:
        """The same for a member of a workflow."""
        return self._completing_one(in_workflow=True)

    def _completing_one(self, *, in_workflow: bool) -> tuple[Compiled, Compiled]:
        kinds: tuple[str | None, str | None] = None, ""
        plain, recording = (
            Compiled(
                complete_job(
                    id=0, token=0, retain=0.0, result=result, in_workflow=in_workflow, job=self.tables.job,
                    event=self.tables.event,
                )
            )
            for result in kinds
        )  # fmt: skip
        return plain, recording

    @cached_property
    def _delete(self) -> Compiled:
        return Compiled(delete_completed(ids=[], tokens=[], job=self.tables.job))

    @cached_property
    def _completions_and_claims(self) -> dict[tuple[bool, bool], tuple[Compiled, Compiled]]:
        """By whether there are results, and members of workflows: with a claim of all jobs, and with one that leaves some out."""
        return {
            (recording, in_workflows): self._completing_and_claiming(recording=recording, in_workflows=in_workflows)
            for recording in (False, True)
            for in_workflows in (False, True)
        }

    def _completing_and_claiming(self, *, recording: bool, in_workflows: bool) -> tuple[Compiled, Compiled]:
        claims = (self.claim_statement(some_left_out=some) for some in (False, True))
        of_jobs: dict[str, Any] = {"ids": [], "tokens": [], "retain": [], "results": [] if recording else None}
        of_jobs |= {"in_workflows": in_workflows, "job": self.tables.job, "event": self.tables.event}
        all_jobs, but_some = (Compiled(complete_jobs(**of_jobs, claim=claim), binary=True) for claim in claims)
        return all_jobs, but_some

    @cached_property
    def _delete_and_claim(self) -> tuple[Compiled, Compiled]:
        claims = (self.claim_statement(some_left_out=some) for some in (False, True))
        all_jobs, but_some = (
            Compiled(delete_completed(ids=[], tokens=[], claim=claim, job=self.tables.job), binary=True)
            for claim in claims
        )
        return all_jobs, but_some
