"""Whether a worker can be in this process: not in a child of a worker, which runs handlers, nor where threads were patched."""

from __future__ import annotations

import sys
import threading

from ...errors import ConfigurationError

__all__ = ["enter_child", "refuse_in_child", "refuse_patched"]

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


def refuse_patched() -> None:
    """Raise ConfigurationError where gevent or eventlet have put their own in place of threads: a worker would run nothing, and hear
    no signal.
    """
    gevent, eventlet = sys.modules.get("gevent.monkey"), sys.modules.get("eventlet.patcher")
    if gevent is not None and gevent.is_module_patched("threading"):
        by = "gevent (monkey.patch_all())"
    elif eventlet is not None and eventlet.is_monkey_patched("thread"):
        by = "eventlet (monkey_patch())"
    else:
        return
    raise ConfigurationError(
        f"{by} has patched the threads of this process, and a worker cannot run so: declare the tasks in a module whose import "
        "patches nothing, and name that one to the worker"
    )
