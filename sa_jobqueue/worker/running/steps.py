"""The durable steps of a run. A recorded step returns its result; a new step is recorded under the fence of the claim.

`Steps` is synchronous code on connections of its own, those of `Checkpoints`. An async handler calls it on threads.
"""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import hashlib
import inspect
import json
import math
import os
import random
import re
import secrets
import threading
import time
from collections import Counter, deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import datetime
from functools import lru_cache, partial
from operator import attrgetter, itemgetter
from queue import SimpleQueue
from time import monotonic
from types import FunctionType
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar, cast

import sqlalchemy as sa
from pydantic import BaseModel, ValidationError
from pydantic_core import to_json
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from ...arguments.context import ClaimedJob, StepCall, current_step
from ...arguments.ends import JobEnd, type_name, typed
from ...arguments.inputs import Failed
from ...arguments.results import Results
from ...arguments.storable import encode_value
from ...errors import ConfigurationError, JobStopped, JobSuspended, OptionError, ResultError, SignalTimeout, StepError
from ...models.steps import checked_name
from ...rules.lifecycle import Change, Event
from ...rules.outcomes import HandlerOutcome
from ...rules.retry import Duration, next_delay, seconds_of
from ...sql.apply import Answer
from ...sql.claims import Fault, fault_of
from ...sql.steps import Awaiting, Recorded, WaitFor
from ...util.log import get_logger
from ..connections.service import Connector
from .attempt_end import LOST, RunEnding, ToWrite, Written

if TYPE_CHECKING:
    from ...rules.callbacks import Callbacks, CallbackUrl

logger = get_logger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

#: Connections for records of steps, in each process.
_CONNECTIONS = 2
#: The most records in one commit.
_MOST_TOGETHER = 100
#: The most steps of a job, and the most bytes of a question: a page of the dashboard reads a hundred questions.
MOST_STEPS, _MOST_ASKED = 10_000, 65_536
#: Seconds between two tries to record a step while the database is away: the first, and at most.
_FIRST_TRY, _LAST_TRY = 0.1, 2.0


class _Entry:
    """A write for a job, and its result."""

    __slots__ = ("answer", "error", "id", "is_done", "turn", "write")

    def __init__(self, id: int, write: Callable[[sa.Connection], Any]) -> None:
        self.id, self.write = id, write
        self.answer: Any = None
        self.error: BaseException | None = None
        self.is_done = False
        self.turn = threading.Event()
        """Set when the write is done, or when its thread should write the waiting entries."""


class Checkpoints:
    """The connections on which steps are recorded, apart from handlers' sessions. They are opened at the first step. For any thread."""

    def __init__(self, connector: Connector) -> None:
        self._connector = connector
        self.store, self.lease = connector.store, connector.lease
        self._free: deque[sa.Connection] = deque()
        self._slots = threading.BoundedSemaphore(_CONNECTIONS)
        self._entries: deque[_Entry] = deque()
        """Writes that wait for a connection. The thread that gets a connection writes them all, in one transaction."""
        self._closed = False

    @contextmanager
    def begin(self, *, several: bool = False) -> Generator[sa.Connection]:
        """A transaction of one statement, or of `several`. A connection that fails is closed."""
        try:
            with self._slots, self._begin(several=several) as connection:
                yield connection
        finally:
            self._hand_over()

    def write(self, id: int, write: Callable[[sa.Connection], T]) -> T:
        """Execute `write`, a statement about the job `id`, and commit, together with other writes that wait for a connection."""
        entry = _Entry(id, write)
        self._entries.append(entry)
        while not entry.is_done:
            if not self._entries or not self._slots.acquire(blocking=False):
                entry.turn.wait()
                entry.turn.clear()
                continue
            try:
                self._write_all(self._together())
            finally:
                self._slots.release()
            self._hand_over()
        if entry.error is not None:
            raise entry.error
        return cast(T, entry.answer)

    def _hand_over(self) -> None:
        """Let another thread write the entries that have come meanwhile."""
        with suppress(IndexError):
            self._entries[0].turn.set()

    def _together(self) -> list[_Entry]:
        """The waiting entries, in the order of their jobs. All transactions lock jobs in this order, so they cannot deadlock."""
        entries: list[_Entry] = []
        with suppress(IndexError):
            while len(entries) < _MOST_TOGETHER:
                entries.append(self._entries.popleft())
        return sorted(entries, key=attrgetter("id"))

    def _write_all(self, entries: Sequence[_Entry]) -> None:
        if not entries:
            return
        try:
            with self._begin(several=len(entries) > 1) as connection:
                answers = [entry.write(connection) for entry in entries]
        except BaseException as error:
            if len(entries) > 1 and not (isinstance(error, DBAPIError) and fault_of(error) is Fault.AWAY):
                for entry in entries:  # to find the entry that fails
                    self._write_all([entry])
                return
            for entry in entries:
                entry.error = error
        else:
            for entry, answer in zip(entries, answers, strict=True):
                entry.answer = answer
        for entry in entries:
            entry.is_done = True
            entry.turn.set()

    @contextmanager
    def _begin(self, *, several: bool) -> Generator[sa.Connection]:
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


def _results(function: Callable[..., Any], task: str) -> Results:
    """The results of a step's function. An error in the annotation is raised before the function is called.

    Cached for plain functions only: the cache must not keep a closure and its values alive.
    """
    plain = isinstance(function, FunctionType) and function.__closure__ is None
    return _kept_results(function, task) if plain else _new_results(function, task)


def _new_results(function: Callable[..., Any], task: str) -> Results:
    what = f"{task}, step by {getattr(function, '__qualname__', type(function).__qualname__)}"
    try:
        results = Results(function, task=what)
        results.resolve()
    except (TypeError, ValueError):  # a builtin has no signature
        results = Results(_anything, task=what)
        results.resolve()
    return results


_kept_results = lru_cache(256)(_new_results)


def _anything() -> Any: ...


def _comparable(value: Any) -> Any:
    """`value` with sets and mappings in a fixed order, so that its JSON is the same in each process. It reads no iterator."""
    if isinstance(value, BaseModel):
        value = dict(value)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Iterator):
        return f"<{type(value).__qualname__}>"
    if isinstance(value, Mapping):
        return dict(sorted(((str(key), _comparable(entry)) for key, entry in value.items()), key=itemgetter(0)))
    if isinstance(value, (set, frozenset)):
        return sorted(map(repr, value))
    if isinstance(value, (list, tuple)):
        return [_comparable(entry) for entry in value]
    return value


def digest_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """A hash of a step's arguments. A value without JSON counts as its class. All arguments that contain themselves have the same hash."""
    try:
        data = to_json(
            [_comparable(args), _comparable(kwargs)],
            inf_nan_mode="constants",
            bytes_mode="base64",
            fallback=lambda v: f"<{type(v).__qualname__}>",
        )
    except (ValueError, RecursionError):
        data = b"0"
    return hashlib.sha256(data).hexdigest()[:32]


#: The hash for a step without arguments.
_NOTHING = digest_of((), {})
#: The end of the full name of a second or later step of a name.
_NUMBERED = re.compile("#[0-9]+$")


def full_name(name: str, number: int) -> str:
    """The full name of a step: "charge", then "charge#2". If the name itself ends in a number like "#2", the first step has its number, too."""
    return name if number == 1 and not _NUMBERED.search(name) else f"{name}#{number}"


#: Threads that wait for a call, and the most of them.
_idle: deque[SimpleQueue[Callable[[], Callable[[], object]]]] = deque()
_MOST_IDLE = 32


def _serve(calls: SimpleQueue[Callable[[], Callable[[], object]]]) -> None:
    while True:
        settle = calls.get()()
        is_enough = len(_idle) >= _MOST_IDLE
        if not is_enough:
            _idle.append(calls)
        with suppress(RuntimeError):  # the loop is closed
            settle()
        del settle  # releases the values that it holds
        if is_enough:
            return


os.register_at_fork(after_in_child=_idle.clear)


async def on_thread(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Await a call on a daemon thread. It does not wait for other calls, and does not keep the process from ending."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()

    def settle(set_it: Callable[[Any], None], outcome: Any) -> None:
        if not done.done():
            set_it(outcome)

    def call() -> Callable[[], object]:
        set_it: Callable[[Any], None]
        outcome: Any
        try:
            set_it, outcome = done.set_result, context.run(function, *args, **kwargs)
        except StopIteration as error:  # a future does not accept it
            set_it, outcome = done.set_exception, RuntimeError(f"the step raised {error!r}")
        except BaseException as error:
            set_it, outcome = done.set_exception, error
        return lambda: loop.call_soon_threadsafe(settle, set_it, outcome)

    try:
        calls = _idle.pop()
    except IndexError:
        calls = SimpleQueue()
        threading.Thread(target=_serve, args=(calls,), name="sa-jobqueue step", daemon=True).start()
    calls.put(call)
    return await done


class SessionSource(Protocol):
    """Opens the sessions of steps."""

    def open(self) -> tuple[Session, Any]: ...
    def open_async(self) -> tuple[AsyncSession, Any]: ...


class Steps:
    """The steps of one run.

    `renewed()`: when its lease was last renewed, by `monotonic()`. `policy`: see `@task(steps=...)`. `limit`: the most bytes of a value as JSON.
    """

    def __init__(
        self,
        job: ClaimedJob,
        checkpoints: Checkpoints,
        sessions: SessionSource,
        renewed: Callable[[], float],
        *,
        policy: str,
        limit: int,
        callbacks: Callbacks | None = None,
    ) -> None:
        self._job, self._checkpoints, self._sessions, self._renewed = job, checkpoints, sessions, renewed
        self._policy, self._limit = policy, limit
        self._store = checkpoints.store
        self._callbacks = callbacks
        self._recorded: dict[str, Recorded] | None = None
        self._wait: Awaiting | None = None
        self._read_at = 0.0
        self._earlier = frozenset[str]()
        """The steps that earlier claims recorded, and the step in which the job waited."""
        self._passed: set[str] = set()
        """The patches whose places earlier claims have passed."""
        self._counts: Counter[str] = Counter()
        self._begun = 0
        self._lock, self._naming = threading.Lock(), threading.Lock()
        self.suspension: WaitFor | None = None
        """The wait for which the handler's run ends."""
        self._ended = False
        """Whether the handler has raised. Then no more steps begin."""
        self.is_lost = False
        """A step could not be recorded, because the claim is no longer valid."""
        self.unopened: tuple[sa.Engine, str] | None = None
        """The engine that had no connection for the last step's session, and the reason; see `HandlerTransaction.unopened`."""
        self._running: set[asyncio.Task[Any]] = set()
        self._on_threads: set[asyncio.Task[Any] | None] = set()
        """The running steps of an async handler, and the running steps that are on threads. Only the event loop uses both."""

    # ---- names and records

    def _name(self, name: str) -> str:
        """The full name of the next step of this name. Call it on the handler's thread or loop, which has the order of the calls."""
        if (inside := current_step.get()) is not None and inside[0] == self._job.id:
            raise StepError(
                f"step {name!r} was begun inside step {inside[1]!r}: steps do not nest; call them one after the other"
            )
        self._refuse_new(name)
        with self._naming:
            self._counts[name] += 1
            self._begun += 1
            if self._begun > MOST_STEPS:
                self._refuse_more()
            return full_name(name, self._counts[name])

    def _refuse_new(self, name: str) -> None:
        """Raise if the handler has ended or begun to wait. A `finally` or another task may still call a step."""
        if self.suspension is not None:
            raise _suspended(self._job.id, self.suspension)
        if self._ended:
            raise JobStopped(f"job {self._job.id}: its handler has ended; step {name!r} is not begun")

    def _refuse_more(self) -> None:
        raise StepError(
            f"job {self._job.id} has {MOST_STEPS:,} steps, and may not have more: do several things in a step, or go on in a new job that a "
            "step enqueues"
        )

    def _find(self, full: str) -> Recorded | None:
        """The record of a step, or None. Raises if a step without a record must not begin."""
        self._read()
        assert self._recorded is not None
        if (found := self._recorded.get(full)) is None:
            self._refuse_new(full)  # while the records were read
            if len(self._recorded) >= MOST_STEPS:
                self._refuse_more()
        return found

    def _read(self) -> None:
        if self._recorded is not None:
            return
        with self._lock:
            if self._recorded is None:
                self._patiently("the steps", self._read_again)

    def _read_again(self) -> dict[str, Recorded]:
        job = self._job
        recorded, self._wait = self._checkpoints.write(
            job.id, lambda connection: self._store.read_steps(connection, job.id, job.claim_token)
        )
        self._read_at = monotonic()
        if self._recorded is None:
            waited = [] if self._wait is None else [self._wait.step]
            self._earlier = frozenset([*(name for name, step in recorded.items() if not step.is_ours), *waited])
        self._recorded = recorded
        return recorded

    def _patiently(self, what: str, work: Callable[[], T]) -> T:
        """Call `work`, and again while the database is away or another transaction holds a lock: for as long as a lease, while ours holds."""
        began, tries = monotonic(), 0
        while True:
            try:
                return work()
            except (DBAPIError, PoolTimeout) as error:
                passes = isinstance(error, PoolTimeout) or fault_of(error) in {Fault.AWAY, Fault.LATE}
                if not passes or monotonic() - min(began, self._renewed()) >= self._checkpoints.lease:
                    raise
                tries += 1
                reason = getattr(error, "orig", error)
                text = "job %d: %s cannot be recorded or read just now: %s"
                logger.warning(text, self._job.id, what, reason, extra=self._job.fields)
                time.sleep(min(_FIRST_TRY * 2**tries, _LAST_TRY) * random.uniform(0.5, 1.0))

    def _try(
        self, name: str, write: Callable[[sa.Connection], T], connection: sa.Connection | None = None
    ) -> T | Recorded:
        """Write a record, in a transaction of its own or in that of `connection`. If the answer to a write was lost, read the record."""
        if connection is not None:
            return write(connection)
        tries = 0

        def work() -> T | Recorded:
            nonlocal tries
            tries += 1
            if tries > 1 and (found := self._read_again().get(name)) is not None and found.is_ours:
                return found
            return self._checkpoints.write(self._job.id, write)

        return self._patiently(f"step {name!r}", work)

    def passing(self, name: str, *, recorded: bool) -> None:
        """Called right before and right after a step is recorded, for tests."""

    def record(self, step: Recorded, took: float | None = None, connection: sa.Connection | None = None) -> None:
        """Record a step, in a transaction of its own or in that of `connection`. Raises JobStopped if the claim is no longer valid."""
        assert self._recorded is not None

        def write(connection: sa.Connection) -> bool:
            return self._store.record_step(connection, self._job.id, self._job.claim_token, step, took=took)

        if not self._try(step.name, write, connection):
            self.is_lost = True
            text = f"job {self._job.id}: its claim was lost; step {step.name!r} is not recorded"
            logger.warning("%s", text, extra=self._job.fields)
            raise JobStopped(text)
        self._recorded[step.name] = step

    # ---- steps

    def _known(self, full: str, digest: str, kind: str = "step", revision: int = 1) -> Recorded | None:
        """The record of a step, if it is valid. If the arguments differ, the task's policy decides what happens."""
        if (found := self._find(full)) is None or (found.kind == kind and found.revision < revision):
            return None
        if found.kind != kind:
            raise StepError(f"step {full!r} was recorded as a {found.kind}: give one of them another name")
        if found.digest not in {None, digest}:
            self._differs(full)
        return found

    def _differs(self, name: str) -> None:
        text = (
            f"job {self._job.id}: step {name!r} was recorded with other arguments: give ctx.step a higher revision= to run it again, or "
            "another name"
        )
        if self._policy == "fail":
            raise StepError(text)
        logger.warning("%s", text, extra=self._job.fields)
        if self._policy == "hold":
            self.suspension = WaitFor(name)
            raise _suspended(self._job.id, self.suspension)

    def run(self, call: StepCall) -> Any:
        """Run a step of a `def` handler, or return its recorded result."""
        full, digest = self._name(checked_name(call.name, "step")), digest_of(call.args, call.kwargs)
        found = self._known(full, digest, revision=call.revision)
        results = _results(call.function, self._job.task)
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
            result = results.encode(value, limit=self._limit, of=f"task {self._job.task!r}, step {full!r}")
            step = Recorded(full, "step", call.revision, digest, result)
            self.record(step, monotonic() - began)
            return _typed(step, results.hint)

    async def arun(self, call: StepCall) -> Any:
        """Run a step of an async handler: an `async def` function on the loop, another function on a thread.

        A step on a thread cannot be stopped, and no step is stopped because another task begins to wait. Such steps end and are recorded.
        """
        full, digest = self._name(checked_name(call.name, "step")), digest_of(call.args, call.kwargs)
        if self._recorded is None:
            await self.acall(self._read)
        found = self._known(full, digest, revision=call.revision)
        results = _results(call.function, self._job.task)
        if found is not None:
            return _typed(found, results.hint)
        step = asyncio.create_task(self._perform(call, full, digest, results))
        self._running.add(step)
        step.add_done_callback(self._running.discard)
        try:
            return await asyncio.shield(step)
        except asyncio.CancelledError:
            if self.suspension is None and step not in self._on_threads:
                step.cancel()
            raise

    async def _perform(self, call: StepCall, full: str, digest: str, results: Results) -> Any:
        current_step.set((self._job.id, full))  # in the context of this task
        began, tries = monotonic(), 0
        while True:
            try:
                if inspect.iscoroutinefunction(call.function):
                    value = await call.function(*call.args, **call.kwargs)
                else:
                    value = await self._unstopped(on_thread(call.function, *call.args, **call.kwargs))
                    if asyncio.iscoroutine(value):  # of a lambda, say
                        value = await value
            except Exception as error:
                tries += 1
                await asyncio.sleep(self._delay(error, call, tries, began))
                continue
            result = results.encode(value, limit=self._limit, of=f"task {self._job.task!r}, step {full!r}")
            step = Recorded(full, "step", call.revision, digest, result)
            await self._unstopped(self.acall(self.record, step, monotonic() - began))
            return _typed(step, results.hint)

    async def _unstopped(self, call: Awaitable[T]) -> T:
        task = asyncio.current_task()
        self._on_threads.add(task)
        try:
            return await call
        finally:
            self._on_threads.discard(task)

    async def acall(self, method: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a method that waits for the database, from an async handler."""
        return await on_thread(method, *args, **kwargs)

    async def idle(self) -> None:
        """Let no more steps begin, and wait until the steps that other tasks of the handler still run are recorded."""
        self._ended = True
        try:
            while self._running:
                await asyncio.wait(self._running)
        except BaseException:
            for step in self._running:
                step.cancel()
            raise

    def unused_in(self, ending: RunEnding) -> list[str]:
        """The recorded steps that a completing run has not called."""
        if not (isinstance(ending, ToWrite) and ending.change.event is Event.COMPLETE):
            return []
        asked = self._asked_for()
        return [name for name in self._recorded or () if name not in asked]

    def _asked_for(self) -> set[str]:
        return {full_name(name, n) for name, most in self._counts.items() for n in range(1, most + 1)}

    def note_unused(self, names: Sequence[str]) -> None:
        """Mark these steps as not called by this run, which completes: the job's page shows them as orphaned. A failure is logged."""
        try:
            with self._checkpoints.begin() as connection:
                self._store.note_unused(connection, self._job.id, self._job.claim_token, names)
        except DBAPIError as error:
            logger.warning(
                "job %d: steps without a use are not noted: %s", self._job.id, error.orig, extra=self._job.fields
            )

    def refuse_swallowed(self) -> None:
        """Raise if the handler has caught the exception that ends its run for a wait."""
        if self.suspension is not None:
            raise StepError(
                f"the handler caught JobSuspended, which ends its run while it waits in step {self.suspension.step!r}: let it pass, as "
                "`except Exception` does"
            )

    def _delay(self, error: Exception, call: StepCall, tries: int, began: float) -> float:
        """Seconds until a step is tried again. Raises `error` if the step is not tried again: the lease would end before, or `error` is an outcome."""
        tried = call.retry is not None and not isinstance(error, HandlerOutcome)
        wait = next_delay(call.retry, error, tries, random.random()) if tried and call.retry is not None else None
        if wait is None or monotonic() - began + wait > self._checkpoints.lease:
            raise error
        text = "job %d: step %r failed (%r) and is tried again in %.3g s"
        logger.info(text, self._job.id, call.name, error, wait, extra=self._job.fields)
        return wait

    @contextmanager
    def session(self, name: str) -> Generator[Session]:
        """A session whose writes and whose checkpoint are one commit. See `JobContext.step_session`."""
        full = self._name(checked_name(name, "step"))
        found = self._find(full)
        session, transaction = self._sessions.open()
        token = current_step.set((self._job.id, full))
        try:
            yield session
            if found is None:
                step = Recorded(full, "step", digest=_NOTHING)
                if not transaction.commit_step(partial(self.record, step, None)):
                    self.record(step)
                self.passing(full, recorded=True)
        except Exception:
            if found is None:
                raise  # a repeated block may fail because its writes are there already
        finally:
            current_step.reset(token)
            self.unopened = transaction.unopened
            transaction.close()

    @asynccontextmanager
    async def asession(self, name: str) -> AsyncGenerator[AsyncSession]:
        """As `session`, for an async handler."""
        full = self._name(checked_name(name, "step"))
        found = await self.acall(self._find, full)
        self._refuse_new(full)
        session, transaction = self._sessions.open_async()
        token = current_step.set((self._job.id, full))
        try:
            yield session
            if found is None:
                step = Recorded(full, "step", digest=_NOTHING)
                record = partial(self.record, step, None)
                if not await session.run_sync(lambda _: transaction.commit_step(record)):
                    await self.acall(self.record, step)
                self.passing(full, recorded=True)
        except Exception:
            if found is None:
                raise
        finally:
            current_step.reset(token)
            self.unopened = transaction.unopened
            await session.run_sync(lambda _: transaction.close())

    def patched(self, name: str) -> Callable[[], bool]:
        """Name the step of `JobContext.patched`, and return the call that answers."""
        return partial(self._is_patched, f"patch:{checked_name(name, 'patch')}")

    def _is_patched(self, full: str) -> bool:
        self._counts[full] = 1  # so that `unused_in` counts it as called
        if self._find(full) is not None:
            return True
        if full in self._passed or not self._earlier <= self._asked_for():
            self._passed.add(full)
            return False
        self.record(Recorded(full, "patch"))
        return True

    def callback_url(self, name: str, expires_in: Duration) -> Callable[[], CallbackUrl]:
        """Name the step of `JobContext.callback_url`, and return the call that makes the address.

        Only the ticket is recorded. A reader of the record cannot make the address, because a key signs it.
        """
        from ...rules.callbacks import MOST_DAYS

        if self._callbacks is None:
            raise ConfigurationError(
                'ctx.callback_url needs default_registry.callbacks = Callbacks(url="https://shop.example/hooks", keys=[...]), or that of the '
                "task's registry"
            )
        seconds = seconds_of(expires_in, what="ctx.callback_url(expires_in=...)")
        if not 0 < seconds <= MOST_DAYS * 86_400:
            raise OptionError(
                f"ctx.callback_url(expires_in=...) must be from 1 second to {MOST_DAYS} days, not {expires_in!r}"
            )
        full = self._name(f"callback:{checked_name(name, 'callback')}")
        signal = checked_name(f"job:{self._job.id}:{full.removeprefix('callback:')}", "signal")
        return partial(self._address, self._callbacks, full, signal, seconds)

    def _address(self, callbacks: Callbacks, full: str, signal: str, seconds: float) -> CallbackUrl:
        from ...rules.callbacks import Ticket

        if (found := self._find(full)) is None:
            now = self._patiently(f"step {full!r}", self._seconds_now)
            made = [signal, math.ceil(now + seconds), secrets.token_urlsafe(12), callbacks.newest]
            self.record(found := Recorded(full, "callback", result=json.dumps(made)))
        *ticket, key = json.loads(found.result or "[]")
        return callbacks.sign(Ticket(*ticket), key)

    def _seconds_now(self) -> float:
        with self._checkpoints.begin() as connection:
            return self._store.seconds_now(connection)

    # ---- waits

    # `wait_signal`, `sleep`, `join` and `patched` name the step, and return the call that waits for the database.

    def now(self, ask: Callable[[], T]) -> T:
        """Call `ask` in a `def` handler, whose run ends if it must wait."""
        try:
            return ask()
        except JobSuspended as error:
            self.suspension = error.wait
            raise

    async def soon(self, ask: Callable[[], T]) -> T:
        """Call `ask` in an async handler, whose run ends if it must wait."""
        try:
            return await self.acall(ask)
        except JobSuspended as error:
            self.suspension = self.suspension or error.wait
            raise

    def _is_over(self, name: str) -> bool:
        """Whether the job already waited in this step, and the wait's time is over."""
        wait = self._wait
        return (
            wait is not None
            and wait.step == name
            and wait.seconds is not None
            and monotonic() >= self._read_at + wait.seconds
        )

    def wait_signal(self, name: str, hint: Any, timeout: Duration | None, question: object) -> Callable[[], Any]:
        """Name the step, and return the call that takes the next signal of this name."""
        full = self._name(f"signal:{checked_name(name, 'signal')}")
        seconds = None if timeout is None else seconds_of(timeout, what="wait_signal(timeout=...)")
        return partial(self._take, WaitFor(full, signal=name, seconds=seconds), hint, question)

    def _take(self, wait: WaitFor, hint: Any, question: object) -> Any:
        full, name = wait.step, cast(str, wait.signal)
        if (found := self._find(full)) is None:
            taken = self._try(full, lambda connection: self._store.take_signal(
                connection, self._job.id, self._job.claim_token, step=full, signal=name))  # fmt: skip
            if isinstance(taken, Recorded):
                found = taken
            elif taken is not None:
                found = Recorded(full, "signal", result=taken)
            elif self._is_over(full):
                self.record(found := Recorded(full, "timeout"))
            else:
                raise _suspended(self._job.id, wait._replace(question=_asked(question, hint)))
            cast("dict[str, Recorded]", self._recorded)[full] = found
        if found.kind == "timeout":
            raise SignalTimeout(f"job {self._job.id}: no signal {name!r} has come in time")
        if found.kind != "signal":
            raise StepError(f"step {full!r} was recorded as a {found.kind}: give one of them another name")
        return _typed(found, hint)

    def sleep(self, *, seconds: float | None = None, at: datetime | None = None) -> Callable[[], None]:
        """Name the step, and return the call that waits for a time."""
        return partial(self._sleep, WaitFor(self._name("sleep"), seconds=seconds, at=at))

    def _sleep(self, wait: WaitFor) -> None:
        if self._find(wait.step) is not None:
            return
        if not self._is_over(wait.step):
            raise _suspended(self._job.id, wait)
        self.record(Recorded(wait.step, "sleep"))

    def join(self, ids: Sequence[int]) -> Callable[[], list[Any]]:
        """Name the step, and return the call that reads the results of other jobs, with `Failed` for each job that did not complete."""
        if self._job.id in ids:
            raise OptionError(f"ctx.join: job {self._job.id} cannot wait for its own end")
        return partial(self._join, WaitFor(self._name("join"), jobs=ids))

    def _join(self, wait: WaitFor) -> list[Any]:
        ids = cast("Sequence[int]", wait.jobs)
        digest = digest_of(ids, {})
        if (found := self._known(wait.step, digest, "join")) is None:
            ends = self._patiently(f"step {wait.step!r}", partial(self._ends, ids))
            if any(end is None for end in ends.values()):
                raise _suspended(self._job.id, wait)
            data = [_as_json(cast(JobEnd, ends[job_id])) for job_id in ids]
            text = encode_value(data, what=f"job {self._job.id}: what ctx.join returns", limit=self._limit)
            self.record(found := Recorded(wait.step, "join", 1, digest, text))
        return [_from_json(entry) for entry in json.loads(found.result or "[]")]

    def _ends(self, ids: Sequence[int]) -> dict[int, JobEnd | None]:
        with self._checkpoints.begin(several=True) as connection:
            ends = self._store.ends(connection, ids)
            gone = [job_id for job_id, end in ends.items() if end is not None and end.is_gone]
            return ends | self._store.archived_ends(connection, gone) if gone else ends

    def write(self, change: Change) -> RunEnding:
        """Suspend the job, after its handler has ended and its session is closed."""
        assert self.suspension is not None
        with self._checkpoints.begin(several=True) as connection:
            answer = self._store.suspend(connection, change, self.suspension)
        if answer is Answer.LOST:
            return LOST
        return Written(change if answer is Answer.APPLIED else change.cancelled)


def _suspended(job_id: int, wait: WaitFor) -> JobSuspended:
    error = JobSuspended(f"job {job_id} waits in step {wait.step!r}")
    error.wait = wait
    return error


def _typed(found: Recorded, hint: Any) -> Any:
    plain = None if found.result is None else json.loads(found.result)
    if hint is Any:
        return plain
    try:
        return typed(hint).from_plain(plain)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        raise ResultError(
            f"step {found.name!r}: what was recorded is not of the type {type_name(hint)}: {first['msg']}"
        ) from error


def _asked(question: object, hint: Any) -> str | None:
    if question is None:
        return None
    from ...arguments.questions import as_asked

    return encode_value(as_asked(question, hint), what="wait_signal(question=...)", limit=_MOST_ASKED)


_GONE = "there is no such job: it was deleted, or its transaction has not committed"


def _as_json(end: JobEnd) -> list[Any]:
    error = end.error or {"message": _GONE if end.is_gone else ""}
    return [end.id, end.status, end.result, str(error.get("type", "")), str(error.get("message", ""))]


def _from_json(entry: list[Any]) -> Any:
    job_id, status, result, kind, message = entry
    return result if status == "completed" else Failed(job_id, status, kind, message)
