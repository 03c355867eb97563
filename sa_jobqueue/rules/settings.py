"""The settings of a worker, as a validated value, made at the entrance. Nothing below reads the environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """How a worker works. Durations are in seconds."""

    lease: float = 60.0
    """How long a claim is valid without renewal. It is renewed every third of that. After a crash the job waits this long."""
    poll: float = 1.0
    """The longest pause between polls of an idle queue. A NOTIFY ends it early; a listening worker never waits more than 20 s. If this is
    1 to 5 s, and the lease is a minute, a listening worker reads all its empty queues together every 5 s instead."""
    grace: float = 30.0
    """The time that running jobs have to finish after the first signal."""
    buffer: int = 1_000
    """The most jobs per queue that are claimed ahead of a free slot. How many are depends on how fast jobs finish."""
    hoard: float = 2.0
    """A claimed job that has not been started for this long goes back to the queue."""
    unknown_delay: float = 15.0
    """A job whose task this worker does not know goes back to the queue for this long, or up to 300 s if such jobs keep coming."""
    prune_every: float = 30.0
    """The pause between deletions of the jobs whose retention is over."""
    archive_months: int | None = None
    """For how many months after its end a month of the archive is kept; then it is dropped. None: forever. Where workers differ, the
    shortest counts."""
    max_rescues: int = 5
    """A job fails after its worker has died, or left while the job ran, this many times."""
    pooled: bool = False
    """Behind a pooler in transaction mode: no setting of a session is relied on."""
    session_idle_timeout: float | None = None
    """The longest that a handler's transaction may be idle. None: the server's setting. If the server has none: an hour, on
    connections that the worker makes from a URL and not behind a pooler."""
    child_grace: float = 5.0
    """The time that a handler in a child process has to end after a cancel or a lost lease, before the process is killed."""
    max_child_jobs: int | None = None
    """A child process is replaced after it has run this many jobs. None: never."""
    max_snapshot_age: float | None = None
    """Claim less while the oldest transaction that keeps VACUUM from removing rows is older than this. None: at any age."""
    max_lock_waits: int | None = None
    """Claim less while more sessions than this wait for locks in the database. None: however many wait."""
    max_replication_lag: float | None = None
    """Claim less while a standby is further behind than this. None: however far it is behind."""
    max_active_connections: int | None = None
    """Claim less while more sessions than this are busy in the database, handlers' among them. None: however many are."""
    log_jobs: bool = False
    """Log how each job ended at INFO. Otherwise only failures are logged there, and the rest at DEBUG."""

    @property
    def thresholds(self) -> dict[str, float]:
        """Those that are set, of the pressure on the database."""
        return {name: value for name in _THRESHOLDS if (value := getattr(self, name)) is not None}

    def __post_init__(self) -> None:
        for name, (kind, low, high) in _BOUNDS.items():
            value = getattr(self, name)
            if value is None and name in _OPTIONAL:
                continue
            if isinstance(value, bool) or not isinstance(value, (int, kind)) or not low <= value <= high:
                expected = "an integer" if kind is int else "a number"
                raise ConfigurationError(f"{name} must be {expected} from {low} to {high}, not {value!r}")
        for name in ("pooled", "log_jobs"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigurationError(f"{name} must be True or False, not {getattr(self, name)!r}")


_THRESHOLDS = ("max_snapshot_age", "max_lock_waits", "max_replication_lag", "max_active_connections")
_OPTIONAL = frozenset({"session_idle_timeout", "archive_months", "max_child_jobs", *_THRESHOLDS})
_BOUNDS: Mapping[str, tuple[type[float], float, float]] = {
    "lease": (float, 0.5, 86_400), "poll": (float, 0.01, 3_600), "grace": (float, 0, 86_400), "buffer": (int, 0, 100_000),
    "hoard": (float, 0.05, 86_400), "unknown_delay": (float, 0, 86_400), "prune_every": (float, 0.1, 86_400),
    "archive_months": (int, 1, 1_200),
    "max_rescues": (int, 1, 1_000), "session_idle_timeout": (float, 0.1, 86_400), "child_grace": (float, 0, 86_400),
    "max_child_jobs": (int, 1, 1_000_000_000), "max_snapshot_age": (float, 0.1, 604_800), "max_lock_waits": (int, 0, 100_000),
    "max_replication_lag": (float, 0.1, 604_800), "max_active_connections": (int, 1, 100_000),
}  # fmt: skip
