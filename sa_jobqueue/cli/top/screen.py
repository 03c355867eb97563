"""The live screen: draws what the reader has seen, and passes keys on, until q or Ctrl-C."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace

import sqlalchemy as sa
from rich.console import Console, ConsoleDimensions
from rich.live import Live

from .controls import QUIT, press
from .frame import body_lines, frame
from .read import Picture
from .reader import Reader, Wanted
from .terminal import Terminal
from .views import Stand, View


def show_live(engine: sa.Engine, picture: Picture, *, name: str, every: float) -> None:
    """Show this picture, and a new one `every` seconds. `name`: of the database."""
    console = Console(highlight=False)
    live = Live(console=console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
    with suppress(KeyboardInterrupt), _silence(), _terminal(live) as terminal, live, ExitStack() as stack:
        reader = Reader(engine, picture, every=every, tell=terminal.wake)
        stand = Stand()
        reader.read_again(_wanted(stand, console))
        reader.start()
        stack.callback(reader.stop)
        while True:
            # Rich would take it from COLUMNS and LINES where a shell has exported them, and these stay when the window changes.
            console.size = ConsoleDimensions(*os.get_terminal_size(sys.stdout.fileno()))
            seen = reader.seen
            live.update(frame(seen, stand, name=name, width=console.width, height=console.height), refresh=True)
            for key in terminal.pressed():
                if key == QUIT and stand.question is None:
                    return
                stand, action = press(key, stand, seen)
                stand = replace(stand, heard=seen.done)
                if action is not None:
                    reader.do(action)
            if (wanted := _wanted(stand, console)) != reader.wanted:
                reader.read_again(wanted)


def _wanted(stand: Stand, console: Console) -> Wanted:
    # Failed jobs are read as far as they can be scrolled to: some screens.
    failures = 5 * body_lines(console.height) if stand.view is View.FAILED else body_lines(console.height)
    return Wanted(failures, stand.view is View.SCHEDULES, stand.job)


def _terminal(live: Live) -> Terminal:
    return Terminal(sys.stdin.fileno(), suspended=live.stop, resumed=lambda: live.start(refresh=True))


@contextmanager
def _silence() -> Generator[None]:
    """Log nothing meanwhile: a line on stderr would stand across the picture."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)
