"""The durable steps of a run: what was recorded answers from its row, and what is new is recorded under the fence of the claim.

`Steps` is synchronous code over the checkpoints' own connections; `ctx.step` of an async handler calls it on threads.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import json
import random
import threading
import time
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import datetime
from functools import lru_cache, partial
from time import monotonic
from typing import Any, Protocol, TypeVar, cast

import sqlalchemy as sa
from pydantic import ValidationError
from pydantic_core import to_json
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from ...arguments.context import ClaimedJob, StepCall, current_step
from ...arguments.ends import JobEnd, typed
from ...arguments.inputs import Failed
from ...arguments.results import Results
from ...arguments.storable import encode_value
from ...errors import JobStopped, JobSuspended, ResultError, SignalTimeout, StepError
from ...models.steps import checked_name
from ...rules.lifecycle import Change
from ...rules.retry import Duration, next_delay, seconds_of
from ...sql.apply import Answer
from ...sql.claims import Fault, fault_of
from ...sql.steps import Awaiting, Recorded, WaitFor
from ...util.log import get_logger
from ..connections.service import Connector
from .attempt_end import LOST, RunEnding, Written

logger = get_logger(__name__)

T = TypeVar("T")

#: Connections for checkpoints, in each process.
_CONNECTIONS = 2
#: Steps of a job.
MOST_STEPS = 10_000
#: Seconds between two tries to record a step while the database is away: the first, and at most.
_FIRST_TRY, _LAST_TRY = 0.1, 2.0


class Checkpoints:
    """The connections on which steps are recorded: apart from handlers' sessions, opened with the first step. For any thread."""

    def __init__(self, connector: Connector) -> None:
        self._connector = connector
        self.store, self.lease = connector.store, connector.lease
        self._free: deque[sa.Connection] = deque()
        self._slots = threading.BoundedSemaphore(_CONNECTIONS)
        self._closed = False

    @contextmanager
    def begin(self, *, several: bool = False) -> Generator[sa.Connection]:
        """A transaction of a statement, or of several. A connection that fails is closed."""
        with self._slots:
            try:
                connection = self._free.pop()
            except IndexError:
                connection = self._connector.connect()
            try:
                with (self._connector.begin if several else self._connector.begin_one)(connection):
                    yield connection
            except BaseException:
                with suppress(Exception):
                    connection.close()
                raise
            self._free.append(connection)
            if self._closed:
                self.close()

    def close(self) -> None:
        """Close the connections, because the worker leaves."""
        self._closed = True
        with suppress(IndexError):
            while True:
                self._free.pop().close()


@lru_cache(256)
def _results(function: Callable[..., Any], what: str) -> Results:
    """The results of a step's function, with its annotation resolved: an error in that is raised before the function is called."""
    try:
        results = Results(function, task=what)
        results.resolve()
    except (TypeError, ValueError):  # a builtin has no signature
        results = Results(_anything, task=what)
        results.resolve()
    return results


def _anything() -> Any: ...


def _comparable(value: Any) -> Any:
    """`value` with what has no order in a fixed order, so that its JSON is the same in each process."""
    if isinstance(value, Mapping):
        return {str(key): _comparable(entry) for key, entry in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(map(repr, value))
    if isinstance(value, (list, tuple)):
        return [_comparable(entry) for entry in value]
    return value


def digest_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """A hash of a step's arguments. What has no JSON counts as its class."""
    data = to_json(
        [_comparable(args), _comparable(kwargs)],
        inf_nan_mode="constants",
        bytes_mode="base64",
        fallback=lambda v: f"<{type(v).__qualname__}>",
    )
    return hashlib.sha256(json.dumps(json.loads(data), sort_keys=True).encode()).hexdigest()[:32]


#: Of a step without arguments.
_NOTHING = digest_of((), {})


class SessionSource(Protocol):
    """Where the sessions of steps come from."""

    def open(self) -> tuple[Session, Any]: ...
    def open_async(self) -> tuple[AsyncSession, Any]: ...


class Steps:
    """The steps of one run. `renewed()`: when its lease was last renewed, by `monotonic()`. `policy`: see `@task(steps=...)`."""

    def __init__(
        self,
        job: ClaimedJob,
        checkpoints: Checkpoints,
        sessions: SessionSource,
        renewed: Callable[[], float],
        policy: str,
    ) -> None:
        self._job, self._checkpoints, self._sessions, self._renewed, self._policy = (
            job,
            checkpoints,
            sessions,
            renewed,
            policy,
        )
        self._store = checkpoints.store
        self._recorded: dict[str, Recorded] | None = None
        self._wait: Awaiting | None = None
        self._read_at = 0.0
        self._began_before = False
        """Whether an earlier claim has recorded steps."""
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        self.suspension: WaitFor | None = None
        """What the handler is to wait for, once it has unwound."""
        self._busy = 0
        self._quiet = asyncio.Event()
        """Steps of an async handler that run just now, and that none does. On the event loop alone."""

    # ---- names and records

    def _begin(self, name: str, what: str = "step") -> tuple[str, Recorded | None]:
        """The name of the next step of this name, and its record."""
        checked_name(name, what)
        if (inside := current_step.get()) is not None and inside[0] == self._job.id:
            raise StepError(
                f"step {name!r} was begun inside of step {inside[1]!r}: a step has no steps of its own; call them one after the other"
            )
        self._read()
        assert self._recorded is not None
        with self._lock:
            self._counts[name] += 1
            number = self._counts[name]
        full = name if number == 1 else f"{name}#{number}"
        return full, self._recorded.get(full)

    def _read(self) -> None:
        with self._lock:
            if self._recorded is None:
                self._began_before = any(not step.is_ours for step in self._read_again().values())

    def _read_again(self) -> dict[str, Recorded]:
        with self._checkpoints.begin() as connection:
            self._recorded, self._wait = self._store.read_steps(connection, self._job.id, self._job.claim_token)
        self._read_at = monotonic()
        return self._recorded

    def _try(self, name: str, write: Callable[[sa.Connection], T]) -> T | Recorded:
        """Write a record; again while the database is away and the lease holds. A record whose answer was lost is read."""
        tries = 0
        while True:
            try:
                if tries and (found := self._read_again().get(name)) is not None and found.is_ours:
                    return found
                with self._checkpoints.begin() as connection:
                    return write(connection)
            except DBAPIError as error:
                if fault_of(error) is not Fault.AWAY or monotonic() - self._renewed() >= self._checkpoints.lease:
                    raise
                tries += 1
                logger.warning(
                    "job %d: step %r cannot be recorded just now: %s",
                    self._job.id,
                    name,
                    error.orig,
                    extra=self._job.fields,
                )
                time.sleep(min(_FIRST_TRY * 2**tries, _LAST_TRY) * random.uniform(0.5, 1.0))

    def record(self, step: Recorded, took: float | None = None, connection: sa.Connection | None = None) -> None:
        """Record a step, in a transaction of its own or that of `connection`. Raises JobStopped if the claim is no longer valid."""
        assert self._recorded is not None
        if len(self._recorded) >= MOST_STEPS and step.name not in self._recorded:
            raise StepError(
                f"job {self._job.id} has {MOST_STEPS:,} steps, and may not have more: do several things in a step, or go on in a new job that a "
                "step enqueues"
            )

        def write(connection: sa.Connection) -> bool:
            return self._store.record_step(connection, self._job.id, self._job.claim_token, step, took=took)

        if not (self._try(step.name, write) if connection is None else write(connection)):
            raise JobStopped(f"job {self._job.id}: its claim was lost; step {step.name!r} is not recorded")
        self._recorded[step.name] = step

    # ---- steps

    def _known(self, call: StepCall, digest: str) -> tuple[str, Recorded | None]:
        """The full name of a step, and its record if that holds. Raises for a step with other arguments, as the task wants it."""
        full, found = self._begin(call.name)
        if found is None or found.revision < call.revision:
            return full, None
        if found.kind != "step":
            raise StepError(f"step {full!r} was recorded as a {found.kind}: give one of them another name")
        if found.digest != digest:
            self._differs(full)
        return full, found

    def _differs(self, name: str) -> None:
        text = (
            f"job {self._job.id}: step {name!r} was recorded with other arguments: give ctx.step a higher revision= to run it again, or "
            "another name"
        )
        if self._policy == "fail":
            raise StepError(text)
        logger.warning("%s", text, extra=self._job.fields)
        if self._policy == "hold":
            self.suspend(WaitFor(name))

    def run(self, call: StepCall) -> Any:
        """Run a step of a `def` handler, or return what was recorded."""
        digest = digest_of(call.args, call.kwargs)
        full, found = self._known(call, digest)
        results = _results(call.function, self._what(full))
        if found is not None:
            return _typed(found, results.hint)
        began, tries = monotonic(), 0
        while True:
            token = current_step.set((self._job.id, full))
            try:
                value = call.function(*call.args, **call.kwargs)
            except Exception as error:
                tries += 1
                time.sleep(self._delay(error, call, tries, began))
                continue
            finally:
                current_step.reset(token)
            step = Recorded(full, "step", call.revision, digest, results.encode(value), is_ours=True)
            self.record(step, monotonic() - began)
            return _typed(step, results.hint)

    async def arun(self, call: StepCall) -> Any:
        """Run a step of an async handler: `async def` functions on the loop, others on a thread."""
        digest = digest_of(call.args, call.kwargs)
        self._busy += 1
        self._quiet.clear()
        try:
            full, found = await asyncio.to_thread(self._known, call, digest)
            results = _results(call.function, self._what(full))
            if found is not None:
                return _typed(found, results.hint)
            began, tries = monotonic(), 0
            while True:
                token = current_step.set((self._job.id, full))
                try:
                    value = await _called(call)
                except Exception as error:
                    tries += 1
                    await asyncio.sleep(self._delay(error, call, tries, began))
                    continue
                finally:
                    current_step.reset(token)
                step = Recorded(full, "step", call.revision, digest, results.encode(value), is_ours=True)
                await asyncio.to_thread(self.record, step, monotonic() - began)
                return _typed(step, results.hint)
        finally:
            self._busy -= 1
            if not self._busy:
                self._quiet.set()

    async def idle(self) -> None:
        """Wait for the steps that others of a `gather` still run, when the handler unwinds to wait: they are recorded."""
        if self.suspension is not None and self._busy:
            await self._quiet.wait()

    def refuse_swallowed(self) -> None:
        """Raise where the handler has caught the exception that unwinds it, and has gone on."""
        if self.suspension is not None:
            raise StepError(
                f"the handler caught JobSuspended, which ends its run while it waits in step {self.suspension.step!r}: let it pass, as "
                "`except Exception` does"
            )

    def _delay(self, error: Exception, call: StepCall, tries: int, began: float) -> float:
        """Seconds until a step is tried again; raises `error` if it is not, because the lease would not last so long."""
        wait = None if call.retry is None else next_delay(call.retry, error, tries, random.random())
        if wait is None or monotonic() - began + wait > self._checkpoints.lease:
            raise error
        text = "job %d: step %r failed (%r) and is tried again in %.3g s"
        logger.info(text, self._job.id, call.name, error, wait, extra=self._job.fields)
        return wait

    def _what(self, name: str) -> str:
        return f"{self._job.task}, step {name!r}"

    @contextmanager
    def session(self, name: str) -> Generator[Session]:
        """A session whose writes and whose checkpoint are one commit. See `JobContext.step_session`."""
        full, found = self._begin(name)
        session, transaction = self._sessions.open()
        try:
            yield session
            if found is None:
                step = Recorded(full, "step", 1, _NOTHING, None, is_ours=True)
                if not transaction.commit_step(partial(self.record, step, None)):
                    self.record(step)
        except DBAPIError:
            if found is None:
                raise
        finally:
            transaction.close()

    @asynccontextmanager
    async def asession(self, name: str) -> AsyncGenerator[AsyncSession]:
        """The same for an async handler."""
        full, found = await asyncio.to_thread(self._begin, name)
        session, transaction = self._sessions.open_async()
        try:
            yield session
            if found is None:
                step = Recorded(full, "step", 1, _NOTHING, None, is_ours=True)
                record = partial(self.record, step, None)
                if not await session.run_sync(lambda _: transaction.commit_step(record)):
                    await asyncio.to_thread(self.record, step)
        except DBAPIError:
            if found is None:
                raise
        finally:
            await session.run_sync(lambda _: transaction.close())

    def patched(self, name: str) -> bool:
        """Whether this job began after the patch. See `HandlerContext.patched`."""
        full, found = self._begin(f"patch:{name}")
        if found is None and not self._began_before:
            self.record(Recorded(full, "patch", 1, None, None, is_ours=True))
            return True
        return found is not None

    # ---- waits

    def suspend(self, wait: WaitFor) -> None:
        """Unwind the handler, to wait."""
        self.suspension = wait
        raise JobSuspended(f"job {self._job.id} waits in step {wait.step!r}")

    def _is_over(self, name: str) -> bool:
        """Whether the wait that the job began before is this one, and its time is over."""
        wait = self._wait
        return (
            wait is not None
            and wait.step == name
            and wait.seconds is not None
            and monotonic() >= self._read_at + wait.seconds
        )

    def wait_signal(self, name: str, hint: Any, timeout: Duration | None, question: object) -> Any:
        """The payload of the next signal of this name."""
        checked_name(name, "signal")
        full, found = self._begin(f"signal:{name}"[:200], "signal")
        if found is None:
            taken = self._try(full, lambda connection: self._store.take_signal(
                connection, self._job.id, self._job.claim_token, step=full, signal=name))  # fmt: skip
            if isinstance(taken, Recorded):
                found = taken
            elif taken is not None:
                found = Recorded(full, "signal", 1, None, taken, is_ours=True)
            elif self._is_over(full):
                found = Recorded(full, "timeout", 1, None, None, is_ours=True)
                self.record(found)
            else:
                seconds = None if timeout is None else seconds_of(timeout, what="wait_signal(timeout=...)")
                asked = None if question is None else encode_value(question, what="wait_signal(question=...)")
                self.suspend(WaitFor(full, signal=name, seconds=seconds, question=asked))
                raise AssertionError
            cast("dict[str, Recorded]", self._recorded)[full] = found
        if found.kind == "timeout":
            raise SignalTimeout(f"job {self._job.id}: no signal {name!r} has come in time")
        return _typed(found, hint)

    def sleep(self, *, seconds: float | None = None, at: datetime | None = None) -> None:
        """Wait for a time."""
        full, found = self._begin("sleep")
        if found is not None:
            return
        if not self._is_over(full):
            self.suspend(WaitFor(full, seconds=seconds, at=at))
        self.record(Recorded(full, "sleep", 1, None, None, is_ours=True))

    def join(self, ids: Sequence[int]) -> list[Any]:
        """The results of other jobs, with `Failed` in place of those that did not complete."""
        full, found = self._begin("join")
        if found is None:
            with self._checkpoints.begin(several=True) as connection:
                ends = self._store.ends(connection, ids)
            if any(end is None for end in ends.values()):
                self.suspend(WaitFor(full, jobs=list(ids)))
            data = [_as_json(cast(JobEnd, ends[job_id])) for job_id in ids]
            found = Recorded(full, "join", 1, None, encode_value(data, what="join"), is_ours=True)
            self.record(found)
        return [_from_json(job_id, entry) for job_id, entry in zip(ids, json.loads(found.result or "[]"), strict=True)]

    def write(self, change: Change) -> RunEnding:
        """Suspend the job, after its handler has unwound and its session is closed."""
        assert self.suspension is not None
        with self._checkpoints.begin(several=True) as connection:
            answer = self._store.suspend(connection, change, self.suspension)
        if answer is Answer.LOST:
            return LOST
        return Written(change if answer is Answer.APPLIED else change.cancelled)


async def _called(call: StepCall) -> Any:
    if inspect.iscoroutinefunction(call.function):
        return await call.function(*call.args, **call.kwargs)
    value = await asyncio.to_thread(call.function, *call.args, **call.kwargs)
    return await value if asyncio.iscoroutine(value) else value  # a lambda, or a partial of an `async def`


def _typed(found: Recorded, hint: Any) -> Any:
    plain = None if found.result is None else json.loads(found.result)
    if hint is Any:
        return plain
    try:
        return typed(hint).from_plain(plain)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        raise ResultError(
            f"step {found.name!r}: what was recorded is no {getattr(hint, '__name__', hint)}: {first['msg']}"
        ) from error


def _as_json(end: JobEnd) -> list[Any]:
    error = end.error or {}
    return [end.status, end.result, str(error.get("type", "")), str(error.get("message", ""))]


def _from_json(job_id: int, entry: list[Any]) -> Any:
    status, result, kind, message = entry
    return result if status == "completed" else Failed(job_id, status, kind, message)
