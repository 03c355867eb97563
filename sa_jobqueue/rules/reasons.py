"""Why a job is not being run, as a value that says it in a sentence.

>>> str(WaitReason("queue", "sync", "42", "running", limit=3, used=3, job_ids=[11, 12, 13]))
'waits for limit sync/42: 3 of 3 running (jobs 11, 12, 13)'

`KINDS` lists the reasons, the deciding reason first. A new reason is a name in `What`, an entry there, and the place that finds
it: a row of `why_waiting`, or `sa_jobqueue.health.explain`.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, NamedTuple, TypeAlias

from .limits import Owner
from .words import jobs_of

#: Jobs ahead of another that are counted at most.
MOST_AHEAD = 1_000
#: In `WorkerRow.pressure`, before the database's message to a worker whose claims fail.
CLAIMS_FAIL = "claims fail: "

#: Kinds of reasons: what keeps a job from being run, or how it ended. `KINDS` has a sentence for each.
What: TypeAlias = Literal[
    "missing", "archived", "completed", "failed", "duplicate", "cancelled", "overdue", "lost", "claimed", "expired", "later", "retry", "parents",
    "held", "signal", "join", "sleep", "differs", "released", "paused", "breaker", "unserved", "unknown", "refused", "suspect", "locked", "blocked", "strict", "running", "rate", "pressure",
    "busy", "turn", "expires", "deadline",
]  # fmt: skip

Moment: TypeAlias = Callable[[datetime], str]
"""Writes a time as text."""


class WaitReason(NamedTuple):
    """Why a job is not being run, or how it ended. As text it is a sentence about the job, without its full stop.

    A row of `why_waiting` makes a reason: `WaitReason(*row)`.
    """

    owner: Owner | None
    """Whose limit or pause it is: "queue" or "task"; else None."""
    name: str | None
    """The queue's, the task's, the worker's (`host:pid`), or the signal's."""
    key: str | None
    """None: it holds for all jobs of the owner."""
    what: What
    limit: int | None = None
    """How many may run; how many units of a rate may start in `seconds`; how many attempts, slots or workers there are."""
    used: int | None = None
    """How many run, have been made, are ahead, or are waited for."""
    job_ids: Sequence[int] | None = None
    """The jobs that run, are waited for, or wait to be tried again: the first 20, by id. Of a duplicate: the other job."""
    until: datetime | None = None
    """When it is over, or is to begin; None: that is not known."""
    seconds: float | None = None
    """The period of a rate."""
    reason: str | None = None
    """The pause's reason, the unit of a rate, the last error's message, or the question to a person."""
    since: datetime | None = None
    """When it began."""
    workflow_id: int | None = None
    """The workflow that is paused, or whose members are waited for; or that of a member that was cancelled."""
    pid: int | None = None
    """The server process of the transaction that has locked the row."""

    def __str__(self) -> str:
        return self.said()

    def said(self, moment: Moment = str) -> str:
        """The sentence. `moment` writes a time as text."""
        return KINDS[self.what].sentence(self, moment)

    @property
    def needs_help(self) -> bool:
        """Whether it does not pass by itself: an operator, a deployment or another transaction has to end it."""
        return KINDS[self.what].needs_help

    def advice(self, job_id: int) -> str:
        """What to do about it for this job, in a line; "": nothing."""
        return KINDS[self.what].advice(self, job_id)

    @property
    def place(self) -> str:
        """The queue or task, with the key: "sync/42"."""
        return f"{self.name}" if self.key is None else f"{self.name}/{self.key}"


def _nothing(_: WaitReason, __: int) -> str:
    return ""


@dataclass(frozen=True, slots=True)
class Kind:
    """How a kind of reason is worded."""

    sentence: Callable[[WaitReason, Moment], str]
    needs_help: bool = False
    advice: Callable[[WaitReason, int], str] = _nothing


# ---- parts of sentences


def _until(wait: WaitReason, moment: Moment, before: str = "until ") -> str:
    return "" if wait.until is None else f"{before}{moment(wait.until)}"


def _since(wait: WaitReason, moment: Moment, before: str = " at ") -> str:
    return "" if wait.since is None else f"{before}{moment(wait.since)}"


def _whose(wait: WaitReason, what: str) -> str:
    return f"waits for {what} {'task ' if wait.owner == 'task' else ''}{wait.place}"


def _because(wait: WaitReason) -> str:
    return "" if wait.reason is None else f": {wait.reason}"


def _jobs(wait: WaitReason) -> str:
    ids = list(wait.job_ids or ())
    if not ids:
        return ""
    more = (wait.used or 0) - len(ids)
    others = f" and {more:,} more" if more > 0 else ""
    return f" ({'job' if len(ids) == 1 else 'jobs'} {', '.join(map(str, ids))}{others})"


# ---- sentences that depend on more than what they name


def _duplicate(wait: WaitReason, moment: Moment) -> str:
    other = f"job {wait.job_ids[0]}" if wait.job_ids else "another job"
    return f"is a duplicate: {other} had its unique key when it was enqueued{_since(wait, moment, ', ')}"


def _lost(wait: WaitReason, moment: Moment) -> str:
    seen = f"was last seen {moment(wait.since)}" if wait.since is not None else "has left"
    return f"is held by {wait.name}, which {seen}; it is rescued when its lease runs out{_until(wait, moment, ', ')}"


def _claimed(wait: WaitReason, moment: Moment) -> str:
    lease = f"its lease runs out{_until(wait, moment, ' ')}"
    return f"is being run by {wait.name}{_since(wait, moment, ' since ')}; {lease}{_because(wait)}"


def _unserved(wait: WaitReason, _: Moment) -> str:
    return f"has no worker: {'none is alive' if wait.name is None else f'no live one serves queue {wait.name}'}"


def _unknown(wait: WaitReason, moment: Moment) -> str:
    back = f"; it went back to its queue {_until(wait, moment)}" if wait.until is not None else ""
    return f"has a task that no live worker of its queue knows: {wait.name}{back}"


def _breaker(wait: WaitReason, moment: Moment) -> str:
    whose = f"the breaker of task {wait.name}" + ("" if wait.key is None else f", key {wait.key},")
    return (
        f"waits: {whose} is open{_until(wait, moment, ' until ')}"
        if wait.until
        else f"waits for a probe: {whose} was open"
    )


def _refused(wait: WaitReason, _: Moment) -> str:
    others = f" (skipped by {wait.used} of {wait.limit} workers)" if (wait.limit or 0) > 1 else ""
    return f"cannot be claimed by {wait.name}{others}{_because(wait)}"


def _turn(wait: WaitReason, _: Moment) -> str:
    ahead = wait.used
    number = "others" if ahead is None else f"more than {MOST_AHEAD:,} jobs" if ahead > MOST_AHEAD else jobs_of(ahead)
    if wait.key is None and wait.owner == "queue":
        return (
            f"is behind {number} of queue {wait.name} by priority" if ahead != 0 else f"is first in queue {wait.name}"
        )
    whose = f"task {wait.name}" if wait.key is None else f"key {wait.key}"
    return f"is {f'behind {number}' if ahead != 0 else 'first'} of {whose}, which takes turns with others of its queue"


def _locked(wait: WaitReason, _: Moment) -> str:
    whose = "" if wait.pid is None else f" (PID {wait.pid})"
    return f"has a row that another transaction has locked{whose}: claims may pass it by"


def _pressure(wait: WaitReason, _: Moment) -> str:
    if (wait.reason or "").startswith(CLAIMS_FAIL):
        return f"has workers whose {wait.reason}"
    return f"has workers that claim less, because the database is under pressure{_because(wait)}"


def _busy(wait: WaitReason, _: Moment) -> str:
    slots = "1 slot of queue {} is" if wait.limit == 1 else f"{wait.limit} slots of queue {{}} are"
    return f"waits for a slot: the {slots.format(wait.name)} busy on {wait.reason}"


# ---- advice


def _resume(wait: WaitReason, _: int) -> str:
    of_task = " --task" if wait.owner == "task" else ""
    of_key = "" if wait.key is None else f" --key {shlex.quote(wait.key)}"
    return f"sa-jobqueue resume {shlex.quote(wait.name or '')}{of_task}{of_key}"


def _close(wait: WaitReason, _: int) -> str:
    of_key = "" if wait.key is None else f" --key {shlex.quote(wait.key)}"
    return f"sa-jobqueue limits close {shlex.quote(wait.name or '')}{of_key}"


def _work(wait: WaitReason, _: int) -> str:
    queue = "" if wait.name is None else f" --queue {shlex.quote(wait.name)}"
    return f"start a worker: sa-jobqueue work{queue} --app ..."


def _run_again(_: WaitReason, job_id: int) -> str:
    return f"sa-jobqueue retry {job_id}"


def _retry_cancelled(wait: WaitReason, job_id: int) -> str:
    """Retried alone, a member would be cancelled again with its parent, or its workflow."""
    return _run_again(wait, job_id) if wait.workflow_id is None else f"sa-jobqueue workflow retry {wait.workflow_id}"


def _end_transaction(wait: WaitReason, _: int) -> str:
    return "end that transaction" if wait.pid is None else f"SELECT pg_terminate_backend({wait.pid})"


#: The reasons, the deciding reason first.
KINDS: Mapping[What, Kind] = {
    "missing": Kind(lambda wait, _: f"does not exist{_because(wait)}", True),
    "archived": Kind(lambda wait, at: f"has ended{_since(wait, at)}, and is in the archive{_because(wait)}"),
    "completed": Kind(lambda wait, at: f"has completed{_since(wait, at)}"),
    "failed": Kind(
        lambda wait, at: f"has failed{_since(wait, at)}, after {wait.used} of {wait.limit} attempts{_because(wait)}",
        True,
        _run_again,
    ),
    "duplicate": Kind(_duplicate, True, lambda wait, _: f"sa-jobqueue why {wait.job_ids[0]}" if wait.job_ids else ""),
    "cancelled": Kind(lambda wait, at: f"was cancelled{_since(wait, at)}{_because(wait)}", True, _retry_cancelled),
    "overdue": Kind(
        lambda wait, at: (
            f"was being run by {wait.name}; its lease has run out{_until(wait, at, ', ')}, so it is to be rescued"
        )
    ),
    "lost": Kind(_lost),
    "claimed": Kind(_claimed),
    "expired": Kind(
        lambda wait, at: f"is too late: its {wait.reason} was {_until(wait, at, '')}; a worker ends it soon", True
    ),
    "later": Kind(lambda wait, at: f"waits {_until(wait, at)}, when it is due"),
    "retry": Kind(
        lambda wait, at: (
            f"waits {_until(wait, at)} for its next attempt; {wait.used} of {wait.limit} made{_because(wait)}"
        ),
        advice=_run_again,
    ),
    "parents": Kind(lambda wait, _: f"waits for {wait.used or 0:,} of its workflow to end{_jobs(wait)}"),
    "held": Kind(
        lambda _, __: "waits for the pause of its workflow to end",
        True,
        lambda wait, _: f"sa-jobqueue workflow resume {wait.workflow_id or 'ID'}",
    ),
    "signal": Kind(
        lambda wait, at: (
            f"waits for signal {wait.name}{_since(wait, at, ' since ')}{_until(wait, at, ', at most until ')}{_because(wait)}"
        ),
        advice=lambda wait, _: f"sa-jobqueue signal {shlex.quote(wait.name or '')} JSON",
    ),
    "join": Kind(lambda wait, _: f"waits for {jobs_of(wait.used or 0)} that it has enqueued to end{_jobs(wait)}"),
    "sleep": Kind(lambda wait, at: f"sleeps {_until(wait, at)}"),
    "differs": Kind(
        lambda wait, _: f"is held: the arguments of step {wait.reason} differ from its record",
        True,
        _run_again,
    ),
    "released": Kind(lambda _, __: "waits for nothing more: the next look of a worker at its workflow releases it"),
    "paused": Kind(lambda wait, _: f"{_whose(wait, 'pause')} to end{_because(wait)}", True, _resume),
    "breaker": Kind(_breaker, advice=_close),
    "unserved": Kind(_unserved, True, _work),
    "unknown": Kind(
        _unknown,
        True,
        lambda _, __: "deploy workers that have it; if the task was renamed, add its old name: @task(aliases=[...])",
    ),
    "refused": Kind(_refused, True, lambda _, __: "mend what refuses it: a trigger, a constraint, or a lock"),
    "suspect": Kind(
        lambda wait, _: f"has lost its worker {wait.used} times: {wait.name} runs only one such job at a time"
    ),
    "locked": Kind(_locked, advice=_end_transaction),
    "blocked": Kind(
        lambda wait, at: f"waits for {wait.owner} {wait.place}: the other side has rate limited it, {_until(wait, at)}"
    ),
    "strict": Kind(
        lambda wait, at: (
            f"{_whose(wait, 'strict order')}: others are tried again first{_jobs(wait)}, {_until(wait, at)}"
        )
    ),
    "running": Kind(lambda wait, _: f"{_whose(wait, 'limit')}: {wait.used} of {wait.limit} running{_jobs(wait)}"),
    "rate": Kind(
        lambda wait, at: (
            f"{_whose(wait, 'rate')}: {wait.limit}{f' {wait.reason}' if wait.reason else ''} in {wait.seconds:g} s{_until(wait, at, ', until ')}"
        )
    ),
    "pressure": Kind(_pressure),
    "busy": Kind(_busy),
    "turn": Kind(_turn),
    "expires": Kind(lambda wait, at: f"is cancelled if it is not started {_until(wait, at, 'by ')}{_because(wait)}"),
    "deadline": Kind(lambda wait, at: f"fails if it has not ended {_until(wait, at, 'by ')}{_because(wait)}"),
}
