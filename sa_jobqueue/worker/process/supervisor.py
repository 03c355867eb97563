"""The supervisor: several worker processes of one command, kept alive.

>>> import sys
>>> supervisor = Supervisor([sys.executable, "-m", "sa_jobqueue", "work", "--app", "shop.tasks"], processes=2)
>>> code = supervisor.run()  # doctest: +SKIP

It has no database, no event loop and none of the application's code, so little in it can fail. Each worker is a new process
(spawned, never forked) in a session of its own, so that Ctrl-C in a terminal reaches only the supervisor, which passes it on. Each
has the read end of a pipe as its stdin, and drains when that ends: when the supervisor is gone, however it ended (`supervised`).
"""

from __future__ import annotations

import logging
import os
import random
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from time import monotonic
from types import FrameType
from typing import NamedTuple, Protocol

from ...rules.retry import backoff
from ...util.log import get_logger
from .inside import Ending
from .signals import signals_go_to, start_deaf


@dataclass(slots=True, eq=False)
class Slot:
    """A worker process, as the supervisor sees it. Only the supervisor's main thread uses it."""

    number: int
    process: subprocess.Popen[bytes] | None = None
    started_at: float = 0.0
    start_at: float | None = 0.0
    """When to start it (again); None: not at all, or it runs."""
    deaths: int = 0
    """Fast deaths in a row, and starts that failed."""
    starts: int = 0
    cannot_work: bool = False
    """Whether its last process ended because it could not work."""
    restarts: bool = False
    """Its process drains, to be started again."""
    kill_at: float | None = None
    """When to kill its process, which then has had the time to drain."""

    def send(self, number: signal.Signals) -> None:
        """Send a signal to its process, if there is one."""
        if self.process is not None:
            with suppress(ProcessLookupError):
                self.process.send_signal(number)

    def close(self) -> int:
        """Mark that its process has ended. Returns the pid."""
        process, self.process = self.process, None
        assert process is not None
        if process.stdin is not None:
            process.stdin.close()
        return process.pid


def described(code: int) -> str:
    """How a process has ended, by its exit code."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


logger = get_logger(__name__)

#: The exit code of a worker that cannot work: a wrong setting, no database, an application that does not import.
CANNOT_WORK = 2
#: Seconds after which a worker counts as healthy: if it dies later, the count of fast deaths begins again.
_HEALTHY = 10.0
_FIRST_DELAY, _LONGEST_DELAY = 0.5, 30.0
#: Seconds after the grace time that a worker has for its last outcomes before it is killed.
_LAST_CALL = 5.0


class _Ended(NamedTuple):
    slot: Slot
    code: int


class _Restart(NamedTuple):
    why: str
    grace: float
    env: Mapping[str, str] | None


_Event = _Ended | _Restart | signal.Signals


class Reports(Protocol):
    """Receives the reports of worker processes, each over its own pipe."""

    def open(self, number: int) -> int:
        """The writing end of a new pipe, for the process `number` that is about to start. The supervisor closes it.

        Raises OSError, and RuntimeError if there can be no more threads.
        """
        ...

    def ended(self, number: int, pid: int) -> None:
        """The process has ended."""
        ...

    def leaving(self) -> None:
        """No process is started any more."""
        ...


class Supervisor:
    """Runs `command` in a number of `processes`, with the environment `env` (None: this process's own).

    `cores`: the processor cores to which the processes are pinned, in turn; empty: none.
    `reports`: gets the other end of a pipe that each process is given, as the option `--metrics-pipe` with its descriptor.
    `grace`: seconds that a worker may take to drain; a little later it is killed. `until_idle`: a worker that ends by
    itself with 0 has done its work and is not started again. `reloads`: `restart` will be called, so a worker that
    cannot work waits for the next call.
    """

    def __init__(
        self,
        command: Sequence[str],
        processes: int,
        *,
        env: Mapping[str, str] | None = None,
        cores: Sequence[int] = (),
        reports: Reports | None = None,
        grace: float = 30.0,
        until_idle: bool = False,
        reloads: bool = False,
    ) -> None:
        self._command, self._env, self._cores, self._reports = list(command), env, cores, reports
        self._grace, self._until_idle, self._reloads = grace, until_idle, reloads
        self._slots = [Slot(number) for number in range(1, processes + 1)]
        self._events: SimpleQueue[_Event] = SimpleQueue()
        self._signals = self._code = 0
        self._stopping = False
        self._worked = False
        """Whether any process seems to have worked."""

    def run(self) -> int:
        """Keep the workers running until a signal comes, let them drain, and return the exit code.

        0: all have drained. 1: a worker had to be killed. 2: no worker could begin. 4: with `until_idle`, a signal came before all
        workers were done. Call it on the main thread.
        """

        # SimpleQueue.put may be called in a handler: it does not deadlock with a put or get that it interrupts.
        def heed(number: int, frame: FrameType | None) -> None:
            self._events.put(signal.Signals(number))

        with signals_go_to(heed):
            try:
                while not self._is_done():
                    self._start_due()
                    self._handle_next()
                    self._kill_late()
            finally:
                for slot in self._slots:
                    if slot.process is not None:
                        slot.process.kill()
        return self._code

    def stop(self) -> None:
        """Act as on a SIGTERM; from any thread."""
        self._events.put(signal.SIGTERM)

    def restart(self, why: str, *, grace: float, env: Mapping[str, str] | None) -> None:
        """Let each worker drain, and start it again with this environment and grace time; from any thread."""
        self._events.put(_Restart(why, grace, env))

    def _is_done(self) -> bool:
        return (self._stopping or not self._reloads) and all(
            slot.process is None and slot.start_at is None for slot in self._slots
        )

    # ---- starting

    def _start_due(self) -> None:
        for slot in self._slots:
            if slot.start_at is not None and slot.start_at <= monotonic():
                self._start(slot)

    def _start(self, slot: Slot) -> None:
        slot.start_at, slot.started_at = None, monotonic()
        slot.kill_at, quiet, slot.restarts = None, slot.restarts, False
        try:
            slot.process = self._spawn(slot)
        except (OSError, RuntimeError) as error:  # no such program now, no memory, no more processes or threads
            if not any(started.starts for started in self._slots):
                raise  # no process runs that this could harm
            delay = self._start_later(slot)
            logger.error(
                "worker process %d could not be started: %s; trying again in %.1f s", slot.number, error, delay
            )
            return
        slot.starts += 1
        if self._cores:
            self._pin(slot.process.pid, self._cores[(slot.number - 1) % len(self._cores)])
        level = logging.DEBUG if quiet else logging.INFO
        logger.log(level, "worker process %d started (pid %d)", slot.number, slot.process.pid)

    def _spawn(self, slot: Slot) -> subprocess.Popen[bytes]:
        """A new process, and a thread that waits for its end. Raises OSError, and RuntimeError if there can be no more threads."""
        pipe = [] if self._reports is None else [self._reports.open(slot.number)]
        try:
            process = subprocess.Popen(
                [*self._command, *(f"--metrics-pipe={end}" for end in pipe)],
                env=self._env, stdin=subprocess.PIPE, start_new_session=True, pass_fds=pipe,
            )  # fmt: skip
        finally:
            for end in pipe:
                os.close(end)
        try:
            start_deaf(threading.Thread(target=self._await_end, args=(slot, process), daemon=True))
        except RuntimeError:
            with process:  # no thread would wait for its end
                process.kill()
            raise
        return process

    def _pin(self, pid: int, core: int) -> None:
        try:
            os.sched_setaffinity(pid, {core})
        except ProcessLookupError:
            pass  # its end will be handled
        except OSError as error:  # the allowed cores have changed
            logger.warning("pid %d could not be kept on core %d: %s", pid, core, error)

    def _start_later(self, slot: Slot) -> float:
        """Start a process again after another death; returns the delay in seconds."""
        slot.deaths += 1
        delay = restart_delay(slot.deaths, random=random.random())
        slot.start_at = monotonic() + delay
        return delay

    def _await_end(self, slot: Slot, process: subprocess.Popen[bytes]) -> None:
        self._events.put(_Ended(slot, process.wait()))

    # ---- what happens

    def _handle_next(self) -> None:
        times = [slot.start_at for slot in self._slots if slot.start_at is not None]
        times += [slot.kill_at for slot in self._slots if slot.kill_at is not None]
        try:
            event = self._events.get(timeout=max(min(times) - monotonic(), 0.0) if times else None)
        except Empty:
            return
        if isinstance(event, _Ended):
            self._heed_end(event.slot, event.code)
        elif isinstance(event, _Restart):
            self._heed_restart(event)
        else:
            self._heed_signal(event)

    def _heed_end(self, slot: Slot, code: int) -> None:
        ran = monotonic() - slot.started_at
        pid = slot.close()
        if self._reports is not None:
            self._reports.ended(slot.number, pid)
        how = described(code)
        slot.cannot_work = code == CANNOT_WORK
        self._worked |= ran >= _HEALTHY or not slot.cannot_work
        if self._stopping:
            logger.info("worker process %d (pid %d) %s", slot.number, pid, how)
            if code and self._until_idle:
                self._code = self._code or Ending.INTERRUPTED
        elif slot.restarts:
            logger.debug("worker process %d (pid %d) %s, to be restarted", slot.number, pid, how)
            slot.start_at = monotonic()
        elif slot.cannot_work and self._reloads:
            logger.warning("worker process %d (pid %d) cannot work; it waits for the next change", slot.number, pid)
        elif self._is_hopeless():
            logger.error("no worker process can work; ending")
            self._code = CANNOT_WORK
            self._drain()
        elif code == 0 and self._until_idle:
            logger.info("worker process %d (pid %d) found nothing more to do", slot.number, pid)
        elif code == Ending.RECYCLE:
            logger.info("worker process %d (pid %d) is restarted, as it asked", slot.number, pid)
            slot.deaths, slot.start_at = 0, monotonic()
        else:
            if ran >= _HEALTHY:
                slot.deaths = 0
            delay = self._start_later(slot)
            logger.warning(
                "worker process %d (pid %d) %s after %.1f s; starting it again in %.1f s",
                slot.number, pid, how, ran, delay,
            )  # fmt: skip

    def _is_hopeless(self) -> bool:
        """Whether the settings are wrong: no process has ever worked, and none is left that might.

        A process that cannot begin while others work has probably met a database that is away just now.
        """
        return not self._worked and all(slot.process is None and slot.cannot_work for slot in self._slots)

    def _heed_restart(self, asked: _Restart) -> None:
        if self._stopping:
            return
        logger.info("%s: restarting", asked.why)
        for slot in self._slots:
            slot.deaths, slot.cannot_work = 0, False
            if slot.process is None:
                slot.start_at, slot.restarts = monotonic(), True
            elif not slot.restarts:  # a process that drains already must not get a second signal
                slot.restarts = True
                self._ask_to_drain(slot)
        self._grace, self._env = asked.grace, asked.env

    def _heed_signal(self, number: signal.Signals) -> None:
        self._signals += 1
        if self._signals == 1 and not self._stopping:
            logger.info("%s: the workers finish what is running, for at most %g s", number.name, self._grace)
            self._drain()
            return
        logger.warning("%s, the second signal: the workers leave now", number.name)
        for slot in self._slots:
            slot.send(signal.SIGINT)  # not SIGTERM: if the first is still pending, a second SIGTERM would be lost
        for slot in self._slots:
            if slot.kill_at is not None:
                slot.kill_at = min(slot.kill_at, monotonic() + _LAST_CALL)

    # ---- ending

    def _drain(self) -> None:
        """Start no more processes, and ask all to end."""
        self._stopping = True
        if self._reports is not None:
            self._reports.leaving()
        for slot in self._slots:
            if slot.start_at is not None and self._until_idle:
                self._code = self._code or Ending.INTERRUPTED
            slot.start_at = None
            if not slot.restarts:
                self._ask_to_drain(slot)

    def _ask_to_drain(self, slot: Slot) -> None:
        slot.kill_at = monotonic() + self._grace + _LAST_CALL
        slot.send(signal.SIGTERM)

    def _kill_late(self) -> None:
        for slot in self._slots:
            if slot.kill_at is None or monotonic() < slot.kill_at:
                continue
            slot.kill_at = None
            if slot.process is not None:
                logger.error("worker process %d (pid %d) did not drain and is killed", slot.number, slot.process.pid)
                slot.process.kill()
                self._code = self._code or int(self._stopping)


def restart_delay(deaths: int, *, random: float) -> float:
    """Seconds until the next start after fast deaths in a row: 0.5, doubled each time, at most 30; ± 20 %.

    `random`: uniform in [0, 1).
    """
    return backoff(deaths, first=_FIRST_DELAY, most=_LONGEST_DELAY) * (0.8 + 0.4 * random)


# ---- A worker process that has a supervisor: it drains when that is gone.


def drain_with_supervisor(drain: Callable[[], None]) -> None:
    """In a worker process: call `drain`, on a thread of its own, when the supervisor is gone and stdin ends with it.

    Processes that handlers start get /dev/null as their stdin, not the pipe.
    """
    # A worker that a thread of the supervisor has started has inherited blocked signals.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGINT})
    pipe = os.dup(0)
    with open(os.devnull, "rb") as null:
        os.dup2(null.fileno(), 0)

    def deadline() -> None:
        while os.read(pipe, 1):
            pass
        try:
            logger.warning("the supervisor is gone: finishing what is running")
        finally:  # even if a log filter or handler raises
            drain()

    threading.Thread(target=deadline, name="sa-jobqueue supervisor watch", daemon=True).start()
