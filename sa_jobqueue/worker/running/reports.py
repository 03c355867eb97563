"""Where the ending of a run goes: to the writer, or to the end of its claim."""

from __future__ import annotations

from time import monotonic

from ...store import Answer
from .ending import InDoubt, MaybeWritten, RunEnding, ToWrite, Written
from .run import Run, Runs
from .writer import OutcomeWriter

__all__ = ["Reports"]


class Reports:
    """Hands what is to be written to `writer`. The claims of what needs no writing end in `runs`. For any thread."""

    def __init__(self, runs: Runs, writer: OutcomeWriter) -> None:
        self._runs, self._writer = runs, writer

    def report(self, run: Run, ending: RunEnding) -> None:
        """A run has ended."""
        run.ended = monotonic()
        if type(ending) is ToWrite:  # nearly all
            self._writer.add(ending.change)
        elif isinstance(ending, InDoubt):
            self._writer.doubt([ending.committed])
            self._writer.add(ending.change)
        elif isinstance(ending, MaybeWritten):
            self._writer.ask(ending.change)
        elif isinstance(ending, Written):
            self._runs.end([ending.change], Answer.APPLIED)
        else:
            self._runs.drop(run)
