"""A child process, as its worker sees it: how it is started, sent messages, and ended.

It is a new interpreter, never a fork, because a worker has threads. It leads a session of its own: Ctrl-C in a terminal does
not reach it, and it is killed together with what its handlers have started. It holds the read end of a pipe of which only the
worker has the write end: when the worker is gone, however it ended, the system kills the child.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack, suppress
from time import monotonic, sleep
from weakref import WeakSet

from ...util.log import get_logger
from ..process.supervisor import described
from .loading import ChildSetup
from .messages import Channel, Message, record_of

logger = get_logger(__name__)

#: Seconds that a child may take to import the application; and to receive a message, for which it should be waiting.
_START, _SEND = 120.0, 30.0
#: Seconds in which a child that cannot begin ends by itself; and in which a killed child has ended, unless it hangs in the
#: system.
_LAST, _DEATH = 2.0, 5.0
#: Seconds between two checks whether a process has ended, where the system does not tell.
_CHECK = 1.0
#: Imports make no garbage, and a search for it takes a sixth of a child's start (Python 3.11, November 2026).
_CODE = """\
import gc, sys
sys.path[:] = {path!r}
gc.disable()
from sa_jobqueue.worker.children.child_main import main
gc.enable()
main({end}, {life})
"""


#: The children of this process.
_alive: WeakSet[Child] = WeakSet()


class ChildUnavailable(Exception):
    """There is no child process to run a job."""


class Child:
    """A child process. One thread at a time uses it; `wake` and `kill` are for any thread."""

    def __init__(self) -> None:
        """Start the process; `begin` comes next. Raises ChildUnavailable."""
        self.jobs = 0
        """Jobs that it was given so far."""
        self.memory_unused = 0
        """Bytes of memory that were resident before its first job; 0 where the system does not tell."""
        self._lock = threading.Lock()
        self.killed = False
        """Whether it was killed from here. Any thread writes it; the thread that uses the child reads it."""
        self._gone = self._closed = False  # under the lock: its process id, or its descriptors, may be another's
        self._open = ExitStack()
        """Closes this process's descriptors for it."""
        self._poll = select.poll()
        self._end: int | None = None
        """A descriptor that is ready once the process has ended; None where the system has none: only Linux has it."""
        try:
            with ExitStack() as theirs:
                self._process = self._start(theirs)
        except OSError as error:  # no more descriptors, no memory, or no more processes
            self._close()
            raise ChildUnavailable(f"it could not be started: {error}") from error
        _alive.add(self)
        if hasattr(os, "pidfd_open"):
            with suppress(OSError):  # no more descriptors; a sandbox does not know it
                self._end = os.pidfd_open(self.pid)
                self._open.callback(os.close, self._end)
                self._poll.register(self._end, select.POLLIN)

    def _start(self, theirs: ExitStack) -> subprocess.Popen[bytes]:
        """Start the process. `theirs` closes here the descriptors that only the child needs. Raises OSError."""
        our_end, its_end = socket.socketpair()
        self._open.callback(our_end.close)
        theirs.callback(its_end.close)
        our_end.settimeout(_SEND)
        self._channel = Channel(our_end)
        life, self._life = _pipe(theirs, self._open)
        self._woken, self._waker = _pipe(self._open, self._open)
        os.set_blocking(self._woken, False)
        os.set_blocking(self._waker, False)
        self._poll.register(self._channel, select.POLLIN)
        self._poll.register(self._woken, select.POLLIN)
        code = _CODE.format(path=sys.path, end=its_end.fileno(), life=life)
        command = [sys.executable, "-c", code, f"sa-jobqueue child of {os.getpid()}"]
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, pass_fds=(its_end.fileno(), life), start_new_session=True
        )

    @property
    def pid(self) -> int:
        """Its process id, which is also the id of its process group."""
        return self._process.pid

    def begin(self, setup: ChildSetup) -> None:
        """Let it import the application. Raises ChildUnavailable, and then the process has ended."""
        until = monotonic() + _START
        try:
            self.send({"setup": setup})
            while monotonic() < until:
                messages = self.receive(until - monotonic())
                for message in messages:
                    if "broken" in message:
                        raise ChildUnavailable(message["broken"])
                    log_here(message)
                if any("ready" in message for message in messages):
                    self.memory_unused = self.resident() or 0
                    return
            raise ChildUnavailable(f"it was not ready within {_START:g} s")
        except (OSError, EOFError):
            raise ChildUnavailable(f"it {self.end(_LAST)} before it was ready") from None
        except BaseException:
            self.end()
            raise

    def send(self, message: Message) -> None:
        """Send it a message. Raises OSError if it is gone."""
        self._channel.send(message)

    def receive(self, seconds: float | None) -> list[Message]:
        """The messages that come within `seconds` (None: without limit), or until `wake`. Raises EOFError if the child is gone.

        The child's end of the socket may outlive it, in a process that a handler has forked. So the end of its process counts.
        """
        if self._end is None:
            seconds = _CHECK if seconds is None else min(seconds, _CHECK)
        ready = {number for number, _ in self._poll.poll(None if seconds is None else max(seconds, 0.0) * 1_000)}
        if self._woken in ready:
            with suppress(BlockingIOError):
                os.read(self._woken, 1_024)
        if self._channel.fileno() in ready:
            return self._channel.receive()
        if self._end in ready or (self._end is None and not ready and self._process.poll() is not None):
            raise EOFError
        return []

    def wake(self) -> None:
        """Let `receive` return at once, now or the next time."""
        with self._lock:
            if not self._closed:
                with suppress(BlockingIOError):  # it was woken very often
                    os.write(self._waker, b"\0")

    def is_ready(self) -> bool:
        """Whether it is alive and waits for a job. Records that it has logged meanwhile are logged here."""
        try:
            while messages := self.receive(0):
                for message in messages:
                    log_here(message)
        except (OSError, EOFError):
            return False
        return True

    def resident(self) -> int | None:
        """Bytes of memory that are resident; None where the system does not tell: only Linux does."""
        try:
            with open(f"/proc/{self.pid}/statm", encoding="ascii") as statm:
                return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except (OSError, IndexError):
            return None

    def leave(self) -> None:
        """Ask it to end by itself; check `has_ended` afterwards."""
        with suppress(OSError):
            self.send({"leave": True})

    def has_ended(self) -> bool:
        """Whether it has ended by itself. Then its descriptors are closed."""
        with self._lock:
            self._gone = self._gone or self._process.poll() is not None
        if self._gone:
            self._close()
        return self._gone

    def kill(self) -> None:
        """Kill it, and the processes that its handlers have started; `end` comes next."""
        with self._lock:
            self.killed = True
            if not self._gone:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.pid, signal.SIGKILL)

    def last_words(self) -> list[Message]:
        """After `kill`: the messages that it had sent before."""
        found: list[Message] = []
        until = monotonic() + _DEATH
        with suppress(OSError, EOFError):
            while (left := until - monotonic()) > 0:
                found += self.receive(left)
        return found

    def end(self, patience: float = 0.0) -> str:
        """Kill it and its group, and wait for its end. Returns how it ended, for people.

        `patience`: seconds in which it may end by itself.
        """
        if patience:
            until = monotonic() + patience
            while not self.has_ended() and monotonic() < until:
                sleep(0.01)
        self.kill()
        with self._lock:
            self._gone = True
        try:
            code = self._process.wait(_DEATH)
        except subprocess.TimeoutExpired:
            logger.error("the child process %d was killed and does not end: it hangs in the system", self.pid)
            return "hangs in the system and cannot be killed"
        finally:
            self._close()
        return described(code) + (", perhaps because the system had no memory left" if code == -signal.SIGKILL else "")

    def let_go(self) -> None:
        """Close the descriptors in a process that a handler on a thread has forked: the child must not wait for its end."""
        if not self._closed:
            self._closed = True  # their numbers soon belong to other files, also in a process forked from here
            os.close(self._life)
            self._channel.close()

    def _close(self) -> None:
        _alive.discard(self)
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._open.close()


def _pipe(reading: ExitStack, writing: ExitStack) -> tuple[int, int]:
    """Both ends of a pipe, to be closed by `reading` and `writing`."""
    read, write = os.pipe()
    reading.callback(os.close, read)
    writing.callback(os.close, write)
    return read, write


def log_here(message: Message) -> None:
    """Log a record of a child where the worker logs; ignore other messages."""
    if "log" in message:
        record = record_of(message)
        to = logging.getLogger(record.name)
        if to.isEnabledFor(record.levelno):
            to.handle(record)


def _let_go() -> None:
    for child in list(_alive):
        with suppress(Exception):
            child.let_go()


os.register_at_fork(after_in_child=_let_go)
