"""Applying outcomes: a batch of fenced writes in one statement, with an answer for each row."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from functools import cached_property
from operator import attrgetter
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.types import TypeEngine

from ..arguments.context import ClaimedJob
from ..models import Job, JobMixin, StatusText, status_in, status_literal
from ..rules.failures import MAX_ERRORS
from ..rules.lifecycle import FINISHED, Change, JobStatus
from ..rules.outcomes import ErrorEntry
from .claims import ClaimRequest, Claims, Fault, claim_parameters, in_order
from .complete import (
    complete_job,
    complete_jobs,
    completion_parameters,
    delete_completed,
    has_results,
    own_parameters,
    written_ids,
)
from .ends import answered, at_end, ended, ended_id, fence, has_run_out, is_held
from .limits.state import block, limit_queues, tell_breakers
from .parts import ZERO, array, in_seconds, lock_in_order, materialized, members, rows, table_of
from .tables import Compiled, Flight
from .unique import ended_key, given_back, key_of
from .workflows.actions import member_events


def _error_json(change: Change) -> str | None:
    if change.error is None:
        return None
    error = change.error
    return json.dumps({"type": error.type, "message": error.message, "traceback": error.traceback})


#: Each array parameter: the column of the changes as rows, its type, and how a change fills it.
_ARRAYS: Mapping[str, tuple[str, TypeEngine[Any], Callable[[Change], Any]]] = {
    "change_ids": ("id", sa.BigInteger(), attrgetter("id")),
    "change_tokens": ("claim_token", sa.BigInteger(), attrgetter("claim_token")),
    "change_status": ("status", sa.Text(), attrgetter("status.value")),
    "change_if_cancelled": ("if_cancelled", sa.Text(), attrgetter("if_cancelled.value")),
    "change_delay": ("delay", sa.Float(53), attrgetter("delay")),
    "change_attempt": ("attempt", sa.SmallInteger(), attrgetter("attempt")),
    "change_rescues": ("rescues", sa.SmallInteger(), attrgetter("rescues")),
    "change_error": ("error", sa.Text(), _error_json),
    "change_result": ("result", sa.Text(), attrgetter("result")),
    "change_retain": ("retain", sa.Float(53), attrgetter("retain")),
    "change_expired": ("expired", sa.Boolean(), attrgetter("expired")),
}


def apply_parameters(changes: Sequence[Change]) -> dict[str, Any]:
    """The parameters of `apply_changes`, by name, to execute a statement again that was built once."""
    return {name: list(map(fill, changes)) for name, (_, _, fill) in _ARRAYS.items()}


def apply_changes(
    changes: Sequence[Change],
    *,
    skip_locked: bool = True,
    unique: bool | None = None,
    in_workflows: bool | None = None,
    job: type[JobMixin] = Job,
) -> sa.Executable:
    """Write the outcomes of claimed jobs, each only if its claim is still valid.

    `skip_locked`: do not wait for a row that another transaction has locked. Durations count from the beginning of the
    statement, by the database's clock. `unique`: whether jobs that end give back their unique keys; None: if some of the `changes`
    are of unique jobs. `in_workflows`: whether ends are appended to the events of workflows; None: if some are of members.

    Returns a row per change: id, claim_token, answer. The answer is "applied"; "cancelled": applied, but as `if_cancelled`, because a
    cancel was asked for meanwhile; "lost": the claim is no longer valid, or, for a rescue, the lease was renewed; or "locked": try again.
    """
    table = table_of(job)
    given = apply_parameters(changes)
    if unique is None:
        unique = any(change.unique for change in changes)
    if in_workflows is None:
        in_workflows = any_members(changes)
    change = rows("change", **{column: array(name, given[name], of) for name, (column, of, _) in _ARRAYS.items()})
    ids = array("change_ids", given["change_ids"], sa.BigInteger())
    locked = lock_in_order(table, table.c.id == sa.func.any(ids), is_held(table), skip_locked=skip_locked)
    valid = _is_valid(table, change)
    mine = sa.and_(members(table.c.id, sa.select(locked.c.id)), valid)
    deleted = _deleted(table, change, mine, skip_locked=skip_locked, unique=unique)
    updated = _updated(table, change, mine, unique=unique, in_workflows=in_workflows)
    written = [sa.select(part.c.id, part.c.claim_token, part.c.status) for part in (deleted, updated)]
    done = sa.union_all(*written).subquery("done")
    cancelled = sa.and_(
        done.c.status == status_literal(JobStatus.CANCELLED), change.c.status != status_literal(JobStatus.CANCELLED)
    )
    return (
        sa.select(
            change.c.id, change.c.claim_token, answered(done.c.id.is_not(None), valid, of=change, cancelled=cancelled)
        )
        .select_from(
            change.outerjoin(
                done, sa.and_(done.c.id == change.c.id, done.c.claim_token.is_not_distinct_from(change.c.claim_token))
            )
        )
        .add_cte(
            locked,
            *(given_back([deleted, updated], job) if unique else ()),
            # No member is deleted by its end.
            *([member_events([updated], job=job)] if in_workflows else ()),
        )
    )


def written_before(*, ids: Sequence[int], tokens: Sequence[int | None], job: type[JobMixin] = Job) -> sa.Executable:
    """The state of jobs whose outcomes may have been written by a commit that was not answered.

    Returns a row per claim: id; status, or NULL if the job is gone; and whether the claim was the `last` one.
    """
    table = table_of(job)
    claim = rows(
        "claim", id=array("claim_ids", ids, sa.BigInteger()), token=array("claim_tokens", tokens, sa.BigInteger())
    )
    last = table.c.claim_token.is_not_distinct_from(claim.c.token).label("last")
    return sa.select(claim.c.id, table.c.status, last).select_from(claim.outerjoin(table, table.c.id == claim.c.id))


def _is_valid(table: sa.Table, change: sa.TableValuedAlias) -> sa.ColumnElement[bool]:
    """Whether the change may be written: the claim holds and, for a rescue, the lease has still run out.

    A renewal does not change the token, so the write of a rescue looks at the lease once more.
    """
    return sa.and_(
        fence(table, id=change.c.id, token=change.c.claim_token, by_hand=True),
        sa.or_(sa.not_(change.c.expired), has_run_out(table)),
    )


def _deletes(change: sa.TableValuedAlias) -> sa.ColumnElement[bool]:
    """`Change.deletes`, in SQL."""
    return sa.and_(change.c.status == status_literal(JobStatus.COMPLETED), change.c.retain == ZERO)


def _deleted(
    table: sa.Table, change: sa.TableValuedAlias, mine: sa.ColumnElement[bool], *, skip_locked: bool, unique: bool
) -> sa.CTE:
    """Delete the rows of jobs that are not kept.

    A DELETE needs a stronger lock than an UPDATE: it would wait for an open transaction of the application that references
    the job in a row. So the rows to be deleted are locked once more.
    """
    columns = table.c
    leaving = materialized(
        sa.select(columns.id)
        .where(members(columns.id, sa.select(change.c.id).where(_deletes(change))), is_held(table))
        .order_by(columns.id)
        .with_for_update(skip_locked=skip_locked),
        "leaving",
    )
    return (
        sa.delete(table)
        .where(members(columns.id, sa.select(leaving.c.id)), mine, _deletes(change))
        .returning(
            ended_id(table, deleted=True),
            columns.claim_token,
            columns.status,
            *([key_of(table).label("key")] if unique else []),
        )
        .cte("deleted")
    )


def _updated(
    table: sa.Table, change: sa.TableValuedAlias, mine: sa.ColumnElement[bool], *, unique: bool, in_workflows: bool
) -> sa.CTE:
    """Update the rows of jobs that end and are kept, and of jobs that go back to the queue."""
    columns = table.c
    status = sa.case((columns.cancel_requested_at.is_(None), change.c.status), else_=change.c.if_cancelled)
    finished = status_in(status, FINISHED)
    return (
        sa.update(table)
        .where(mine, sa.not_(sa.func.coalesce(_deletes(change), sa.literal_column("false"))))
        .values(
            **ended(
                sa.type_coerce(status, StatusText()),
                retain=change.c.retain,
                result=sa.cast(change.c.result, JSONB),
                only=finished,
            ),
            run_at=sa.case(
                (finished, columns.run_at),
                (change.c.delay.is_(None), sa.func.least(columns.run_at, sa.func.now())),
                # Due at once, also for a claim in this same transaction.
                (change.c.delay == ZERO, sa.func.now()),
                else_=in_seconds(change.c.delay, after=at_end()),
            ),
            attempt=sa.func.greatest(sa.cast(columns.attempt, sa.Integer) + change.c.attempt, ZERO),
            rescues=sa.func.least(sa.cast(columns.rescues, sa.Integer) + change.c.rescues, sa.literal_column("32767")),
            errors=sa.case(
                (change.c.error.is_(None), columns.errors), else_=append_error(table, sa.cast(change.c.error, JSONB))
            ),
        )
        .returning(
            ended_id(table, follows=True),
            columns.claim_token,
            columns.status,
            *([ended_key(table, columns.status).label("key")] if unique else []),
            *(_ended_member(table) if in_workflows else []),
        )
        .cte("updated")
    )


def _ended_member(table: sa.Table) -> list[sa.ColumnElement[Any]]:
    """The workflow of a member that has ended, and whether it completed."""
    columns = table.c
    return [
        sa.case((status_in(columns.status, FINISHED), columns.workflow_id)).label("workflow_id"),
        (columns.status == status_literal(JobStatus.COMPLETED)).label("completed"),
    ]


def append_error(table: Any, entry: Any) -> Any:
    """The column `errors` with `entry` (jsonb) at its end, stamped with the time and attempt; the oldest entry may go."""
    errors = table.c.errors
    stamp = sa.func.jsonb_build_object(
        sa.literal_column("'at'"), at_end(), sa.literal_column("'attempt'"), table.c.attempt
    )
    newest: sa.ColumnElement[Any] = sa.literal_column(f"'$[last - {MAX_ERRORS - 2} to last]'::jsonpath")
    kept = sa.case(
        (sa.func.jsonb_typeof(errors) != sa.literal_column("'array'"), sa.literal_column("'[]'::jsonb")),
        (
            sa.func.jsonb_array_length(errors) >= sa.literal_column(str(MAX_ERRORS)),
            sa.func.jsonb_path_query_array(errors, newest, type_=JSONB),
        ),
        else_=errors,
    )
    return kept.op("||", return_type=JSONB())(sa.func.jsonb_build_array(entry.op("||", return_type=JSONB())(stamp)))


def as_entry(error: ErrorEntry) -> sa.ColumnElement[Any]:
    """An error without a traceback as jsonb, for `append_error`."""
    return sa.func.jsonb_build_object(
        sa.literal_column("'type'"), sa.bindparam("error_type", error.type, sa.Text),
        sa.literal_column("'message'"), sa.bindparam("error_message", error.message, sa.Text),
        sa.literal_column("'traceback'"), sa.literal_column("''"),
        type_=JSONB,
    )  # fmt: skip


# ---- Writing the outcomes of claimed jobs: each change behind its fence, with an answer for each job.

#: Seconds after which pruning tries to delete a completed job that could not be deleted at once: because a foreign key needs
#: it, or because it took too long.
_UNDELETABLE_RETAIN, _UNDELETED_RETAIN = 86_400.0, 60.0


class Answer(StrEnum):
    """The answer of a fenced write for a row."""

    APPLIED = "applied"
    CANCELLED = "cancelled"
    """Applied as a cancel, which was asked for meanwhile."""
    LOST = "lost"
    LOCKED = "locked"


_WRITTEN = frozenset({Answer.APPLIED, Answer.CANCELLED})


def alike(changes: Sequence[Change]) -> bool:
    """Whether a single one of the faster statements can write them all."""
    deletes = bool(changes) and changes[0].deletes
    return all(change.plain and change.deletes is deletes for change in changes)


def any_members(changes: Sequence[Change]) -> bool:
    """Whether some of the jobs are members of workflows, whose events must have their ends."""
    return any(change.workflow is not None for change in changes)


def kept_for_now(change: Change, fault: Fault) -> Change:
    """The change that keeps the row for now, in place of one that could not delete it because of `fault`."""
    return change.kept(_UNDELETED_RETAIN if fault is Fault.LATE else _UNDELETABLE_RETAIN)


def read_exchange(
    changes: Sequence[Change], rows: Sequence[tuple[Any, ...]]
) -> tuple[dict[int, Answer], list[ClaimedJob]]:
    """The answers to these changes and the claimed jobs, of the rows that an exchange has returned."""
    if not changes:
        return {}, in_order(rows)
    first, *claimed = rows
    return dict.fromkeys(written_ids(first), Answer.APPLIED), in_order(claimed)


class Outcomes(Claims):
    """Writing changes: a batch, a single change in the transaction of its handler, or a batch together with the next claim."""

    def apply(
        self, connection: sa.Connection, changes: Sequence[Change], *, waiting: bool = False
    ) -> dict[int, Answer]:
        """Write `changes`, each behind its fence. Returns the answer for each job id. `waiting`: wait for rows that another transaction has
        locked; then none is answered as locked.

        The faster statements write plain completions. The general statement writes all other changes, and asks about the completions
        that the faster ones left over.
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
            for row in connection.execute(self._apply_to(left, waiting=waiting), apply_parameters(left)):
                answer = Answer(row.answer)
                answers[row.id] = Answer.LOST if waiting and answer is Answer.LOCKED else answer  # as in `apply_one`
            self._block(connection, [change for change in left if answers[change.id] in _WRITTEN])
        return answers

    def apply_one(self, connection: sa.Connection, change: Change) -> Answer:
        """Write one change in the transaction of its handler, and wait for the row if another transaction has locked it.

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
        """The changes that an earlier transaction has written whose commit was not answered, as `cancelled` where it wrote a cancel.
        Of several changes of a job, the first that it may have written.

        A change is written if the job is as the change makes it and was not claimed again, or is gone and should be.
        """
        ids, tokens = [change.id for change in changes], [change.claim_token for change in changes]
        found = {row.id: row for row in connection.execute(written_before(ids=ids, tokens=tokens, job=self.job))}
        written: dict[int, Change] = {}
        for change in changes:
            row = found[change.id]
            if change.deletes if row.status is None else row.last and row.status == change.status:
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
        statement, parameters = self._exchange(changes, request)
        return read_exchange(changes, statement.rows(connection, parameters))

    def send_exchange(self, connection: sa.Connection, changes: Sequence[Change], request: ClaimRequest) -> Flight:
        """Send what `exchange` executes; `read_exchange` reads the answer."""
        statement, parameters = self._exchange(changes, request)
        return statement.send(connection, parameters)

    def _exchange(self, changes: Sequence[Change], request: ClaimRequest) -> tuple[Compiled, dict[str, Any]]:
        if not changes:
            return self._claim_but if request.but else self._claim, claim_parameters(request)
        kept = not changes[0].deletes
        parameters = claim_parameters(request) | completion_parameters(changes, kept=kept)
        if not kept:
            statements = self._delete_and_claim
        else:
            statements = self._completions_and_claims[has_results(parameters), any_members(changes)]
        return statements[bool(request.but)], parameters

    def _block(self, connection: sa.Connection, written: Sequence[Change]) -> None:
        """Block keys and queues as the written changes ask, for example after a 429, and report to the breakers.

        Do not call it in the transaction of a claim: another worker's claim may have locked these rows while it waits for this claim's locks.
        """
        if telling := [(change.id, change.tells) for change in written if change.tells is not None]:
            connection.execute(tell_breakers(*zip(*telling, strict=True), job=self.job))
        blocking = [(change.id, change.blocks) for change in written if change.blocks is not None]
        if not blocking:
            return
        ids, seconds = zip(*blocking, strict=True)
        blocked = connection.execute(block(ids, seconds, job=self.job)).all()
        # Jobs with keys are never claimed but under limits.
        if queues := [row.name for row in blocked if not row.key]:
            connection.execute(limit_queues(queues, job=self.job))

    # The values are given at each execution.

    def _apply_to(self, changes: Sequence[Change], *, waiting: bool = False) -> Any:
        """The statement that writes such changes."""
        kind = unique, in_workflows, _ = any(change.unique for change in changes), any_members(changes), waiting
        if (found := self._applies.get(kind)) is None:
            found = self._applies[kind] = apply_changes(
                [], skip_locked=not waiting, unique=unique, in_workflows=in_workflows, job=self.job
            )
        return found

    @cached_property
    def _applies(self) -> dict[tuple[bool, bool, bool], Any]:
        """By whether there are unique jobs, and members of workflows, and whether locked rows are waited for."""
        return {}

    @cached_property
    def _complete(self) -> Sequence[Compiled]:
        """Without results, and with some."""
        return self._completing(in_workflows=False)

    @cached_property
    def _complete_members(self) -> Sequence[Compiled]:
        """Like `_complete`, where some jobs are members of workflows."""
        return self._completing(in_workflows=True)

    def _completing(self, *, in_workflows: bool) -> Sequence[Compiled]:
        kinds: Sequence[list[str] | None] = None, []
        given: dict[str, Any] = {"ids": [], "tokens": [], "retain": [], "in_workflows": in_workflows, "job": self.job}
        return [Compiled(complete_jobs(**given, results=results)) for results in kinds]

    @cached_property
    def _complete_one(self) -> Sequence[Compiled]:
        """Without a result, and with one."""
        return self._completing_one(in_workflow=False)

    @cached_property
    def _complete_member(self) -> Sequence[Compiled]:
        """Like `_complete_one`, for a member of a workflow."""
        return self._completing_one(in_workflow=True)

    def _completing_one(self, *, in_workflow: bool) -> Sequence[Compiled]:
        kinds: Sequence[str | None] = None, ""
        given: dict[str, Any] = {"id": 0, "token": 0, "retain": 0.0, "in_workflow": in_workflow, "job": self.job}
        return [Compiled(complete_job(**given, result=result)) for result in kinds]

    _delete = cached_property(lambda self: Compiled(delete_completed(ids=[], tokens=[], job=self.job)))

    @cached_property
    def _completions_and_claims(self) -> dict[tuple[bool, bool], Sequence[Compiled]]:
        """By whether there are results, and members of workflows."""
        return {
            (recording, in_workflows): self._with_claim(
                complete_jobs, retain=[], results=[] if recording else None, in_workflows=in_workflows
            )
            for recording in (False, True)
            for in_workflows in (False, True)
        }

    @cached_property
    def _delete_and_claim(self) -> Sequence[Compiled]:
        return self._with_claim(delete_completed)

    def _with_claim(self, write: Callable[..., sa.Executable], **given: Any) -> Sequence[Compiled]:
        """The statement with a claim of all jobs, and with a claim that leaves some out."""
        claims = (self.claim_statement(some_left_out=some) for some in (False, True))
        return [Compiled(write(ids=[], tokens=[], **given, claim=claim, job=self.job), binary=True) for claim in claims]
