"""The options of `sa-jobqueue work`: each is declared once, as a field."""

from __future__ import annotations

from dataclasses import fields

from sa_jobqueue import WorkerSettings
from sa_jobqueue.cli.config import PREFIX
from sa_jobqueue.cli.work import WorkOptions

#: Said on a command line alone.
ONCE = {"drain", "supervised", "tried_out", "said", "metrics_pipe"}


def test_every_setting_that_is_an_option_reaches_the_worker() -> None:
    """By its name; the others keep their defaults."""
    said = {
        "lease": 7.0, "grace": 8.0, "buffer": 9, "max_rescues": 3, "session_idle_timeout": 4.0, "poll": 0.5, "pooled": True,
        "log_jobs": True, "max_snapshot_age": 60.0, "max_lock_waits": 5, "max_replication_lag": 10.0, "max_active_connections": 40,
    }  # fmt: skip

    assert WorkOptions(**said).settings() == WorkerSettings(**said)  # type: ignore[arg-type]
    assert WorkOptions().settings() == WorkerSettings()


def test_each_option_has_the_environment_variable_of_its_name() -> None:
    """And the default of its field."""
    found = {name: (kind.__metadata__[0].envvar, default) for name, (kind, default) in WorkOptions.declared().items()}
    plain = WorkOptions()

    assert found == {
        one.name: (None if one.name in ONCE else f"{PREFIX}{one.name.upper()}", getattr(plain, one.name))
        for one in fields(WorkOptions)
    }
