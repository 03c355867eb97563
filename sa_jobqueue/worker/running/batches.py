"""Run a batch: one call of the handler for all jobs, one session, one commit with the completions.

A batch that cannot commit as a whole runs again: without jobs whose claims were lost, or in halves after an exception, until
the bad job is alone. Only a job that fails alone spends an attempt.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
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
from ...rules.lifecycle import Change
from ...rules.outcomes import Failed, HandlerOutcome, Outcome, Released
from ...tasks.middleware import layers_around
from ...util.log import get_logger
from .attempt_end import LOST, InDoubt, Lost, MaybeWritten, RunEnding, ToWrite, outcome_of
from .call import Call, call_async_inside, call_inside, in_session, taken_by
from .executor import AGAIN, Executor
from .gathering import BatchRun, Member, current_text
from .life import Values
from .reopening import Sessions
from .run import Run, Runs
from .slots import AllSlots
from .timeouts import timed_out, timeout_of
from .verdict import may_go_back, of_error, of_stop, of_value, unruly, unstarted

logger = get_logger(__name__)


class Mixed(Exception):
    """The jobs of a batch have different values of `Batching.by`, known after their objects were loaded."""


class BatchCall(Call):
    """The call of a batch's handler. The thread or task that runs the handler makes and ends it."""

    __slots__ = ("_arguments", "_failures", "alone", "ours")

    run: BatchRun

    def __init__(self, batch: BatchRun, sessions: Sessions, notes: Notes) -> None:
        super().__init__(batch, sessions, notes)
        self._failures: list[tuple[Member, BaseException]] = []
        self.ours: list[Member] | None = None
        """The runs whose outcomes this call decides."""
        self._arguments = {run: given for run in batch.runs if (given := self._decoded(run)) is not None}
        self.alone = len(batch.runs) == 1
        batch.runs = list(self._arguments)

    def _decoded(self, run: Member) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        try:
            if run.job.extra is not None and taken_by(run.job) is not None:
                raise PayloadError(f"task {run.task.name!r} runs in batches, and takes no results of other jobs")
            return run.task.decode(current_text(run.job, run.task))
        except (Exception, SystemExit) as error:  # also from an upcaster, or for an annotation that cannot be resolved
            self._failures.append((run, error))
            return None

    def invoke(self) -> Any:
        """Call the handler. Returns its value, or, for an `async def` handler, its coroutine. Raises Mixed if its jobs must not be in one batch."""
        is_async, layers = self.run.task.is_async, layers_around(self.run.jobs)
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
        if not self.run.runs:
            return None
        context = (AsyncBatchContext if task.is_async else BatchContext)(self.run, opened)
        if task.injected is not None:
            kwargs |= await values.of(task.injected)
        return (context, *args), kwargs

    def _load(self, session: Session, wanted: Sequence[Reference]) -> None:
        """Replace references by loaded objects. Leave out jobs whose object is missing or has another version. Raises Mixed."""
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
            self._failures.append((run, error))
        self.run.runs = list(self._arguments)
        grouping = self.run.task.grouping
        if grouping is not None and grouping.of_object:
            place = self.run.task.parameters.positional.index(grouping.argument)
            for run, (args, kwargs) in self._arguments.items():
                run.group = grouping.loaded(kwargs.get(grouping.argument) if place >= len(args) else args[place])
            if len({run.group for run in self._arguments}) > 1:
                raise Mixed

    def _lists(self) -> tuple[tuple[list[Any], ...], dict[str, Any]]:
        """The arguments of the handler: a list per parameter, with one item per job."""
        given = list(self._arguments.values())
        for run in self.run.runs:
            run.undecoded = False
        if not given:
            return (), {}
        args, kwargs = given[0]
        return tuple([each[place] for each, _ in given] for place in range(len(args))), {
            name: [each[name] for _, each in given] for name in kwargs
        }

    def settle_all(self) -> list[Member]:
        """The runs whose outcomes this call decides, without runs that other threads have given up."""
        if self.ours is None:
            self.ours = [run for run in self.run.runs if run.settle()]
        return self.ours

    def outcomes(self, value: Any) -> list[Outcome | Lost]:
        """The outcome of each job, from the returned value and from `ctx.fail` and `ctx.retry`. Raises TypeError for an invalid returned value."""
        runs, task = self.run.runs, self.run.task
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
        return [
            of_value(run, item) if (error := self.error_of(run)) is None else of_error(run, error)
            for run, item in zip(runs, items, strict=True)
        ]

    def error_of(self, run: Run) -> BaseException | None:
        """The exception for a job of `ctx.fail` or `ctx.retry`."""
        return self.run.singled_out.get(run.job.id)

    def take_failures(self) -> list[tuple[Member, BaseException]]:
        """The jobs that are left out of the call, with their exceptions. A second call returns no jobs."""
        failures, self._failures = self._failures, []
        return failures

    def parts(self, error: BaseException) -> list[list[Member]]:
        """The runs of the next batches after the handler raised `error`. Empty if `error` is the outcome of all jobs."""
        runs = self.run.runs if self.ours is None else self.ours
        parts: dict[Any, list[Member]] = {}
        if isinstance(error, Mixed):
            for run in runs:
                parts.setdefault(run.group, []).append(run)
        elif not (self.alone or isinstance(error, HandlerOutcome) or self.run.stops):
            half = (len(runs) + 1) // 2
            parts = {0: runs[:half], 1: runs[half:]}
        return [part for part in parts.values() if part]

    def tell(self, outcome: str, error: BaseException | None) -> None:
        """End the attempt of the batch."""
        if self.run.attempt_end is not None:
            self.run.attempt_end.tell(outcome, error)

    def is_left_early(self, value: Any) -> bool:
        """Whether the handler returned after it saw that it should stop. Then no job completes, and its writes roll back."""
        return self.run.noticed and self.run.stops and not isinstance(value, HandlerOutcome)


class BatchExecutor(Executor):
    """Runs batches. `runs`: all runs of the worker. `all_slots`: the slots in which a batch waits to run again."""

    def __init__(self, sessions: Sessions, *, runs: Runs, all_slots: AllSlots, **options: Any) -> None:
        super().__init__(sessions, **options)
        self._runs, self._all_slots = runs, all_slots

    def _begin(self, batch: BatchRun, /) -> BatchCall | None:
        """Start the jobs that may start, and make their call; None if no job may start."""
        for run in batch.runs:
            if (run.stop is not None or run.job.extra is not None) and (outcome := unstarted(run)) is not None:
                self.give_up(run, outcome)
        batch.runs = [run for run in batch.runs if not run.settled]
        if not batch.runs:
            return None
        now = batch.start()
        for run in batch.runs:
            run.timeout_at = timeout_of(run, now)
            if self._log.says_all:
                self._log.begins(run)
        call = BatchCall(batch, self._sessions, self._notes)
        if batch.runs:
            return call
        self._end_failures(call)
        return None

    def _succeed(self, call: BatchCall, value: Any) -> None:
        """After the handler returned `value`: commit its writes together with the completions, or run the batch again."""
        runs = call.run.runs
        if call.is_left_early(value):
            call.close()
            self._end_all(call, [self._decide(run, of_stop(run)) for run in call.settle_all()])
            return
        endings: Sequence[RunEnding] = [
            self._decide(run, outcome) for run, outcome in zip(runs, call.outcomes(value), strict=True)
        ]
        ours, changes = call.settle_all(), [ending.change for ending in endings if isinstance(ending, ToWrite)]
        if call.transaction is not None and runs and len(ours) == len(runs) == len(changes):
            endings = call.transaction.complete(changes)
        call.close()
        self._end_failures(call)
        if len(ours) < len(runs) or LOST in endings:
            self._without(call, [run for run, ending in zip(runs, endings, strict=True) if ending is LOST])
            return
        for run, ending in zip(runs, endings, strict=True):
            self._end(run, ending, call.error_of(run))
        call.tell("completed", None)

    def _fail(self, call: BatchCall, error: BaseException, *, released: bool = False) -> None:
        """After the handler raised `error`, or its writes could not be committed. `released`: the loop is ending."""
        call.close(failed=not isinstance(error, (HandlerOutcome, Mixed)))
        self._end_failures(call)
        transaction, batch, runs = call.transaction, call.run, call.settle_all()
        endings: Sequence[RunEnding]
        if isinstance(error, Mixed):
            self._apart(call, runs)
            return
        if transaction is not None and transaction.committing and is_unanswered(error):
            endings = [self._in_doubt(run, transaction.committing[run.job.id]) for run in runs]
        elif (
            transaction is not None
            and transaction.unopened is not None
            and all(may_go_back(run, error) for run in runs)
        ):
            self._pause(batch.job.queue, *transaction.unopened)
            delay = AGAIN * random.uniform(0.5, 1.5)
            endings = [self._decide(run, Released(delay)) for run in runs]
        elif released:
            self._end_all(call, [self._decide(run, Released(started=True)) for run in runs])
            return
        elif parts := call.parts(error):
            logger.warning(
                "%s: a batch of %d jobs failed (%s); its jobs run again, in halves",
                batch.task.name, len(batch.runs), shown(error),
                extra={"task": batch.job.task, "queue": batch.job.queue, "jobs": len(batch.runs)},
            )  # fmt: skip
            self._again(call, parts, error, "released")
            return
        else:
            endings = [self._judge_one(run, error) for run in runs]
        self._end_all(call, endings, error)

    def _judge_one(self, run: Member, error: BaseException) -> ToWrite | Lost:
        try:
            return self._decide(run, of_error(run, error))
        except BaseException as failure:  # the application's: see `Executor._judge`
            return ToWrite(unruly(run, failure))

    def _in_doubt(self, run: Member, committing: Change) -> RunEnding:
        """The ending of a job whose batch may have committed: the server's answer was lost."""
        decided = LOST if run.stop is not None and of_stop(run) is LOST else self._decide(run, Released())
        return InDoubt(decided.change, committing) if isinstance(decided, ToWrite) else MaybeWritten(committing)

    # ---- the end of a batch

    def _end_all(self, call: BatchCall, endings: Sequence[RunEnding], error: BaseException | None = None) -> None:
        """End the jobs. The attempt of the call ends as the first job does."""
        self._end_failures(call)
        for run, ending in zip(call.settle_all(), endings, strict=True):
            self._end(run, ending, error)
        if endings:
            call.tell(outcome_of(endings[0]), error)
        else:  # all jobs were given up
            call.tell("released", None)

    def _end_failures(self, call: BatchCall) -> None:
        """End the jobs that were left out of the call."""
        for run, error in call.take_failures():
            if run.settle():
                self._end(run, self._judge_one(run, error), error)

    def _without(self, call: BatchCall, lost: Sequence[Member]) -> None:
        """Run the batch again without the jobs whose claims were lost. The writes of the call roll back."""
        for run in lost:
            logger.warning(
                "job %d: its claim was lost; nothing that its batch wrote was kept, and the batch runs again without it",
                run.job.id, extra=run.job.fields,
            )  # fmt: skip
            if run in call.settle_all():
                self._end(run, LOST)
        self._again(call, [[run for run in call.settle_all() if run not in lost]], None, "lost")

    def _again(
        self, call: BatchCall, parts: Sequence[Sequence[Member]], error: BaseException | None, outcome: str
    ) -> None:
        """Run the jobs of these parts again, without spending an attempt."""
        batches = [BatchRun.of(made) for part in parts if (made := self._renewed(part, error))]
        self._leave(call, error, outcome)
        for run in self._all_slots[call.run.job.queue].begin_again(batches):
            self.give_up(run, Released())

    def _apart(self, call: BatchCall, runs: Sequence[Member]) -> None:
        """Run the jobs again in batches by their groups, which are known now."""
        made, slots = self._renewed(runs, None), self._all_slots[call.run.job.queue]
        self._leave(call, None, "released")
        for run in slots.gather(list[Run](made)):
            self.give_up(run, Released())
        slots.start_gathered(call.run.job.queue)

    def _renewed(self, runs: Sequence[Member], error: BaseException | None) -> list[Member]:
        """New runs of the claims that the worker still holds."""
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
        call.run.runs = []
        call.tell(outcome, error)

    def give_up_batch(self, batch: BatchRun, note: str) -> bool:
        """End the attempts of a batch that has timed out and whose handler cannot be stopped. Returns False if the batch has ended. For any thread.

        The slow job is unknown. So all jobs go back as if their worker had died; after the second time, each job runs alone.
        """
        runs = [run for run in list(batch.runs) if run.settle()]
        for run in runs:
            error = timed_out(run)
            outcome = Failed(error, describe(error)) if batch.along == 0 else Released(started=True)
            self._end(run, self._decide(run, outcome), error, note)
        if runs and batch.attempt_end is not None:
            self.telling.tell(batch.attempt_end, "released", None)
        return bool(runs)


def is_unanswered(error: BaseException) -> bool:
    """Whether a commit that raised `error` may have succeeded: the server did not refuse it."""
    return not (
        isinstance(error, DBAPIError) and not error.connection_invalidated and getattr(error.orig, "sqlstate", None)
    )
