"""What can be set about a worker, as one validated value made at the door; nothing below reads the environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .errors import ConfigurationError

__all__ = ["WorkerSettings"]


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """How a worker goes about its work. Durations are in seconds."""

    lease: float = 60.0
    """How long a claim is valid without renewal; renewed every third of it. After a crash the job waits this long."""
    poll: float = 1.0
    """The longest time between two looks at an idle queue; a NOTIFY makes it sooner, and 20 is the most where one listens."""
    grace: float = 30.0
    """After the first signal, the time that running jobs have to finish."""
    buffer: int = 1_000
    """Most jobs per queue that may be claimed ahead of a free slot; how many are depends on how fast they finish."""
    hoard: float = 2.0
    """A claimed job that has not been started for this long goes back to the queue."""
    unknown_delay: float = 15.0
    """A job whose task this worker does not know goes back for this long, and for up to 300 s if such jobs keep coming."""
    prune_every: float = 30.0
    """How often jobs whose time to be kept is over are deleted."""
    max_rescues: int = 5
    """After its worker died, or left while it ran, this many times, a job is failed."""
    pooled: bool = False
    """Behind a pooler in transaction mode: no setting of a session is relied on."""
    session_idle_timeout: float | None = None
    """The longest that a handler's transaction may sit idle. None: what the server says; where it says nothing, an hour, on the
    connections that the worker makes from a URL and not behind a pooler."""
    log_jobs: bool = False
    """Log how each job ended, at INFO; otherwise, but for failures, that is for DEBUG."""

    def __post_init__(self) -> None:
        for name, (kind, low, high) in _BOUNDS.items():
            value = getattr(self, name)
            if value is None and name == "session_idle_timeout":
                continue
            if isinstance(value, bool) or not isinstance(value, (int, kind)) or not low <= value <= high:
                said = "an integer" if kind is int else "a number"
                raise ConfigurationError(f"{name} must be {said} from {low} to {high}, not {value!r}")
        for name in ("pooled", "log_jobs"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigurationError(f"{name} must be True or False, not {getattr(self, name)!r}")


_BOUNDS: Mapping[str, tuple[type[float], float, float]] = {
    "lease": (float, 0.5, 86_400), "poll": (float, 0.01, 3_600), "grace": (float, 0, 86_400), "buffer": (int, 0, 100_000),
    "hoard": (float, 0.05, 86_400), "unknown_delay": (float, 0, 86_400), "prune_every": (float, 0.1, 86_400),
    "max_rescues": (int, 1, 1_000), "session_idle_timeout": (float, 0.1, 86_400),
}  # fmt: skip
