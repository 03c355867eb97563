"""Why a job is not being run, as a value that says it in a sentence.

>>> str(WaitReason("queue", "sync", "42", "running", limit=3, used=3, job_ids=[11, 12, 13]))
'waits for limit sync/42: 3 of 3 running (jobs 11, 12, 13)'

`KINDS` lists the reasons, the deciding reason first. A new reason is a name in `What`, an entry there, and the place that finds
it: a row of `why_waiting`, or `sa_jobqueue.health.explain`.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Literal, NamedTuple, TypeAlias

from .limits import Owner
from .words import jobs_of

#: Jobs ahead of another that are counted at most.
MOST_AHEAD = 1_000
#: In `WorkerRow.pressure`, before the database's message to a worker whose claims fail.
CLAIMS_FAIL = "claims fail: "

#: What keeps a job from being run, or has become of it. `KINDS` has a sentence for each.
What: TypeAlias = Literal[
    "missing", "archived", "completed", "failed", "duplicate", "cancelled", "overdue", "lost", "claimed", "expired", "later", "retry", "parents",
    "held", "released", "paused", "unserved", "unknown", "refused", "suspect", "locked", "blocked", "strict", "running", "rate", "pressure",
    "busy", "turn", "expires", "deadline",
]  # fmt: skip

Moment: TypeAlias = Callable[[datetime], str]
"""Writes a time as text."""


class WaitReason(NamedTuple):
    """Why a job is not being run, or what has become of it. As text it is a sentence about the job, without its full stop.

    A row of `why_waiting` is one: `WaitReason(*row)`.
    """

    owner: Owner | None
    """Whose limit or pause it is: "queue" or "task"; else None."""
    name: str | None
    """The queue's, the task's, or the worker's (`host:pid`)."""
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
    """The pause's reason, or the last error's message."""
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


class Kind(NamedTuple):
    """How a kind of reason is worded."""

    sentence: Callable[[WaitReason, Moment], str]
    needs_help: bool = False
    advice: Callable[[WaitReason, int], str] = _nothing


# ---- parts of sentences


def _until(one: WaitReason, moment: Moment, before: str = "until ") -> str:
    return "" if one.until is None else f"{before}{moment(one.until)}"


def _since(one: WaitReason, moment: Moment, before: str = " since ") -> str:
    return "" if one.since is None else f"{before}{moment(one.since)}"


def _whose(one: WaitReason, what: str) -> str:
    return f"{what} {'task ' if one.owner == 'task' else ''}{one.place}"


def _because(one: WaitReason) -> str:
    return "" if one.reason is None else f": {one.reason}"


def _jobs(one: WaitReason) -> str:
    ids = list(one.job_ids or ())
    if not ids:
        return ""
    more = (one.used or 0) - len(ids)
    others = f" and {more:,} more" if more > 0 else ""
    return f" ({'job' if len(ids) == 1 else 'jobs'} {', '.join(map(str, ids))}{others})"


# ---- a sentence for each kind


def _missing(one: WaitReason, _: Moment) -> str:
    return "does not exist" + _because(one)


def _archived(one: WaitReason, moment: Moment) -> str:
    return f"has ended{_since(one, moment, ' at ')}, and is in the archive{_because(one)}"


def _duplicate(one: WaitReason, moment: Moment) -> str:
    other = f"job {one.job_ids[0]}" if one.job_ids else "another job"
    return f"is a duplicate: {other} had its unique key when it was enqueued{_since(one, moment, ', ')}"


def _overdue(one: WaitReason, moment: Moment) -> str:
    return f"was being run by {one.name}; its lease has run out{_until(one, moment, ', ')}, so it is to be rescued"


def _lost(one: WaitReason, moment: Moment) -> str:
    seen = f"was last seen {moment(one.since)}" if one.since is not None else "has left"
    return f"is held by {one.name}, which {seen}; it is rescued when its lease runs out{_until(one, moment, ', ')}"


def _claimed(one: WaitReason, moment: Moment) -> str:
    return (
        f"is being run by {one.name}{_since(one, moment)}; its lease runs out{_until(one, moment, ' ')}{_because(one)}"
    )


def _retry(one: WaitReason, moment: Moment) -> str:
    return f"waits {_until(one, moment)} for its next attempt; {one.used} of {one.limit} made{_because(one)}"


def _unserved(one: WaitReason, _: Moment) -> str:
    return "has no worker: none is alive" if one.name is None else f"has no worker: no live one serves queue {one.name}"


def _unknown(one: WaitReason, moment: Moment) -> str:
    back = f"; it went back to its queue {_until(one, moment)}" if one.until is not None else ""
    return f"has a task that no live worker of its queue knows: {one.name}{back}"


def _refused(one: WaitReason, _: Moment) -> str:
    others = f" (skipped by {one.used} of {one.limit} workers)" if (one.limit or 0) > 1 else ""
    return f"cannot be claimed by {one.name}{others}{_because(one)}"


def _suspect(one: WaitReason, _: Moment) -> str:
    return f"has lost its worker {one.used} times: {one.name} runs only one such job at a time"


def _rate(one: WaitReason, moment: Moment) -> str:
    return f"waits for {_whose(one, 'rate')}: {one.limit} in {one.seconds:g} s{_until(one, moment, ', until ')}"


def _turn(one: WaitReason, _: Moment) -> str:
    ahead = one.used
    number = "others" if ahead is None else f"more than {MOST_AHEAD:,} jobs" if ahead > MOST_AHEAD else jobs_of(ahead)
    if one.key is None and one.owner == "queue":
        return f"is behind {number} of queue {one.name} by priority" if ahead != 0 else f"is first in queue {one.name}"
    whose = f"task {one.name}" if one.key is None else f"key {one.key}"
    return f"is {f'behind {number}' if ahead != 0 else 'first'} of {whose}, which takes turns with others of its queue"


def _expired(one: WaitReason, moment: Moment) -> str:
    return f"is too late: its {one.reason} was {_until(one, moment, '')}; a worker ends it soon"


def _completed(one: WaitReason, moment: Moment) -> str:
    return f"has completed{_since(one, moment, ' at ')}"


def _failed(one: WaitReason, moment: Moment) -> str:
    return f"has failed{_since(one, moment, ' at ')}, after {one.used} of {one.limit} attempts{_because(one)}"


def _cancelled(one: WaitReason, moment: Moment) -> str:
    return f"was cancelled{_since(one, moment, ' at ')}{_because(one)}"


def _later(one: WaitReason, moment: Moment) -> str:
    return f"waits {_until(one, moment)}, when it is due"


def _parents(one: WaitReason, _: Moment) -> str:
    return f"waits for {one.used or 0:,} of its workflow to end{_jobs(one)}"


def _workflow_paused(_: WaitReason, __: Moment) -> str:
    return "waits for the pause of its workflow to end"


def _released(_: WaitReason, __: Moment) -> str:
    return "waits for nothing more: the next look of a worker at its workflow releases it"


def _paused(one: WaitReason, _: Moment) -> str:
    return f"waits for {_whose(one, 'pause')} to end{_because(one)}"


def _blocked(one: WaitReason, moment: Moment) -> str:
    return f"waits for {one.owner} {one.place}: the other side has rate limited it, {_until(one, moment)}"


def _strict(one: WaitReason, moment: Moment) -> str:
    return f"waits for {_whose(one, 'strict order')}: others are tried again first{_jobs(one)}, {_until(one, moment)}"


def _running(one: WaitReason, _: Moment) -> str:
    return f"waits for {_whose(one, 'limit')}: {one.used} of {one.limit} running{_jobs(one)}"


def _locked(one: WaitReason, _: Moment) -> str:
    whose = "" if one.pid is None else f" (PID {one.pid})"
    return f"has a row that another transaction has locked{whose}: claims may pass it by"


def _pressure(one: WaitReason, _: Moment) -> str:
    if (one.reason or "").startswith(CLAIMS_FAIL):
        return f"has workers whose {one.reason}"
    return f"has workers that claim less, because the database is under pressure{_because(one)}"


def _busy(one: WaitReason, _: Moment) -> str:
    slots = "1 slot of queue {} is" if one.limit == 1 else f"{one.limit} slots of queue {{}} are"
    return f"waits for a slot: the {slots.format(one.name)} busy on {one.reason}"


def _expires(one: WaitReason, moment: Moment) -> str:
    return f"is cancelled if it is not started {_until(one, moment, 'by ')}{_because(one)}"


def _deadline(one: WaitReason, moment: Moment) -> str:
    return f"fails if it has not ended {_until(one, moment, 'by ')}{_because(one)}"


# ---- advice


def _resume(one: WaitReason, _: int) -> str:
    name = shlex.quote(one.name or "")
    of_task = " --task" if one.owner == "task" else ""
    return f"sa-jobqueue resume {name}{of_task}" + ("" if one.key is None else f" --key {shlex.quote(one.key)}")


def _work(one: WaitReason, _: int) -> str:
    queue = "" if one.name is None else f" --queue {shlex.quote(one.name)}"
    return f"start a worker: sa-jobqueue work{queue} --app ..."


def _run_again(_: WaitReason, job_id: int) -> str:
    return f"sa-jobqueue retry {job_id}"


def _retry_cancelled(one: WaitReason, job_id: int) -> str:
    """Alone, a member would be cancelled again with its parent, or its workflow."""
    return _run_again(one, job_id) if one.workflow_id is None else f"sa-jobqueue workflow retry {one.workflow_id}"


def _resume_workflow(one: WaitReason, _: int) -> str:
    return f"sa-jobqueue workflow resume {one.workflow_id or 'ID'}"


def _other(one: WaitReason, _: int) -> str:
    return f"sa-jobqueue why {one.job_ids[0]}" if one.job_ids else ""


def _end_transaction(one: WaitReason, _: int) -> str:
    return "end that transaction" if one.pid is None else f"SELECT pg_terminate_backend({one.pid})"


def _deploy(_: WaitReason, __: int) -> str:
    return "deploy workers that have it, or give it its old name: @task(aliases=[...])"


def _mend(_: WaitReason, __: int) -> str:
    return "mend what refuses it: a trigger, a constraint, or a lock"


#: The reasons, the deciding reason first.
KINDS: Mapping[What, Kind] = {
    "missing": Kind(_missing, True),
    "archived": Kind(_archived),
    "completed": Kind(_completed),
    "failed": Kind(_failed, True, _run_again),
    "duplicate": Kind(_duplicate, True, _other),
    "cancelled": Kind(_cancelled, True, _retry_cancelled),
    "overdue": Kind(_overdue),
    "lost": Kind(_lost),
    "claimed": Kind(_claimed),
    "expired": Kind(_expired, True),
    "later": Kind(_later),
    "retry": Kind(_retry, advice=_run_again),
    "parents": Kind(_parents),
    "held": Kind(_workflow_paused, True, _resume_workflow),
    "released": Kind(_released),
    "paused": Kind(_paused, True, _resume),
    "unserved": Kind(_unserved, True, _work),
    "unknown": Kind(_unknown, True, _deploy),
    "refused": Kind(_refused, True, _mend),
    "suspect": Kind(_suspect),
    "locked": Kind(_locked, advice=_end_transaction),
    "blocked": Kind(_blocked),
    "strict": Kind(_strict),
    "running": Kind(_running),
    "rate": Kind(_rate),
    "pressure": Kind(_pressure),
    "busy": Kind(_busy),
    "turn": Kind(_turn),
    "expires": Kind(_expires),
    "deadline": Kind(_deadline),
}
