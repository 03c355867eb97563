"""The settings of a worker: values that make no sense are refused."""

from __future__ import annotations

from typing import Any

import pytest

from sa_jobqueue import Worker, WorkerSettings
from sa_jobqueue.errors import ConfigurationError

NOWHERE = "postgresql://me@127.0.0.1:1/nowhere"


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ({"lease": 0.1}, "lease must be a number from 0.5 to 86400, not 0.1"),
        ({"lease": None}, "lease must be a number from 0.5 to 86400, not None"),
        ({"poll": float("nan")}, "poll must be a number from 0.01 to 3600, not nan"),
        ({"grace": True}, "grace must be a number from 0 to 86400, not True"),
        ({"hoard": "2"}, "hoard must be a number from 0.05 to 86400, not '2'"),
        ({"buffer": 1.5}, "buffer must be an integer from 0 to 100000, not 1.5"),
        ({"max_rescues": 5.0}, "max_rescues must be an integer from 1 to 1000, not 5.0"),
        ({"session_idle_timeout": 0}, "session_idle_timeout must be a number from 0.1 to 86400, not 0"),
        ({"max_snapshot_age": 0}, "max_snapshot_age must be a number from 0.1 to 604800, not 0"),
        ({"max_lock_waits": 1.5}, "max_lock_waits must be an integer from 0 to 100000, not 1.5"),
        ({"max_replication_lag": "5s"}, "max_replication_lag must be a number from 0.1 to 604800, not '5s'"),
        ({"max_active_connections": 0}, "max_active_connections must be an integer from 1 to 100000, not 0"),
        ({"pooled": "x"}, "pooled must be True or False, not 'x'"),
        ({"pooled": None}, "pooled must be True or False, not None"),
        ({"log_jobs": 1}, "log_jobs must be True or False, not 1"),
    ],
)
def test_a_wrong_setting_is_refused(setting: dict[str, Any], reason: str) -> None:
    """The message has its name, what is expected, and the value."""
    with pytest.raises(ConfigurationError) as refused:
        WorkerSettings(**setting)
    assert str(refused.value) == reason


def test_durations_may_be_whole_numbers() -> None:
    """And no idle timeout leaves the server's."""
    assert WorkerSettings(lease=60, grace=0, session_idle_timeout=None) == WorkerSettings(lease=60.0, grace=0.0)


@pytest.mark.parametrize(
    ("queues", "limits", "reason"),
    [
        ({}, {}, "a worker needs queues: {'default': 10}"),
        ({"a\udcff": 1}, {}, r"queue 'a\udcff' holds a lone surrogate, which is no Unicode text"),
        ({"a\x00": 1}, {}, r"queue 'a\x00' holds a NUL character, which PostgreSQL cannot store"),
        ({"a" * 201: 1}, {}, f"queue must have 1 to 200 characters, not 201: {'a' * 40!r}"),
        ({7: 1}, {}, "queue must be a string, not 7"),
        ({"a": 0}, {}, "queue 'a' needs 1 to 10,000 slots, not 0"),
        ({"a": 1}, {"max_jobs": -5}, "max_jobs must be an integer from 1 to 9,223,372,036,854,775,807, not -5"),
        ({"a": 1}, {"max_memory": 0}, "max_memory must be an integer from 1 to 9,223,372,036,854,775,807, not 0"),
    ],
)
def test_a_worker_that_could_not_work_is_not_made(queues: Any, limits: dict[str, Any], reason: str) -> None:
    """It is refused when it is made, before any connection."""
    with pytest.raises(ConfigurationError) as refused:
        Worker(NOWHERE, queues, **limits)
    assert str(refused.value) == reason
