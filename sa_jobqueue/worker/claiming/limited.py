"""The queues of this worker that have limits or keys: their known limits, and when to claim from each again."""

from __future__ import annotations

import math
import random
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import monotonic

import sqlalchemy as sa

from ...sql.claims import Point, Slot
from ...sql.limits.claims import KeyCursor, KnownLimits, LimitedRequest, QueueAnswer
from ..connections.service import Connector
from .demand import Demand, Gates
from .poison.skipped import SkippedJobs
from .shares import TimeShares, charges_said


@dataclass(slots=True)
class KeyScan:
    """The combined answers of claims that visit the keys of a queue in turn."""

    begin: str
    """The key at which the first claim began."""
    stopped: str
    """The key at which the last claim stopped."""
    again: bool = False
    rate_at: float = math.inf
    """The first time at which a rate allows more, by `monotonic()`."""

    @classmethod
    def at(cls, cursor: KeyCursor) -> KeyScan:
        """The scan that begins at this cursor."""
        return cls(cursor.after or "", cursor.after or "")

    def go_on(self, state: QueueAnswer, now: float) -> QueueAnswer | None:
        """Add the answer of the next claim. Returns the combined answers; None if there are more keys to visit."""
        before, self.stopped = self.stopped, state.cursor.after or ""
        self.again = self.again or state.again
        if state.rate_in is not None:
            self.rate_at = min(self.rate_at, now + state.rate_in)
        if state.unseen and not self._is_round(before):
            return None
        return replace(state, again=self.again, rate_in=None if self.rate_at == math.inf else self.rate_at - now)

    def _is_round(self, before: str) -> bool:
        """Whether the last claim has passed the key where the first claim began. Strings have the order of the keys here."""
        if before < self.stopped:
            return before < self.begin <= self.stopped
        return before < self.begin or self.begin <= self.stopped


#: Seconds before a claim is tried again whose keys other workers were claiming from.
_CONTENDED = 0.002
#: Seconds for which a rate may keep jobs waiting, so that a worker that ends when nothing is due still waits for them.
_WORTH_WAITING = 60.0

_NONE = KnownLimits(None, frozenset(), ())


class LimitedQueues:
    """Decides about claims under limits. Only for the claimer's thread, except where a field or method names other threads.

    A plain claim ignores limits, and fails where there are limits that its worker has not read. So nothing is claimed above a limit
    that was just set.
    """

    def __init__(
        self,
        connector: Connector,
        queues: Collection[str],
        demand: Demand,
        gates: Gates,
        skipped: SkippedJobs,
        *,
        worker: str,
        poll: float,
        listening: Callable[[], bool],
        unknown: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        self._connector, self._queues, self._demand, self._gates = connector, queues, demand, gates
        self._skipped, self._worker, self._poll, self._listening = skipped, worker, poll, listening
        self._unknown = unknown
        demand.is_limited, demand.is_capped = self.has, self._is_capped
        # Two workers with the same number would not notify each other. An application may have seeded `random` alike in both.
        self._opener = 1 + secrets.randbelow(9_999_999)
        # Most queues have no limits, and a claim without known limits fails where there are some: a worker reads them only then.
        self.stale = False
        """Whether to read the limits before the next claim. Set by any thread, reset by the claimer's."""
        self.freed = False
        """Whether jobs of limited queues may have ended by a commit that is not the claimer's. Set by any thread, reset by the claimer's."""
        self._unannounced = False
        """Whether other workers may wait for permits that are free, or will be free with the next commit."""
        self.dry: frozenset[str] = frozenset()
        """The queues that gave no job in the last claim."""
        self._known = _NONE
        self.any = False
        """Whether any queue is claimed from under limits. Written by the claimer's thread, read by any."""
        self._cursors: dict[str, KeyCursor] = {}
        self._scans: dict[str, KeyScan] = {}
        """The scans of queues of which the claims have not visited all keys yet."""
        self._shares: dict[str, TimeShares] = {}
        """The charges of the queues whose keys share their time."""
        self._ignored: frozenset[str] = frozenset()
        """Queues whose last claim picked jobs, and did not get them all."""

    @property
    def known(self) -> int | None:
        """The version of the limits that were read last."""
        return self._known.version

    @property
    def broken(self) -> frozenset[str]:
        """The tasks with a breaker that was not closed when the limits were read last."""
        return self._known.broken

    def begin_again(self) -> None:
        """Prepare for another server, or for other queues that the worker serves."""
        self.stale = self.stale or self._known != _NONE
        self._cursors = {queue: cursor for queue, cursor in self._cursors.items() if queue in self._queues}
        self._scans = {queue: scan for queue, scan in self._scans.items() if queue in self._queues}
        self._shares = {}

    def has(self, queue: str) -> bool:
        """Whether this queue must be claimed from under limits. For any thread."""
        return queue in self._known.queues or bool(self._known.tasks)

    def _is_capped(self, queue: str) -> bool:
        return queue in self._known.capped or bool(self._known.tasks)

    def refresh(self, connection: sa.Connection) -> None:
        """Read the limits, if they may have changed."""
        if self.stale:
            self.stale = False  # reset first: a change meanwhile is read next time
            try:
                with self._connector.begin_one(connection):
                    self._known = self._connector.store.read_limits(connection, self._queues)
                    self.any = bool(self._known.queues or self._known.tasks)
            except BaseException:
                self.stale = True
                raise

    def ended(self, queue: str) -> bool:
        """Note that a job of this queue has ended. Returns whether it had a permit. For any thread."""
        if not self.has(queue):
            return False
        self.freed = True
        self._use_freed(queue)
        return True

    def note_ends(self, queues: Iterable[str | None]) -> None:
        """Note the queues of outcomes that are about to be written; None: of a job that was given no slot."""
        if self.freed:
            self.freed, self._unannounced = False, True
        for queue in queues:
            if queue is None:
                self._unannounced = True
            elif self.has(queue):
                self._unannounced = True
                self._use_freed(queue)

    def end_charges(self, runs: Callable[[int], bool]) -> None:
        """Stop charging keys for jobs that no longer run. `runs`: whether the job with this id still runs."""
        for shares in self._shares.values():
            shares.end(runs, monotonic())

    def handed_over(self) -> None:
        """Note that the jobs of the last answer that was taken in have their slots."""
        for shares in self._shares.values():
            shares.handed_over()

    def _use_freed(self, queue: str) -> None:
        """Poll for a job that may use a freed permit: of this queue, or of any queue where tasks have limits."""
        self._demand.notify(None if self._known.tasks else queue)

    def are_alike(self, queues: Iterable[str]) -> bool:
        """Whether all of these queues are limited, or none."""
        return len({self.has(queue) for queue in queues}) < 2

    def part(self, wanted: dict[str, int]) -> dict[str, int]:
        """Move the limited queues out of `wanted`. All workers have them in one order, in which claims write their states."""
        return {name: wanted.pop(name) for name in sorted(wanted) if self.has(name)} if self.any else {}

    def request(
        self, wanted: Mapping[str, int], *, after: Mapping[Slot, Point] | None = None, inline: bool = True
    ) -> LimitedRequest:
        """The request for a claim under limits. Where tasks have limits, it begins at the front: jobs of a full task are there."""
        return LimitedRequest(
            self._worker,
            wanted,
            self._connector.lease,
            cursors=self._cursors,
            after=None if self._known.tasks else after,
            tasks=self._known.tasks,
            unknown=self._unknown(),
            known=self._known.version,
            but=self._skipped.ids(),
            opener=self._opener,
            freed=self._unannounced,
            charges=charges_said(self._shares, monotonic()),
            inline=inline,
        )

    def lock_due(
        self, connection: sa.Connection, queue: str, most: int, *, tried: Collection[int] = ()
    ) -> dict[int, str]:
        """The jobs of a limited queue that a claim would take, also jobs in `tried` although these are skipped."""
        request = replace(self.request({queue: most}), but=[job for job in self._skipped.ids() if job not in tried])
        return dict.fromkeys(self._connector.store.pick_limited(connection, request), queue)

    def after_claim(
        self,
        connection: sa.Connection,
        got: Mapping[str, int],
        states: Mapping[str, QueueAnswer],
        *,
        began: float,
    ) -> bool:
        """Decide when each of these queues is claimed from again. Returns whether claims overlook jobs.

        `got`: by queue, how many jobs were claimed. `began`: when the claim began, by `monotonic()`.
        """
        self._unannounced = False
        timers, now, dry, waiting = self._demand.timers, monotonic(), set[str](), dict[str, QueueAnswer]()
        for name, answer in states.items():
            scan = self._scans.pop(name, None) or KeyScan.at(self._cursors.get(name, KeyCursor()))
            self._cursors[name] = answer.cursor
            if answer.started is not None:
                self._shares.setdefault(name, TimeShares()).start(answer.started, began)
            elif self._shares:
                self._shares.pop(name, None)
            if got[name] or timers[name].notified:
                timers[name].now()
            elif (state := scan.go_on(answer, now)) is None:
                self._scans[name] = scan
                timers[name].not_before(now)
            elif state.again:
                timers[name].not_before(now + random.uniform(0.5, 1.5) * _CONTENDED)
            else:
                waiting[name] = state
                if state.rate_in is None or state.rate_in > _WORTH_WAITING:
                    dry.add(name)
        self.dry = frozenset(dry)
        ignored = frozenset(name for name, state in states.items() if got[name] < state.picked)
        overlooked, self._ignored = bool(ignored & self._ignored), ignored
        if waiting and not (self._listening() and self._gates.ask(connection, waiting, timers)):
            longest = min(self._poll, self._gates.longest_poll) if self._listening() else self._poll
            for name, state in waiting.items():
                timer = timers[name]
                timer.back_off(longest)
                for seconds in (state.rate_in, state.due_in):
                    if seconds is not None and now + seconds < timer.at:
                        timer.not_before(now + max(seconds, 0.0))
        return overlooked

    def tell(self, connection: sa.Connection) -> None:
        """Notify other workers of free permits, if no claim has done so."""
        if self._unannounced:
            self._unannounced = False
            with self._connector.begin_one(connection):
                self._connector.store.permits_freed(connection, opener=self._opener)
