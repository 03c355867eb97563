"""The command `top`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.console import Console

from ...errors import ConfigurationError
from ..config import Config
from ..place import name_of, open_engine, transaction
from .frame import frame
from .read import read_picture
from .reader import Seen
from .views import Stand

#: Failed jobs in the one picture of `--once`.
_FAILURES = 10


def top(
    config: Config,
    *,
    every: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.1, max=3_600, help="Seconds between two looks at the database.")
    ] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print one picture and leave; needs no terminal.")] = False,
) -> None:
    """Watch queues, tasks, workers and failed jobs, live.

    Keys: o overview, f failed jobs, w workers, t tasks, s schedules, q quit. Arrows or j and k select, enter shows a failed job, r runs
    it again, p pauses or resumes a schedule, in the overview a queue; each asks before. It reads in read-only transactions of at most 2 s a statement, and
    a replica will do.

    sa-jobqueue top
    sa-jobqueue top --every 5
    sa-jobqueue top --once
    """
    live = not once
    if live and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise ConfigurationError(
            "top needs a terminal to read keys from and to write to; --once prints one picture without one"
        )
    engine = open_engine(config)
    with transaction(config, engine.execution_options(postgresql_readonly=True)) as connection:
        picture = read_picture(connection, failures=_FAILURES)
        name = name_of(engine.url)
    if live:
        from .screen import show_live  # needs a system with termios

        show_live(engine, picture, name=name, every=every)
        return
    console = Console(highlight=False)
    console.print(frame(Seen(picture), Stand(), name=name, width=console.width))
