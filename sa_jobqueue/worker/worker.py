"""The worker: a process that serves some queues.

>>> worker = Worker("postgresql://localhost/shop", queues={"mail": 10, "default": 50})
>>> worker.run()  # doctest: +SKIP

`run()` blocks until SIGTERM or SIGINT: the first lets running jobs finish, the second does not wait for them. If the same signal
comes again within a second, it counts once.
`await worker.serve()` does the same inside a running event loop, without signals; `stop()` ends it.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
import uuid
from collections import Counter
from collections.abc import Coroutine, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from ..errors import ConfigurationError
from ..models import JobMixin, schema_of
from ..rules.settings import WorkerSettings
from ..rules.tally import TaskTally
from ..sql.store import store_of
from ..sql.workers import checked_slots
from ..tasks.calls import AsyncSessionMaker, SessionMaker, check_makers
from ..tasks.options import checked_int
from ..tasks.registry import Registry, default_registry
from ..util.log import get_logger
from .children.loading import ChildSetup, Maker
from .connections.engines import Engines
from .process.inside import Ending, refuse_in_child, refuse_patched
from .process.signals import hearing_signals
from .running.reopening import Sessions
from .services import WorkerSpec
from .serving import LAST_CALL, Serving
from .tally import QueueState, Tally, WorkerState, add_to_totals, outcomes_of

logger = get_logger(__name__)


class Worker:
    """Serves `queues`, a mapping of names to numbers of slots. The slots of `"*"` are shared by all other queues, also by queues that
    get jobs only later.

    `database`: a URL, or an `Engine`; where async handlers use `ctx.session`, give an `AsyncEngine` with the Engine.
    From a URL the worker makes both itself. `sessionmaker`, `async_sessionmaker`: the application's own, for
    `ctx.session`; by default the registry's. `registry`: the tasks it knows. `schema`: where the tables are, if it is
    neither `sa_jobqueue` nor given by the engine's `schema_translate_map`. `listen_url`: a direct URL for LISTEN when
    `database` is a pooler. `listen=False`: only poll. `max_jobs`, `max_memory`: end after that many jobs, or above that
    many bytes of resident memory, to be restarted. `job`: the class of the jobs, if it is not the registry's. All other
    options are in `settings`.

    Raises ConfigurationError for options that cannot work.
    """

    def __init__(
        self,
        database: str | sa.URL | sa.Engine,
        queues: Mapping[str, int],
        *,
        async_engine: AsyncEngine | None = None,
        sessionmaker: SessionMaker | None = None,
        async_sessionmaker: AsyncSessionMaker | None = None,
        registry: Registry = default_registry,
        schema: str | None = None,
        listen: bool = True,
        listen_url: str | sa.URL | None = None,
        max_jobs: int | None = None,
        max_memory: int | None = None,
        settings: WorkerSettings | None = None,
        job: type[JobMixin] | None = None,
    ) -> None:
        self.queues = _checked_queues(queues)
        _check_limits(max_jobs=max_jobs, max_memory=max_memory)
        if not isinstance(registry, Registry):
            raise ConfigurationError(f"registry is a Registry, not {registry!r}")
        check_makers(sessionmaker=sessionmaker, async_sessionmaker=async_sessionmaker)
        if settings is not None and not isinstance(settings, WorkerSettings):
            raise ConfigurationError(f"settings is a WorkerSettings, not {settings!r}")
        self.settings = settings or WorkerSettings()
        self.registry = registry
        self.id = uuid.uuid4()
        self.concurrency = sum(self.queues.values())
        job = registry.job if job is None else job
        store = store_of(job)
        engines = Engines(
            database,
            async_engine=async_engine,
            listen=listen,
            listen_url=listen_url,
            schema=schema,
            slots=self.concurrency,
            pooled=self.settings.pooled,
            named=schema_of(job),
        )
        self.engine = engines.main
        self.schema = engines.schema
        """The schema of the worker's tables."""
        self.sessions = Sessions(
            engine=engines.main,
            async_engine=engines.asynchronous,
            maker=sessionmaker or registry.sessionmaker,
            async_maker=async_sessionmaker or registry.async_sessionmaker,
            translate=engines.translate,
            idle_timeout=self.settings.session_idle_timeout,
            store=store,
        )
        """Makes `ctx.session` for the handlers."""
        maker = Maker.OWN if sessionmaker is not None else Maker.REGISTRY if registry.sessionmaker else Maker.NONE
        self._spec = WorkerSpec(
            id=self.id,
            queues=self.queues,
            registry=registry,
            settings=self.settings,
            engines=engines,
            sessions=self.sessions,
            max_jobs=max_jobs,
            max_memory=max_memory,
            store=store,
            children=ChildSetup(
                url=None if isinstance(database, sa.Engine) else engines.main.url.render_as_string(hide_password=False),
                maker=maker,
                translate=tuple(engines.translate.items()),
                pooled=self.settings.pooled,
                idle=self.settings.session_idle_timeout,
                lease=self.settings.lease,
                max_rescues=self.settings.max_rescues,
                log_jobs=self.settings.log_jobs,
                job=ChildSetup.job_class(job),
            ),
        )
        self._tally = Tally()
        add_to_totals(self, self._tally)
        self._serving: Serving | None = None
        self._begun = False
        """Whether it serves: two workers with the same id would give back each other's jobs. Written by the loop."""
        self._signals = 0

    def limit(self, *, max_jobs: int | None = None, max_memory: int | None = None) -> None:
        """Set `max_jobs` and `max_memory` for the next `run()` or `serve()`; None leaves the value as it is."""
        _check_limits(max_jobs=max_jobs, max_memory=max_memory)
        spec = self._spec
        self._spec = replace(
            spec,
            max_jobs=spec.max_jobs if max_jobs is None else max_jobs,
            max_memory=spec.max_memory if max_memory is None else max_memory,
        )

    def import_in_children(self, names: Iterable[str]) -> None:
        """Let child processes import these modules, in place of the script that runs: names as `--app` takes them.

        A function or a Worker among them, as in "shop:worker", is called or used there, too, for the sessions of its handlers.
        """
        self._spec = replace(self._spec, children=replace(self._spec.children, app=tuple(names)))

    def run(self, *, until_idle: bool = False) -> Ending:
        """Work until a signal comes or, with `until_idle`, until no job is due. Returns why it ended: with `until_idle` it is
        `Ending.INTERRUPTED` if a signal or `stop()` came first.

        It ends the process and does not return when a handler blocks the event loop past the grace time, or for more
        than about ten seconds past its timeout.

        Raises SchemaError, DatabaseUnavailable, TaskError, ConfigurationError when it cannot begin.
        """
        refuse_in_child()
        with suppress(RuntimeError):  # there should be no loop
            asyncio.get_running_loop()
            raise ConfigurationError("an event loop is running here: use `await worker.serve()` instead of run()")
        if threading.current_thread() is not threading.main_thread():
            raise ConfigurationError(
                "run() hears signals, which only the main thread can: on another thread use "
                "`asyncio.run(worker.serve())`, and worker.stop() to end it"
            )
        loop = _new_loop()
        try:
            asyncio.set_event_loop(loop)
            with hearing_signals(self._heed_signal, self._end_if_blocked):
                return _run(loop, self._serve(until_idle=until_idle, own_process=True))
        finally:
            # Not asyncio.run: it would wait for handlers that ignore being cancelled.
            asyncio.set_event_loop(None)
            loop.close()

    async def serve(self, *, until_idle: bool = False) -> Ending:
        """Work inside the running event loop until `stop()` is called.

        Raises what `run()` does.
        """
        return await self._serve(until_idle=until_idle, own_process=False)

    async def _serve(self, *, until_idle: bool, own_process: bool) -> Ending:
        refuse_in_child()
        refuse_patched()
        if self._begun:
            raise ConfigurationError("this worker serves already; make another Worker to serve at the same time")
        self.registry.resolve()
        self._serving = serving = Serving(self._spec, self._tally, until_idle=until_idle, own_process=own_process)
        if self._signals:
            serving.stop(now=self._signals > 1)  # a signal, or stop(), came before there was anything to stop
        self._begun = True
        try:
            return await serving.serve()
        finally:
            self._begun, self._signals = False, 0

    def stop(self, *, now: bool = False) -> None:
        """End `run()` or `serve()`: claim no more, let running jobs finish; `now`: do not wait for them. For any thread.

        Called before the worker begins, it ends the next `run()` or `serve()`.
        """
        if self._serving is None or (now and self.serving):
            self._signals = max(self._signals, 2 if now else 1)
        if self._serving is not None:
            self._serving.stop(now=now)

    @property
    def serving(self) -> bool:
        """Whether it has begun, and not yet ended."""
        return self._serving is not None and self._serving.under_way

    @property
    def counts(self) -> Counter[str]:
        """How jobs ended so far, by outcome: "completed", "retried", "failed", "cancelled", "snoozed", "suspended",
        "released", "rescued", "lost"; and "unknown", jobs released because their tasks are not registered. For any thread.
        """
        return outcomes_of(self._tally.snapshot())

    def tally(self) -> list[TaskTally]:
        """How jobs ended so far by queue and task, and how long they ran and waited. For any thread."""
        return self._tally.snapshot()

    def state(self) -> WorkerState:
        """The state of the worker just now: slots and jobs by queue, and counts. For any thread."""
        if self._serving is not None:
            return self._serving.state()
        queues = {
            name: QueueState(slots, running=0, waiting=0, stuck=0, paused=False) for name, slots in self.queues.items()
        }
        return WorkerState(serving=False, queues=queues, counts=dict(self.counts))

    def _heed_signal(self, number: signal.Signals) -> float:
        """Stop. Returns the seconds after which handlers should have ended. On the signals thread."""
        self._signals += 1
        now = self._signals > 1
        self.stop(now=now)
        with suppress(BaseException):  # a log filter's: the next signal must be heard, too
            if now:
                logger.warning("%s, the second signal: leaving now", number.name)
            else:
                logger.info("%s: finishing what is running, for at most %g s", number.name, self.settings.grace)
        return LAST_CALL if now else self.settings.grace + LAST_CALL

    def _end_if_blocked(self) -> None:
        if self._serving is not None:
            self._serving.end_if_blocked()


def _check_limits(**limits: int | None) -> None:
    for name, limit in limits.items():
        if limit is not None:
            checked_int(limit, name, 1, sys.maxsize, ConfigurationError)


def _checked_queues(queues: Mapping[str, int]) -> dict[str, int]:
    if not (checked := checked_slots(queues)):
        raise ConfigurationError("a worker needs queues: {'default': 10}")
    return checked


def _run(loop: asyncio.AbstractEventLoop, serve: Coroutine[Any, Any, Ending]) -> Ending:
    """Run to the end of `serve`, even if a handler's tasks or callbacks stop the loop.

    A task or callback stops it when it raises SystemExit or KeyboardInterrupt, or calls `loop.stop()`. Signals are handled elsewhere.
    """
    serving = loop.create_task(serve)
    while True:
        try:
            return loop.run_until_complete(serving)
        except (SystemExit, KeyboardInterrupt, RuntimeError) as error:
            if serving.done() or loop.is_closed():
                raise
            logger.error("a task or callback of a handler's left the event loop (%r); the worker goes on", error)


def _new_loop() -> asyncio.AbstractEventLoop:
    """The loop of uvloop, where it is installed (extra `uvloop`), else asyncio's."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
