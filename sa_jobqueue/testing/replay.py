"""Find the calls that a handler repeats outside its steps when it runs again: see `check_replay`."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Collection, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from types import CodeType, FrameType
from typing import Any, NamedTuple

from ..arguments.context import current_step
from ..errors import TaskError
from ..rules.outcomes import HandlerOutcome, Released
from ..tasks.tasks import function_of
from ..worker.running.call import Call
from ..worker.running.gathering import BatchRun
from ..worker.running.joined import On
from ..worker.running.run import Run
from ..worker.running.verdict import suspends
from .inline import Inline, Ran

#: Modules whose functions have no effect outside the process, or none that a replay repeats.
_HARMLESS = frozenset((
    "_collections_abc", "asyncio", "contextlib", "copy", "dataclasses", "enum", "functools", "json", "logging", "pydantic", "re", "sa_jobqueue", "typing",
    "_weakrefset",  # called when an object ends, at any place in the code
))  # fmt: skip
#: Modules written in C whose functions are listed, and the only functions of SQLAlchemy that are listed.
_SEEN_OF_C, _SEEN_OF_SQLALCHEMY = frozenset({"io", "_io", "posix", "nt"}), frozenset({"begin", "commit"})


class Repeated(NamedTuple):
    """A call outside steps that a second run of the handler repeats."""

    function: str
    """The function with its module, the name of a mock, or a step that the second run did not find in the records: "step 'label'"."""
    line: int = 0
    """The line of the call in the handler's file; 0 for a step."""
    code: str = ""
    """The source of that line."""


@dataclass(frozen=True, slots=True)
class Replay(Ran):
    """The second run of a handler, and the calls that it repeated."""

    repeated: Sequence[Repeated] = ()
    """In the order of the calls."""


class Twice(Inline):
    """Runs a job's handler twice: the first run ends without an outcome, as if its worker had been killed at the end."""

    def __init__(self, *given: Any, harmless: Collection[str], **options: Any) -> None:
        super().__init__(*given, **options)
        self._harmless, self._calls = tuple(harmless), list[dict[Repeated, None]]()
        self._second: Run | None = None

    def run(self, unit: Run) -> list[Ran]:
        """Run a `def` handler."""
        with self._watched(unit):
            (ran,) = super().run(unit)
        return self._replayed(ran) if (second := self._take_second()) is None else self.run(second)

    async def run_async(self, unit: Run, on: On) -> list[Ran]:
        """Run an `async def` handler."""
        with self._watched(unit):
            (ran,) = await super().run_async(unit, on)
        return self._replayed(ran) if (second := self._take_second()) is None else await self.run_async(second, on)

    def _take_second(self) -> Run | None:
        second, self._second = self._second, None
        return second

    def _replayed(self, ran: Ran) -> list[Ran]:
        """`ran`, with the repeated calls. If the first run failed, there was no second run, and no call was repeated."""
        found = list[Repeated]()
        if len(self._calls) > 1:
            first, second = self._calls
            found += (Repeated(f"step {name!r}") for name in dict.fromkeys(self._steps.recorded))
            found += (call for call in first if call in second)
        return [Replay(**{each.name: getattr(ran, each.name) for each in fields(ran)}, repeated=found)]

    def _succeed(self, call: Call, value: Any) -> None:
        if len(self._calls) == 1:
            self._go_back(call)
        else:
            super()._succeed(call, value)

    def _fail(self, call: Call, error: BaseException) -> list[BatchRun]:
        if len(self._calls) > 1 or not (suspends(error) or isinstance(error, HandlerOutcome)):
            return super()._fail(call, error)
        self._go_back(call)
        return []

    def _go_back(self, call: Call) -> None:
        call.close(failed=True)
        self._steps.keep()
        self._end(call.run, Released())
        self._second = self.this(call.run.job.id)

    @contextmanager
    def _watched(self, run: Run) -> Generator[None]:
        if isinstance(run, BatchRun):
            raise TaskError(f"check_replay is for handlers that may have steps, and {run.task.name!r} runs in batches")
        codes = set(_inner(function_of(run.task.handler).__code__))
        calls, before = dict[Repeated, None](), sys.getprofile()
        self._calls.append(calls)

        def see(frame: FrameType, event: str, called: Any) -> None:
            if event not in {"call", "c_call"} or current_step.get() is not None:
                return
            is_c = event == "c_call"
            caller = frame if is_c else frame.f_back
            if caller is not None and caller.f_code in codes and (is_c or frame.f_code not in codes):
                self._note(calls, caller, _name_of_c(called) if is_c else _name_of(frame))

        sys.setprofile(see)
        try:
            yield
        finally:
            sys.setprofile(before)

    def _note(self, calls: dict[Repeated, None], caller: FrameType, called: tuple[str, str] | None) -> None:
        if called is None:
            return
        module, name = called
        full, last = f"{module}.{name}".lstrip("."), name.rpartition(".")[2]
        if module.partition(".")[0] in _HARMLESS or full.startswith(self._harmless):
            return
        if module.startswith("sqlalchemy.") and last not in _SEEN_OF_SQLALCHEMY:
            return
        code = linecache.getline(caller.f_code.co_filename, caller.f_lineno).strip()
        calls[Repeated(full, caller.f_lineno, code)] = None


def _inner(code: CodeType) -> Generator[CodeType]:
    """The code of a function, and of the functions and comprehensions in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _inner(constant)


def _name_of(frame: FrameType) -> tuple[str, str] | None:
    """The module and the name of a called Python function. None for an operator or the creation of an object."""
    module, name, given = str(frame.f_globals.get("__name__")), frame.f_code.co_qualname, frame.f_locals
    if module == "contextlib" and name.endswith("contextmanager.<locals>.helper"):
        return given["func"].__module__, given["func"].__qualname__
    if module == "unittest.mock":
        mocked = getattr(given.get("self"), "_mock_name", None)
        return ("", str(mocked or "mock")) if name.endswith(".__call__") else None
    last = name.rpartition(".")[2]
    return None if last.startswith("__") and last != "__call__" else (module, name)


def _name_of_c(called: Any) -> tuple[str, str] | None:
    module = getattr(called, "__module__", None)
    return (module, called.__qualname__) if module in _SEEN_OF_C else None
