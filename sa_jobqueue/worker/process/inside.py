"""Whether this process is a child of a worker: it runs handlers, and must not begin to work by itself."""

from __future__ import annotations

import threading

from ...errors import ConfigurationError

__all__ = ["enter_child", "refuse_in_child"]

_inside = threading.Event()


def enter_child() -> None:
    """From now on this process is a child."""
    _inside.set()


def refuse_in_child() -> None:
    """Raise ConfigurationError in a child. It imports the script of its worker, which must not start another worker there."""
    if _inside.is_set():
        raise ConfigurationError(
            'a child process that runs executor="process" tasks imports the script of its worker again, and that has '
            'started a worker: put it under `if __name__ == "__main__":`, as multiprocessing needs it, too'
        )
