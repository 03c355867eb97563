"""The command `sa-jobqueue`.

    sa-jobqueue migrate
    sa-jobqueue work --app shop.tasks --queue mail=10
    sa-jobqueue list --status failed

Each command is in a module of its name, or in a module of similar commands. `tree` lists all commands, `loading` loads a command
when it is called, `config` has the shared options, and `place` finds the database.
"""

from __future__ import annotations

import gc
import os
import signal

__all__ = ["main"]


def main() -> None:
    """Run the command line."""
    if (
        os.getpid() == 1
    ):  # in a container, where the system drops a SIGTERM without a handler: end as any other process does
        signal.signal(signal.SIGTERM, lambda number, frame: os._exit(128 + number))
    collects = gc.isenabled()
    gc.disable()  # what is imported stays
    from .tree import run  # most of the time before a command begins

    gc.freeze()
    if collects:
        gc.enable()
    run()
