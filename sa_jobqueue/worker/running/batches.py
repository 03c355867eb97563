"""Runs a batch: one call of the handler for all its jobs, one session, one commit with their completions.

A batch that cannot be committed as a whole runs again: without a job whose claim was lost, and in halves after the handler has raised, until
the bad job is alone. Only a job that fails alone spends an attempt.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any

from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from ...arguments.batches import AsyncBatchContext, BatchContext
from ...arguments.context import Notes
from ...arguments.loading import filled, load
from ...arguments.references import Reference, references
from ...arguments.storable import shown
from ...errors import PayloadError
from ...rules.failures import describe
from ...rules.outcomes import Failed, HandlerOutcome, Outcome, Released
from ...sql.apply import Answer
from ...tasks.middleware import layers_around
from ...util.log import get_logger
from .attempt_end import LOST, InDoubt, Lost, MaybeWritten, RunEnding, ToWrite, Written, outcome_of
from .call import Call, call_async_inside, call_inside, in_session, taken_by
from .executor import AGAIN, Executor, take_back
from .gathering import BatchRun, Member, current_text
from .life import Values
from .reopening import Sessions
from .run import Run, Runs
from .slots import AllSlots
from .timeouts import timed_out, timeout_of, within
from .verdict import may_go_back, of_error, of_stop, of_value, unruly, unstarted

logger = get_logger(__name__)


class Mixed(Exception):
    """The jobs of a batch differ in what `Batching.by` names, which is known now."""


class BatchCall(Call):
    """The call of a batch's handler. The thread or task that runs the handler makes and ends it."""

    __slots__ = ("_arguments", "alone", "batch", "failures", "ours")

    def __init__(self, batch: BatchRun, sessions: Sessions, notes: Notes) -> None:
        super().__init__(batch.runs[0], sessions, notes)
        self.batch = batch
        self.failures: list[tuple[Member, BaseException]] = []
        """Jobs that are not in the call, because their arguments do not fit or an object is missing; and why."""
        self.ours: list[Member] | None = None
        """The runs whose outcomes this call decides."""
        self._arguments = {run: given for run in batch.runs if (given := self._decoded(run)) is not None}
        self.alone = len(batch.runs) == 1
        self._keep(self._arguments)

    def _decoded(self, run: Member) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        try:
            if run.job.extra is not None and taken_by(run.job) is not None:
                raise PayloadError(f"task {run.task.name!r} runs in batches, and takes no results of other jobs")
            return run.task.decode(current_text(run.job, run.task))
        except (Exception, SystemExit) as error:  # also of an upcaster, or of an annotation that cannot be resolved
            self.failures.append((run, error))
            return None

    def _keep(self, kept: Iterable[Member]) -> None:
        """Let only these jobs be in the call."""
        self.batch.runs = list(kept)
        if self.batch.runs:
            self.run = self.batch.runs[0]

    def invoke(self) -> Any:
        """Call the handler. Returns its value, or, for an `async def` handler, its coroutine. Raises Mixed if its jobs must not be in one batch."""
        is_async, layers = self.run.task.is_async, layers_around([run.job for run in self.batch.runs])
        call = self._call_filled_async if is_async else self._call_filled
        return (call_async_inside if is_async else call_inside)(layers, self.run, call) if layers else call()

    async def _filled(
        self, values: Values, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        task = self.run.task
        opened: Any = self._open_async if task.is_async else self._open
        if wanted := list(references(list(self._arguments.values()))):
            session = opened()
            await in_session(session, self._load, wanted)
            opened = lambda: session  # noqa: E731
        args, kwargs = self._lists()
        if not self.batch.runs:
            return None
        context = (AsyncBatchContext if task.is_async else BatchContext)(self.batch, opened)
        if task.injected is not None:
            kwargs |= await values.of(task.injected)
        return (context, *args), kwargs

    def _load(self, session: Session, wanted: Sequence[Reference]) -> None:
        """Put the objects in place of the references. Leave out the jobs whose object is missing, or has another version. Raises Mixed."""
        refused: dict[int, Exception] = {}
        load(session, wanted, lambda reference, error: refused.update({id(reference): error}))
        for run, given in list(self._arguments.items()):
            error = next((refused[id(of)] for of in references(given) if id(of) in refused), None) if refused else None
            if error is None:
                try:
                    self._arguments[run] = filled(given)
                    continue
                except PayloadError as failure:
                    error = failure
            del self._arguments[run]
            self.failures.append((run, error))
        self._keep(self._arguments)
        grouping = self.run.task.grouping
        if grouping is not None and grouping.of_object:
            place = self.run.task.parameters.positional.index(grouping.argument)
            for run, (args, kwargs) in self._arguments.items():
                run.group = grouping.loaded(kwargs.get(grouping.argument) if place >= len(args) else args[place])
            if len({run.group for run in self._arguments}) > 1:
                raise Mixed

    def _lists(self) -> tuple[tuple[list[Any], ...], dict[str, Any]]:
        """The arguments as the handler takes them: a list for each parameter, with an item for each job."""
        self._keep(self._arguments)
        given = list(self._arguments.values())
        for run in self.batch.runs:
            run.undecoded = False
        if not given:
            return (), {}
        args, kwargs = given[0]
        return tuple([each[place] for each, _ in given] for place in range(len(args))), {
            name: [each[name] for _, each in given] for name in kwargs
        }

    def settle_all(self) -> list[Member]:
        """The runs whose outcomes this call decides: other threads may have given some up."""
        if self.ours is None:
            self.ours = [run for run in self.batch.runs if run.settle()]
        return self.ours

    def outcomes(self, value: Any) -> list[Outcome | Lost]:
        """The outcome of each job, of what the handler returned and of the jobs that it singled out. Raises TypeError for what it may not return."""
        runs, task = self.batch.runs, self.run.task
        if isinstance(value, list):
            if len(value) != len(runs):
                raise TypeError(
                    f"the handler returned {len(value)} results for {len(runs)} jobs: return a list with one item for each job, in the order of "
                    "ctx.jobs, or None"
                )
            items = value
        elif task.record and value is not None and not isinstance(value, HandlerOutcome):
            raise TypeError(
                f"the handler returned {shown(value)}: with record=True the handler of a batch returns a list with one result for each of its "
                f"{len(runs)} jobs"
            )
        else:
            items = [value] * len(runs)
        singled_out = self.batch.singled_out
        return [
            of_error(run, singled_out[run.job.id]) if run.job.id in singled_out else of_value(run, item)
            for run, item in zip(runs, items, strict=True)
        ]

    def is_left_early(self, value: Any) -> bool:
        """Whether the handler saw that it should stop, and returned: nothing is completed, and its writes are not kept."""
        return self.batch.noticed and self.batch.stops and not isinstance(value, HandlerOutcome)


def in_halves(runs: Sequence[Member]) -> list[list[Member]]:
    """The runs in two halves; a single run alone."""
    half = (len(runs) + 1) // 2
    return [list(part) for part in (runs[:half], runs[half:]) if part]


def is_for_all(call: BatchCall, error: BaseException) -> bool:
    """Whether what the handler has raised is the outcome of each of its jobs, and none of them need be looked for."""
    return call.alone or isinstance(error, HandlerOutcome) or call.batch.stops


@dataclass(frozen=True, slots=True)
class _End:
    """How the run of a job in a batch ends, and the exception behind it."""

    run: Member
    ending: RunEnding
    error: BaseException | None = None


class BatchExecutor(Executor):
    """An executor that also runs batches. `runs`: all that the worker holds. `all_slots`: where a batch that runs again waits."""

    def __init__(self, sessions: Sessions, *, runs: Runs, all_slots: AllSlots, **options: Any) -> None:
        super().__init__(sessions, **options)
        self._runs, self._all_slots = runs, all_slots

    def run_batch(self, batch: BatchRun) -> None:
        """Run a batch of a `def` handler on the calling thread."""
        if (call := self._begin_batch(batch)) is None:
            return
        try:
            self._conclude_batch(call, call.invoke())
        except BaseException as error:
            self._fail_batch(call, error)

    async def run_batch_async(self, batch: BatchRun, runner: asyncio.Task[Any]) -> None:
        """Run a batch of an `async def` handler in `runner`, the current task."""
        if (call := self._begin_batch(batch)) is None:
            return
        first = call.run
        batch.runner = first.runner = runner
        try:
            seconds = batch.task.timeout
            value = await (call.invoke() if seconds is None else within(seconds, first, call.invoke()))
            batch.runner = first.runner = None
            if runner.cancelling() and not self.leaving():
                await take_back(runner, batch)
            await call.in_greenlet(lambda: self._conclude_batch(call, value))
        except BaseException as raised:
            error = raised
            batch.runner = first.runner = None
            if not (leaving := self.leaving()):
                await take_back(runner, batch)
            cancelled = isinstance(error, asyncio.CancelledError) and not batch.interrupted and runner.cancelling() > 0
            await call.in_greenlet(lambda: self._fail_batch(call, error, released=leaving and cancelled))
            if leaving and cancelled:
                raise
        finally:
            if batch.interrupted:
                runner.uncancel()

    def _begin_batch(self, batch: BatchRun) -> BatchCall | None:
        """Start the clocks of the jobs that may start, and make their call; None: none of them may."""
        for run in batch.runs:
            if (run.stop is not None or run.job.extra is not None) and (outcome := unstarted(run)) is not None:
                self.give_up(run, outcome)
        batch.runs = [run for run in batch.runs if not run.settled]
        if not batch.runs:
            return None
        batch.started = now = monotonic()
        batch.timeout_at = None if batch.task.timeout is None else now + batch.task.timeout
        for run in batch.runs:
            run.started = now
            run.timeout_at = timeout_of(run, now)
            if self._log.says_all:
                self._log.begins(run)
        call = BatchCall(batch, self._sessions, self._notes)
        if batch.runs:
            return call
        self._end_failures(call)
        return None

    def _conclude_batch(self, call: BatchCall, value: Any) -> None:
        """The handler has returned `value`: commit what it wrote together with the completions, or begin again. In a greenlet for an async handler."""
        runs = call.batch.runs
        if call.is_left_early(value):
            call.close()
            self._report_batch(call, [_End(run, self._decide(run, of_stop(run))) for run in call.settle_all()])
            return
        decided = [self._decide(run, outcome) for run, outcome in zip(runs, call.outcomes(value), strict=True)]
        changes = [ending.change for ending in decided if isinstance(ending, ToWrite)]
        ours = call.settle_all()
        if len(ours) < len(runs) or len(changes) < len(runs):
            call.close()
            lost = [run for run, ending in zip(runs, decided, strict=True) if ending is LOST]
            self._without(call, lost)
            return
        answers: Mapping[int, Answer] | None = None
        if call.transaction is not None and runs:
            answers = call.transaction.complete_all(changes)
        call.close()
        if answers is not None and Answer.LOST in answers.values():
            self._without(call, [run for run in runs if answers[run.job.id] is Answer.LOST])
            return
        written = {} if answers is None or call.transaction is None else call.transaction.committing_all
        singled_out = call.batch.singled_out
        ends = [
            _End(run, Written(written[change.id]) if written else ToWrite(change), singled_out.get(change.id))
            for run, change in zip(runs, changes, strict=True)
        ]
        self._report_batch(call, ends, "completed")

    def _without(self, call: BatchCall, lost: Sequence[Member]) -> None:
        """Run the batch again without jobs whose claims were lost: what the handler wrote for them is not kept."""
        for run in lost:
            logger.warning(
                "job %d: its claim was lost; nothing that its batch wrote was kept, and the batch runs again without it",
                run.job.id, extra=run.job.fields,
            )  # fmt: skip
            if run in call.settle_all():
                self._end(run, LOST)
        self._again(call, [[run for run in call.settle_all() if run not in lost]], None, "lost")

    def _fail_batch(self, call: BatchCall, error: BaseException, *, released: bool = False) -> None:
        """The handler has raised `error`, or what it wrote could not be committed. `released`: the loop is ending. In a greenlet for an
        async handler.
        """
        call.close(failed=not isinstance(error, (HandlerOutcome, Mixed)))
        transaction, first, runs = call.transaction, call.run, call.settle_all()
        if isinstance(error, Mixed):
            self._end_failures(call)
            self._apart(call, runs)
            return
        if transaction is not None and transaction.committing_all and is_unanswered(error):
            ends = [_End(run, self._in_doubt(call, run), error) for run in runs]
        elif transaction is not None and transaction.unopened is not None and may_go_back(first, error):
            self._pause(first.job.queue, *transaction.unopened)
            delay = AGAIN * random.uniform(0.5, 1.5)
            ends = [_End(run, self._decide(run, Released(delay)), error) for run in runs]
        elif released:
            ends = [_End(run, self._decide(run, Released(started=True))) for run in runs]
        elif is_for_all(call, error):
            ends = [_End(run, self._judge_one(run, error), error) for run in runs]
        else:
            self._end_failures(call)
            logger.warning(
                "%s: a batch of %d jobs failed (%s); its jobs run again, in halves",
                first.task.name, len(call.batch.runs), shown(error),
                extra={"task": first.job.task, "queue": first.job.queue, "jobs": len(call.batch.runs)},
            )  # fmt: skip
            self._again(call, in_halves(runs), error, "released")
            return
        self._report_batch(call, ends)

    def _judge_one(self, run: Member, error: BaseException) -> ToWrite | Lost:
        try:
            return self._decide(run, of_error(run, error))
        except BaseException as failure:  # the application's: see `Executor._judge`
            return ToWrite(unruly(run, failure))

    def _in_doubt(self, call: BatchCall, run: Member) -> RunEnding:
        """The ending of a job whose batch may be committed: nobody has answered."""
        assert call.transaction is not None
        committing = call.transaction.committing_all[run.job.id]
        decided = LOST if run.stop is not None and of_stop(run) is LOST else self._decide(run, Released())
        return InDoubt(decided.change, committing) if isinstance(decided, ToWrite) else MaybeWritten(committing)

    # ---- the end of a batch

    def _report_batch(self, call: BatchCall, ends: Sequence[_End], outcome: str | None = None) -> None:
        """Report how the jobs ended. `outcome`: that of the call; by default that of its first job."""
        self._end_failures(call)
        for end in ends:
            self._end(end.run, end.ending, end.error)
        if call.batch.end is not None:
            if outcome is None and ends:
                call.batch.end.tell(outcome_of(ends[0].ending), ends[0].error)
            else:  # without an end all jobs were given up
                call.batch.end.tell(outcome or "released", None)

    def _end_failures(self, call: BatchCall) -> None:
        """End the jobs that were not in the call."""
        for run, error in call.failures:
            if run.settle():
                self._end(run, self._judge_one(run, error), error)
        call.failures.clear()

    def _again(
        self, call: BatchCall, parts: Sequence[Sequence[Member]], error: BaseException | None, outcome: str
    ) -> None:
        """Let the jobs of these parts begin again, with no attempt spent."""
        self._end_failures(call)
        batches = [BatchRun.of(made) for part in parts if (made := self._renewed(part, error))]
        self._leave(call, error, outcome)
        for run in self._all_slots[call.batch.job.queue].begin_again(batches):
            self.give_up(run, Released())

    def _apart(self, call: BatchCall, runs: Sequence[Member]) -> None:
        """Let the jobs begin again in batches by their groups, which are known now."""
        made, slots = self._renewed(runs, None), self._all_slots[call.batch.job.queue]
        self._leave(call, None, "released")
        for run in slots.gather(list[Run](made)):
            self.give_up(run, Released())
        slots.start_gathered(call.batch.job.queue)

    def _renewed(self, runs: Sequence[Member], error: BaseException | None) -> list[Member]:
        """New runs of the same claims, as far as these are held."""
        made = self._runs.renew(runs, Member.again)
        held = {run.job.id for run in made}
        for run in runs:
            if run.job.id not in held:
                self._end(run, LOST)
            elif run.attempt_end is not None:
                run.attempt_end.tell("released", error)
        return made

    def _leave(self, call: BatchCall, error: BaseException | None, outcome: str) -> None:
        """Take the jobs out of a batch whose call has ended: their other runs decide their outcomes."""
        call.batch.runs = []
        if call.batch.end is not None:
            call.batch.end.tell(outcome, error)

    def give_up_batch(self, batch: BatchRun, note: str) -> bool:
        """End the attempts of a batch that has timed out, and whose handler cannot be stopped. False: it has ended already. For any thread.

        Nothing tells which of the jobs took so long. They go back as if their worker had died: after the second time each of them runs alone.
        """
        runs = [run for run in list(batch.runs) if run.settle()]
        for run in runs:
            error = timed_out(run)
            outcome = Failed(error, describe(error)) if batch.along == 0 else Released(started=True)
            self._end(run, self._decide(run, outcome), error, note)
        if runs and batch.end is not None:
            self.telling.tell(batch.end, "released", None)
        return bool(runs)


def is_unanswered(error: BaseException) -> bool:
    """Whether a commit that raised `error` may have succeeded: the server did not refuse it."""
    return not (
        isinstance(error, DBAPIError) and not error.connection_invalidated and getattr(error.orig, "sqlstate", None)
    )
