"""The terminal: keys as they are pressed, and its settings put back however the program ends."""

from __future__ import annotations

import os
import re
import select
import signal
import termios
import tty
from collections.abc import Callable
from contextlib import ExitStack, suppress
from threading import main_thread
from types import FrameType, TracebackType
from typing import Any, Self

_NAMES = {
    "[A": "up", "OA": "up", "[B": "down", "OB": "down", "[5~": "page up", "[6~": "page down", "[H": "home", "[F": "end",
}  # fmt: skip
_KEY = re.compile(r"\x1b(?P<sequence>\[[0-9;?]*[ -/]*[@-~]|O.)|(?P<one>.)", re.DOTALL)
_LETTERS = {"\r": "enter", "\n": "enter", "\x1b": "escape"}


def keys_in(text: str) -> list[str]:
    """The keys that a terminal has sent: letters, and "up", "down", "page up", "page down", "home", "end", "enter", "escape"."""
    found: list[str] = []
    for match in _KEY.finditer(text):
        if sequence := match["sequence"]:
            found += [_NAMES[sequence]] if sequence in _NAMES else []
        else:
            found.append(_LETTERS.get(match["one"], match["one"]))
    return found


class Terminal:
    """Keys without Enter and without echo, until the end of the block; signals end it, stop it, or wake it.

    `suspended` and `resumed` are called around a stop by Ctrl-Z.
    """

    def __init__(self, fd: int, *, suspended: Callable[[], None], resumed: Callable[[], None]) -> None:
        self._fd = fd
        self._suspended, self._resumed = suspended, resumed
        self._stack = ExitStack()
        self._to_stop = False

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            saved = termios.tcgetattr(self._fd)
            stack.callback(self._put_back)
            self._saved = saved
            self._reading, self._writing = os.pipe()
            os.set_blocking(self._reading, False)
            os.set_blocking(self._writing, False)
            stack.callback(os.close, self._reading)
            stack.callback(signal.set_wakeup_fd, signal.set_wakeup_fd(self._writing))
            for number, handler in {
                signal.SIGTERM: self._end,
                signal.SIGHUP: self._end,
                signal.SIGTSTP: self._stop,
                signal.SIGCONT: self._go_on,
                signal.SIGWINCH: _nothing,
            }.items():
                stack.callback(signal.signal, number, signal.signal(number, handler))
            tty.setcbreak(self._fd)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        writing, self._writing = self._writing, -1  # of no use to `wake` from now on
        self._stack.close()
        os.close(writing)

    def wake(self) -> None:
        """End a wait for keys. Any thread may call it."""
        with suppress(OSError):  # full: it is awake; closed: it is over
            os.write(self._writing, b"\0")

    def pressed(self) -> list[str]:
        """Wait for keys, for a signal or for `wake`; return the keys, if there are any. A terminal that is gone presses q."""
        ready, _, _ = select.select([self._fd, self._reading], [], [])
        with suppress(BlockingIOError):
            os.read(self._reading, 4_096)
        if self._to_stop:
            self._suspend()
        if self._fd not in ready:
            return []
        try:
            given = os.read(self._fd, 1_024)
        except OSError:
            return ["q"]
        return keys_in(given.decode(errors="ignore")) if given else ["q"]

    def _suspend(self) -> None:
        """Give the terminal back as it was, stop as Ctrl-Z would have stopped, and take it again."""
        self._to_stop = False
        self._suspended()
        self._put_back()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        # To this thread, so that it does not go on before it is stopped.
        signal.pthread_kill(main_thread().ident or 0, signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, self._stop)
        tty.setcbreak(self._fd)
        self._resumed()

    def _put_back(self) -> None:
        with suppress(termios.error):  # the terminal is gone
            termios.tcsetattr(self._fd, termios.TCSADRAIN, self._saved)

    def _end(self, number: int, frame: FrameType | None) -> Any:
        signal.signal(number, signal.SIG_IGN)  # a second one must not break off what puts the terminal back
        raise SystemExit(128 + number)

    def _stop(self, number: int, frame: FrameType | None) -> Any:
        self._to_stop = True

    def _go_on(self, number: int, frame: FrameType | None) -> Any:
        tty.setcbreak(self._fd)  # a shell that has stopped it by itself has put its own settings there


def _nothing(number: int, frame: FrameType | None) -> Any:
    """The signal only ends the wait."""
