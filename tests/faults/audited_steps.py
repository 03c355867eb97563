"""The auditor's rules of durable steps and signals: a valid claim records each of them once, together with its effects."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator

from sa_jobqueue.rules.lifecycle import JobStatus
from tests.faults.evidence import Evidence
from tests.faults.workload import SENT, SHIP, Fate, Word, signal_of

__all__ = ["RULES"]


def steps_are_recorded_once(given: Evidence) -> Iterator[str]:
    """Each step of a job is recorded once, whatever happens to its runs. A completed job has recorded all of its steps."""
    times = Counter((step.key, step.name) for step in given.recorded)
    for (key, name), number in times.items():
        if number > 1:
            yield f"step {name!r} of {key} was recorded {number} times"
    for row in given.rows:
        missing = [name for name in _names(row.key) if not times[row.key, name]]
        if row.task == SHIP and row.status == JobStatus.COMPLETED and missing:
            yield f"{missing} were not recorded: {row}"


def _names(key: str) -> list[str]:
    return ["outside", "inside", f"signal:{signal_of(key)}", "sleep"]


def steps_are_recorded_by_valid_claims(given: Evidence) -> Iterator[str]:
    """When a step is recorded, its job is running under the claim that records it."""
    for step in given.recorded:
        before = [change for change in given.by_key.get(step.key, []) if change.n < step.n]
        if not before or (before[-1].now, before[-1].token) != (JobStatus.RUNNING, step.token):
            yield f"{step} after {before[-1:]}"


def recorded_steps_are_not_run_again(given: Evidence) -> Iterator[str]:
    """The claim that records a step has called it, and no later claim calls it."""
    recorded = {step.key: step for step in given.recorded if step.name == "outside"}
    claims = {(change.key, change.token): change.n for change in given.steps if change.now == JobStatus.RUNNING}
    called: dict[str, set[int]] = defaultdict(set)
    for line in given.said:
        if line.what == Word.STEPPED:
            called[line.key].add(line.token)
    for key, step in recorded.items():
        if step.token not in called[key]:
            yield f"recorded, and not called: {step}"
        for token in called[key]:
            if claims.get((key, token), 0) > claims.get((key, step.token), 0):
                yield f"called again by claim {token}: {step}"


def blocks_commit_with_their_steps(given: Evidence) -> Iterator[str]:
    """The writes of a step's session are committed once, by the transaction that records the step, or not at all."""
    made = {step.key: step.xid for step in given.recorded if step.name == "inside"}
    wrote: dict[str, list[str]] = defaultdict(list)
    for key, xid in given.step_effects:
        wrote[key].append(xid)
    for key in made.keys() | wrote.keys():
        if wrote[key] != [made.get(key)]:
            yield f"step 'inside' of {key} was recorded by transaction {made.get(key)}, and written by {wrote[key]}"


def signals_come_with_their_sender(given: Evidence) -> Iterator[str]:
    """A signal is sent once, in the transaction that completes its sender. A failed sender sends none."""
    times = Counter(signal.name for signal in given.signals if signal.was_sent)
    for signal in given.signals:
        if not signal.was_sent:
            continue
        end = given.ends.get(signal.name.removeprefix("go:") + SENT)
        if times[signal.name] > 1 or end is None or (end.now, end.xid) != (JobStatus.COMPLETED, signal.xid):
            yield f"{signal} was sent {times[signal.name]} times; its sender's end: {end}"


def signals_are_taken_once(given: Evidence) -> Iterator[str]:
    """A signal is taken at most once, after it was sent, in the transaction that records it for the waiting job."""
    sent = {signal.id: signal.n for signal in given.signals if signal.was_sent}
    taken = [signal for signal in given.signals if not signal.was_sent]
    times = Counter(signal.id for signal in taken)
    records = {(step.key, step.xid): step for step in given.recorded if step.kind == "signal"}
    for signal in taken:
        by = records.pop((signal.name.removeprefix("go:"), signal.xid), None)
        if times[signal.id] > 1 or by is None or sent.get(signal.id, signal.n) >= signal.n:
            yield f"{signal}, sent at {sent.get(signal.id)}, taken {times[signal.id]} times, recorded as {by}"
    for step in records.values():
        if given.fates.get(step.key) is not Fate.UNKNOWN:
            yield f"no signal was taken for {step}"


RULES: dict[str, Callable[[Evidence], Iterator[str]]] = {
    rule.__name__: rule
    for rule in (
        steps_are_recorded_once,
        steps_are_recorded_by_valid_claims,
        recorded_steps_are_not_run_again,
        blocks_commit_with_their_steps,
        signals_come_with_their_sender,
        signals_are_taken_once,
    )
}
