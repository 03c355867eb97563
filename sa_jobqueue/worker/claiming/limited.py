"""The queues of this worker that have limits or keys: what it knows of them, and when to claim from each again."""

from __future__ import annotations

import math
import random
import secrets
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from time import monotonic

import sqlalchemy as sa

from ...arguments.context import ClaimedJob
from ...sql.limits.claims import KeyCursor, KnownLimits, LimitedRequest, QueueAnswer
from ..connections.service import Connector
from .demand import Demand, Gates
from .poison.skipped import SkippedJobs


@dataclass(slots=True)
class KeyScan:
    """The answers of these claims so far."""

    begin: str
    """Where the first of them began, and where the last stopped."""
    stopped: str
    again: bool = False
    rate_at: float = math.inf
    """The first time at which a rate allows more, by `monotonic()`."""

    @classmethod
    def at(cls, cursor: KeyCursor) -> KeyScan:
        """The scan that begins there."""
        return cls(cursor.after or "", cursor.after or "")

    def go_on(self, state: QueueAnswer, now: float) -> QueueAnswer | None:
        """Take the answer of the next claim. Returns the answers combined; None if there are more keys to visit."""
        before, self.stopped = self.stopped, state.cursor.after or ""
        self.again = self.again or state.again
        if state.rate_in is not None:
            self.rate_at = min(self.rate_at, now + state.rate_in)
        if state.unseen and not self._is_round(before):
            return None
        return replace(state, again=self.again, rate_in=None if self.rate_at == math.inf else self.rate_at - now)

    def _is_round(self, before: str) -> bool:
        """Whether the last claim has passed the place where the first began. Strings have the order of the keys here."""
        if before < self.stopped:
            return before < self.begin <= self.stopped
        return before < self.begin or self.begin <= self.stopped


_QUEUE = attrgetter("queue")
#: Seconds before a claim is tried again whose keys other workers were claiming from.
_CONTENDED = 0.002
#: Seconds for which a rate may keep jobs waiting, so that a worker that ends when nothing is due still waits for them.
_WORTH_WAITING = 60.0

_NONE = KnownLimits(None, frozenset(), ())


class LimitedQueues:
    """Only for the claimer's thread, except the fields that say so.

    A plain claim takes no account of limits, and fails where there are some that its worker has not read. So nothing is claimed above a
    limit that was set just now.
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
        demand.is_limited = self.has
        # Two workers that had the same would not tell each other. An application may have seeded `random` alike in both.
        self._opener = 1 + secrets.randbelow(9_999_999)
        # Most queues have none, and a claim that should know of some fails: so a worker reads them only then.
        self.stale = False
        """Whether to read the limits before the next claim. Set by any thread, reset by the claimer's."""
        self.freed = False
        """Whether jobs of limited queues may have ended by a commit that is not the claimer's. Set by any thread, reset by the claimer's."""
        self._untold = False
        """Whether others may wait for permits that are free, or will be with the next commit."""
        self.dry: frozenset[str] = frozenset()
        """The queues that had nothing to give in the last claim."""
        self._known = _NONE
        self.any = False
        """Whether any queue is claimed from under limits. Written by the claimer's thread, read by any."""
        self._cursors: dict[str, KeyCursor] = {}
        self._scans: dict[str, KeyScan] = {}
        """Of queues at whose keys the claims have not all looked yet."""
        self._ignored: frozenset[str] = frozenset()
        """Queues whose last claim picked jobs, and did not get them all."""

    @property
    def known(self) -> int | None:
        """The versions of the limits that were read last."""
        return self._known.version

    def begin_again(self) -> None:
        """Another server may answer from now on, or the worker serves other queues."""
        self.stale = self.stale or self._known != _NONE
        self._cursors = {queue: cursor for queue, cursor in self._cursors.items() if queue in self._queues}
        self._scans = {queue: scan for queue, scan in self._scans.items() if queue in self._queues}

    def has(self, queue: str) -> bool:
        """Whether this queue is to be claimed from under limits. For any thread."""
        return queue in self._known.queues or bool(self._known.tasks)

    def refresh(self, connection: sa.Connection) -> None:
        """Read the limits, if there may be others."""
        if self.stale:
            self.stale = False  # before: a change meanwhile is read next time
            try:
                with self._connector.begin_one(connection):
                    self._known = self._connector.store.read_limits(connection, self._queues)
                    self.any = bool(self._known.queues or self._known.tasks)
            except BaseException:
                self.stale = True
                raise

    def ended(self, queue: str) -> bool:
        """A job of this queue has ended. Returns whether it had a permit. For any thread."""
        if not self.has(queue):
            return False
        self.freed = True
        self._use_freed(queue)
        return True

    def note_ends(self, queues: Iterable[str | None]) -> None:
        """The outcomes that are about to be written are of jobs of these queues; None: of a job that was given no slot."""
        if self.freed:
            self.freed, self._untold = False, True
        for queue in queues:
            if queue is None:
                self._untold = True
            elif self.has(queue):
                self._untold = True
                self._use_freed(queue)

    def _use_freed(self, queue: str) -> None:
        """A permit may start a job of this queue, or of any other where tasks have limits."""
        self._demand.notify(None if self._known.tasks else queue)

    def part(self, wanted: dict[str, int]) -> dict[str, int]:
        """Take the limited queues out of `wanted`. All workers have them in one order, in which claims write what they keep."""
        return {name: wanted.pop(name) for name in sorted(wanted) if self.has(name)} if self.any else {}

    def request(self, wanted: Mapping[str, int], *, inline: bool = True) -> LimitedRequest:
        """What to claim."""
        return LimitedRequest(
            self._worker,
            wanted,
            self._connector.lease,
            cursors=self._cursors,
            tasks=self._known.tasks,
            unknown=self._unknown(),
            known=self._known.version,
            but=self._skipped.ids(),
            opener=self._opener,
            freed=self._untold,
            inline=inline,
        )

    def lock_due(
        self, connection: sa.Connection, queue: str, most: int, *, tried: Collection[int] = ()
    ) -> dict[int, str]:
        """The jobs of a limited queue that a claim would take; they may be among `tried` although these are skipped."""
        request = replace(self.request({queue: most}), but=[one for one in self._skipped.ids() if one not in tried])
        return dict.fromkeys(self._connector.store.pick_limited(connection, request), queue)

    def after_claim(
        self,
        connection: sa.Connection,
        wanted: Mapping[str, int],
        jobs: Collection[ClaimedJob],
        states: Mapping[str, QueueAnswer],
    ) -> bool:
        """Decide when each of these queues is claimed from again. Returns whether claims overlook jobs."""
        self._untold = False
        got = Counter(map(_QUEUE, jobs))
        timers, now, dry, waiting = self._demand.timers, monotonic(), set[str](), dict[str, QueueAnswer]()
        for name, one in states.items():
            scan = self._scans.pop(name, None) or KeyScan.at(self._cursors.get(name, KeyCursor()))
            self._cursors[name] = one.cursor
            if got[name] or timers[name].notified:
                timers[name].now()
            elif (state := scan.go_on(one, now)) is None:
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
        """Tell the others of permits that are free, if no claim has done so."""
        if self._untold:
            self._untold = False
            with self._connector.begin_one(connection):
                self._connector.store.permits_freed(connection, opener=self._opener)
