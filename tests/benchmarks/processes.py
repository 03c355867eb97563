"""Programs under measurement in processes of their own: made ready first, then all let go at once.

with processes(2, drain_worker, address) as crew:
    crew.go()
    ...
crew.results
"""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

_SPAWN = multiprocessing.get_context("spawn")


class Crew:
    """Some processes that do the same."""

    def __init__(self, size: int, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self._returned: dict[int, Any] = {}
        self._members = [self._start(work, arguments) for _ in range(size)]
        try:
            for _, pipe in self._members:
                self._answer(pipe)
        except BaseException:
            self.kill()
            raise

    @property
    def results(self) -> list[Any]:
        """What those that have ended returned."""
        return list(self._returned.values())

    @property
    def pids(self) -> list[int]:
        return [process.pid or 0 for process, _ in self._members]

    def go(self) -> None:
        """Let them begin."""
        for _, pipe in self._members:
            pipe.send(None)

    def stop(self) -> None:
        """Say so to those that ask with `told_to_stop`."""
        for _, pipe in self._members:
            pipe.send(None)

    def check(self) -> None:
        """Raise what a process has died of; note the results of those that have ended."""
        for number, (_, pipe) in enumerate(self._members):
            if number not in self._returned and pipe.poll():
                self._returned[number] = self._answer(pipe)

    def wait(self) -> None:
        """Until all have ended."""
        for number, (process, pipe) in enumerate(self._members):
            if number not in self._returned:
                self._returned[number] = self._answer(pipe)
            process.join()

    def kill(self) -> None:
        for process, _ in self._members:
            process.kill()
            process.join()

    @staticmethod
    def _start(work: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Any, Connection]:
        ours, theirs = _SPAWN.Pipe()
        process = _SPAWN.Process(target=_member, args=(work, theirs, arguments), daemon=True)
        process.start()
        theirs.close()
        return process, ours

    @staticmethod
    def _answer(pipe: Connection) -> Any:
        try:
            what, said = pipe.recv()
        except EOFError:
            raise RuntimeError("a process under measurement has died") from None
        if what == "error":
            raise RuntimeError(f"a process under measurement failed:\n{said}")
        return said


@contextmanager
def processes(size: int, work: Callable[..., Any], *arguments: Any) -> Iterator[Crew]:
    """Start `work(ready, *arguments)` so many times; each calls `ready()` when it is, and goes on when all may."""
    crew = Crew(size, work, arguments)
    try:
        yield crew
        crew.wait()
    except BaseException:
        crew.kill()
        raise


def _member(work: Callable[..., Any], pipe: Connection, arguments: tuple[Any, ...]) -> None:
    def ready() -> Connection:
        pipe.send(("ready", None))
        pipe.recv()
        return pipe

    try:
        pipe.send(("result", work(ready, *arguments)))
    except BaseException:
        pipe.send(("error", traceback.format_exc()))
