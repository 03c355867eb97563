"""Writing what became of claimed jobs: each change behind its fence, with an answer for each job."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from functools import cached_property
from typing import Any

from sqlalchemy import Connection

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

__all__ = ["Answer", "Outcomes", "alike", "kept_for_now"]

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


def kept_for_now(change: Change, fault: Fault) -> Change:
    """What to write in place of a change that would delete its row and, for this fault, cannot."""
    return change.kept(_UNDELETED_RETAIN if fault is Fault.LATE else _UNDELETABLE_RETAIN)


class Outcomes(Claims):
    """Writing changes: a batch, one in the transaction of its handler, or a batch together with the next claim."""

    def apply(self, connection: Connection, changes: Sequence[Change]) -> dict[int, Answer]:
        """Write `changes`, each behind its fence. Returns the answer for each job id.

        The faster statements write those that say no more than "done". The general one writes all others, and asks about
        those that the faster ones left over.
        """
        kept = [change for change in changes if change.plain and not change.deletes]
        gone = [change for change in changes if change.plain and change.deletes] if len(kept) < len(changes) else []
        answers: dict[int, Answer] = {}
        if kept:
            parameters = completion_parameters(kept)
            ((written,),) = self._complete[has_results(parameters)].rows(connection, parameters)
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

    def apply_one(self, connection: Connection, change: Change) -> Answer:
        """Write one change in the transaction of its handler; waits for a row that is locked just now.

        So the change is applied or lost, perhaps to the transaction that had the lock.
        """
        if change.plain and not change.deletes:
            written = bool(self._complete_one[change.result is not None].rows(connection, own_parameters(change)))
        else:
            (row,) = connection.execute(self._apply_to([change], waiting=True), apply_parameters([change]))
            answer = Answer(row.answer)
            self._block(connection, [change] if answer in _WRITTEN else [])
            return Answer.LOST if answer is Answer.LOCKED else answer  # as the statement first saw it, before it waited
        return Answer.APPLIED if written else Answer.LOST

    def written_before(self, connection: Connection, changes: Sequence[Change]) -> list[Change]:
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
        self, connection: Connection, changes: Sequence[Change], request: ClaimRequest
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
            statements = self._record_and_claim if has_results(parameters) else self._complete_and_claim
        first, *claimed = statements[bool(request.but)].rows(connection, parameters)
        return dict.fromkeys(written_ids(first), Answer.APPLIED), in_order(claimed)

    def _block(self, connection: Connection, written: Sequence[Change]) -> None:
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
            connection.execute(limit_queues(queues, limit=tables.limit))

    # The values are given at each execution.

    def _apply_to(self, changes: Sequence[Change], *, waiting: bool = False) -> Any:
        """The statement that writes such changes."""
        unique = any(change.unique for change in changes)
        if (found := self._applies.get((unique, waiting))) is None:
            found = self._applies[unique, waiting] = apply_changes(
                [], skip_locked=not waiting, unique=unique, job=self.tables.job, keys=self.tables.unique_key
            )
        return found

    @cached_property
    def _applies(self) -> dict[tuple[bool, bool], Any]:
        """By whether there are unique jobs, and whether locked rows are waited for."""
        return {}

    @cached_property
    def _complete(self) -> tuple[Compiled, Compiled]:
        """Without results, and with some."""
        plain = complete_jobs(ids=[], tokens=[], retain=[], job=self.tables.job)
        recording = complete_jobs(ids=[], tokens=[], retain=[], results=[], job=self.tables.job)
        return Compiled(plain), Compiled(recording)

    @cached_property
    def _complete_one(self) -> tuple[Compiled, Compiled]:
        """Without a result, and with one."""
        plain = complete_job(id=0, token=0, retain=0.0, job=self.tables.job)
        recording = complete_job(id=0, token=0, retain=0.0, result="", job=self.tables.job)
        return Compiled(plain), Compiled(recording)

    @cached_property
    def _delete(self) -> Compiled:
        return Compiled(delete_completed(ids=[], tokens=[], job=self.tables.job))

    @cached_property
    def _complete_and_claim(self) -> tuple[Compiled, Compiled]:
        """With a claim of all jobs, and with one that leaves some out."""
        return self._completing_and_claiming(results=None)

    @cached_property
    def _record_and_claim(self) -> tuple[Compiled, Compiled]:
        return self._completing_and_claiming(results=[])

    def _completing_and_claiming(self, *, results: list[str] | None) -> tuple[Compiled, Compiled]:
        claims = (self.claim_statement(some_left_out=some) for some in (False, True))
        of_jobs: dict[str, Any] = {"ids": [], "tokens": [], "retain": [], "results": results, "job": self.tables.job}
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
