"""The main program of a child process: it imports the application, and runs the jobs that its worker sends, one at a time.

A job is run by the same `Executor` as on a thread of the worker. So the outcome is decided here, and with `ctx.session` it is
committed here, behind the same fence.
"""

from __future__ import annotations

import asyncio
import contextvars
import fcntl
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from time import monotonic
from typing import cast

import sqlalchemy as sa

from ...arguments.context import ClaimedJob
from ...tasks.middleware import add_job_fields
from ...tasks.tasks import AnyTask
from ...util.log import enable_loggers, place_of
from ..process.inside import enter_child, tune_gc
from ..running.attempt_end import RunEnding, Telling
from ..running.executor import Executor
from ..running.life import at_once
from ..running.run import Run, Stop
from ..running.runners import own_decimal_context
from .loading import ChildSetup, Loaded
from .messages import Channel, Message, message_of_line, message_of_progress, message_of_record, message_of_use


def main(end: int, life: int) -> None:
    """Run the child. `end`: our end of the socket; `life`: our end of a pipe whose other end only the worker has. Both descriptors."""
    for number in (end, life):
        os.set_inheritable(number, False)  # not for the programs that a handler starts
    _die_with_worker(life)
    for number in (signal.SIGINT, signal.SIGTERM):
        # The worker decides: a service manager may send SIGTERM to all processes. Not SIG_IGN, which the programs that a handler
        # starts would inherit.
        signal.signal(number, lambda _number, _frame: None)
    enter_child()
    channel = Channel(socket.socket(fileno=end))
    orders = _Orders(channel)
    setup = orders.next()
    try:
        _log_to(channel, setup)
        loaded = Loaded(setup)
        _log_to(channel, setup)  # the application may have set up its own log, as it did in the worker
        for place in setup.tasks:
            loaded.task(*place).resolve()
        if not loaded.life.is_empty:
            asyncio.run(loaded.life.begin(at_once))
    except BaseException as error:  # from the application's modules
        where = place_of(error, anywhere=True)
        channel.send({"broken": f"{type(error).__name__}: {error}" + (f" ({where})" if where else "")})
        return
    tune_gc()
    channel.send({"ready": True})
    jobs = _Jobs(channel, orders, loaded, setup)
    while jobs.run_next():
        pass
    if not loaded.life.is_empty:
        asyncio.run(loaded.life.end(at_once))
    logging.shutdown()


def _die_with_worker(life: int) -> None:
    """Let the system kill this process, and the processes that it has started, when the worker is gone: also while C code runs.

    Only Linux can. Elsewhere the thread that reads the worker's messages ends the process as soon as it runs.
    """
    if hasattr(fcntl, "F_SETSIG"):
        fcntl.fcntl(life, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(life, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(life, fcntl.F_SETFL, fcntl.fcntl(life, fcntl.F_GETFL) | os.O_ASYNC)


@dataclass(slots=True)
class _Order:
    """A job that was sent. `stop` is written by the thread that reads messages, `run` by the main thread."""

    message: Message
    stop: Stop | None = None
    run: Run | None = None


class _Orders:
    """Reads the worker's messages, on a thread of its own, because a handler is asked to stop while it runs."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._first: SimpleQueue[ChildSetup] = SimpleQueue()
        self.jobs: SimpleQueue[_Order | None] = SimpleQueue()
        """None: leave."""
        self._last: _Order | None = None
        threading.Thread(target=self._read, name="sa-jobqueue messages", daemon=True).start()

    def next(self) -> ChildSetup:
        """The setup, which comes first."""
        return self._first.get()

    def _read(self) -> None:
        while True:
            try:
                messages = self._channel.receive()
            except (OSError, EOFError):
                os._exit(0)  # the worker is gone; the handler's further work would be lost
            for message in messages:
                self._obey(message)

    def _obey(self, message: Message) -> None:
        if "setup" in message:
            self._first.put(message["setup"])
        elif "job" in message:
            self._last = _Order(message)
            self.jobs.put(self._last)
        elif "stop" in message and self._last is not None:
            # For the last job sent: the worker stops no other.
            self._last.stop = stop = cast(Stop, message["stop"])
            if self._last.run is not None:
                self._last.run.ask_to_stop(stop)
        elif "leave" in message:
            self.jobs.put(None)


class _Jobs:
    """Runs jobs, on the main thread."""

    def __init__(self, channel: Channel, orders: _Orders, loaded: Loaded, setup: ChildSetup) -> None:
        self._channel, self._orders, self._loaded, self._setup = channel, orders, loaded, setup
        self._pid = os.getpid()
        self._tasks: dict[tuple[str, ...], AnyTask] = {}
        self._executors: dict[int, Executor] = {}
        self._notes = _Notes(channel)
        self._ended: Message = {}
        """The message about the run that has just ended."""

    def run_next(self) -> bool:
        """Run the next job, once it has come. False: this process must end."""
        order = self._orders.jobs.get()
        if order is None:
            return False
        self._ended = {}
        self._channel.send({"begun": True})  # from here on, the death of this process is a rescue of the job
        place = tuple(order.message["task"])
        try:
            if place not in self._tasks:
                self._tasks[place] = self._loaded.task(*place)
        except BaseException as error:  # from a module that is imported only now
            self._channel.send({"not found": f"{type(error).__name__}: {error}"})
            return True
        now = monotonic()
        self._run(order, Run(order.message["job"], self._tasks[place], now, now - order.message["elapsed"], set()))
        if os.getpid() != self._pid:
            # A process that the handler has forked has come back, too: this job and the next do not belong to it.
            os._exit(1)
        self._channel.send(self._ended)
        return True

    def _run(self, order: _Order, run: Run) -> None:
        executor = self._executor_of(run.task)
        order.run = run
        if order.stop is not None:
            run.ask_to_stop(order.stop)
        try:
            context = contextvars.copy_context()
            context.run(own_decimal_context)
            context.run(executor.run, run)
        except BaseException as error:
            executor.broke(run, error)

    def _executor_of(self, task: AnyTask) -> Executor:
        sessions = self._loaded.sessions(task)
        if id(sessions) not in self._executors:  # `loaded` keeps them all
            self._executors[id(sessions)] = Executor(
                sessions,
                report=self._report,
                pause=self._pause,
                leaving=lambda: False,
                max_rescues=self._setup.max_rescues,
                log_jobs=self._setup.log_jobs,
                notes=self._notes,
                telling=Telling(),
            )
        return self._executors[id(sessions)]

    def _report(self, run: Run, ending: RunEnding) -> None:
        run.ended = monotonic()
        self._ended["ended"] = ending

    def _pause(self, queue: str, engine: sa.Engine, why: str) -> None:
        self._ended["unopened"] = why


class _Notes:
    """Sends the worker a handler's progress and log lines. If that fails, the handler goes on."""

    def __init__(self, channel: Channel) -> None:
        self._channel, self._pid = channel, os.getpid()

    def report(self, job: ClaimedJob, fraction: float, message: str | None) -> None:
        """Send the progress of a job."""
        self._send(message_of_progress(job, fraction, message))

    def use(self, job: ClaimedJob, used: Mapping[str, int]) -> None:
        """Send the named units that a job has used."""
        self._send(message_of_use(job, used))

    def keep(self, job: ClaimedJob, limit: int) -> Callable[[logging.LogRecord], None]:
        """A function that sends the records to keep."""
        return lambda record: self._send(message_of_line(job, record))

    def _send(self, message: Message) -> None:
        if os.getpid() == self._pid:  # two processes cannot share the socket
            with suppress(OSError):
                self._channel.send(message)


class _Forward(logging.Handler):
    """Sends records to the worker, which logs them where it logs its own."""

    def __init__(self, channel: Channel) -> None:
        super().__init__()
        self._channel, self._pid = channel, os.getpid()

    def emit(self, record: logging.LogRecord) -> None:
        if os.getpid() != self._pid:  # in a process that a handler has forked: two processes cannot share the socket
            if logging.lastResort is not None:
                logging.lastResort.handle(record)
            return
        try:
            self._channel.send(message_of_record(record))
        except Exception:
            self.handleError(record)


def _log_to(channel: Channel, setup: ChildSetup) -> None:
    """Send log records to the worker, as far as its loggers have them enabled."""
    root = logging.getLogger()
    for handler in root.handlers[:]:
        root.removeHandler(handler)
    forward = _Forward(channel)
    root.addHandler(forward)
    if setup.job_fields:
        add_job_fields(forward)
    enable_loggers()
    for name, level in setup.levels:
        logging.getLogger(name).setLevel(level)
