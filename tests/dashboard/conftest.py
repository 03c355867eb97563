"""What the tests of the dashboard share."""

from __future__ import annotations

from datetime import timedelta

import pytest

from sa_jobqueue.dashboard import app as site
from sa_jobqueue.dashboard import database
from sa_jobqueue.dashboard.pages import database as doctoring


@pytest.fixture
def impatient() -> None:
    """The dashboard gives up as soon as it does elsewhere."""


@pytest.fixture(autouse=True)
def patient(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The dashboard does not give up because a busy machine stands still for some seconds."""
    if "impatient" not in request.fixturenames:
        monkeypatch.setattr(database, "PATIENCE", timedelta(seconds=20))
        monkeypatch.setattr(doctoring, "PATIENCE", timedelta(seconds=20))
        monkeypatch.setattr(doctoring, "_WHOLE", 20.0)
        monkeypatch.setattr(site, "_PATIENCE", 20.0)
