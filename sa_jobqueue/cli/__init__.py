"""The command `sa-jobqueue`.

    sa-jobqueue migrate
    sa-jobqueue work --app shop.tasks --queue mail=10
    sa-jobqueue list --status failed

Each command has a module of its name, or shares one with its kind. `tree` has the list of them, `loading` loads one when it is
called, `command` makes a command of a function, `options` and `config` have what they are told, `place` the way to the
database.
"""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import NoReturn

__all__ = ["main"]


def _end(number: int, frame: FrameType | None) -> NoReturn:
    """What a SIGTERM does to every other process that has nothing to finish, as while it imports an application."""
    os._exit(128 + number)


def main() -> None:
    """Run the command line."""
    if os.getpid() == 1:  # of a container: there the system drops a SIGTERM that has no handler
        signal.signal(signal.SIGTERM, _end)
    from .tree import run  # takes most of the time until a command begins

    run()
