"""The dashboard of a job table of the application's own: its schedules, workflows and audit, and not the package's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine, create_engine, func, select
from sqlalchemy.orm import Session

from sa_jobqueue import Schedule, TaskName, Workflow
from sa_jobqueue.migrations import OwnTable, upgrade_database
from sa_jobqueue.models import AuditEntry, companions_of
from tests.support.browsing import Viewer
from tests.support.own_jobs import Base, Job, Tenant

BESIDE = companions_of(Job)
A_TASK = TaskName("shop.report")


@pytest.fixture
def own(empty_database_url: str) -> Iterator[Engine]:
    """A database with both: the package's table, and the application's."""
    engine = create_engine(empty_database_url)
    with engine.begin() as connection:
        upgrade_database(connection)
        Tenant.__table__.create(connection)  # type: ignore[attr-defined]
        OwnTable(Job).create(connection)
        Base.metadata.create_all(connection)
    with Session(engine) as session:
        session.add(Schedule("0 0 * * *", A_TASK, name="of the package"))
        session.add(Workflow("of the package"))
        session.add(BESIDE.schedule("0 * * * *", A_TASK, name="of the shop"))
        flow = Workflow.in_schema_of(Job)("of the shop")
        flow.after(flow.add(A_TASK), A_TASK)
        session.add(flow)
        session.commit()
    yield engine
    engine.dispose()


def test_pages_show_what_is_beside_the_jobs(own: Engine) -> None:
    viewer = Viewer(own, job=Job)
    for path in ("/schedules", "/workflows"):
        page = viewer.see(path)
        assert "of the shop" in page.text
        assert "of the package" not in page.text
    assert "shop.report" in viewer.see("/workflows/1").text


def test_actions_reach_what_is_beside_the_jobs(own: Engine) -> None:
    """And are noted there."""
    viewer = Viewer(own, job=Job)
    for action in (
        "pause_schedule",
        "resume_schedule",
        "run_schedule",
        "pause_workflow",
        "resume_workflow",
        "cancel_workflow",
    ):
        assert "Nothing" not in viewer.do(action, id=1).text
    assert (
        "Enqueued 4 jobs" in viewer.do("backfill", id=1, **{"from": "2026-01-01T00:00", "to": "2026-01-01T04:00"}).text
    )
    with own.connect() as connection:
        assert connection.scalar(select(func.count()).where(Job.schedule_id == 1)) == 5
        assert connection.scalar(select(func.count()).where(Job.status == "cancelled")) == 2
        assert connection.scalar(select(func.count()).select_from(BESIDE.audit)) == 7
        assert connection.scalar(select(func.count()).select_from(AuditEntry)) == 0
    assert viewer.see("/audit").text.count("of the shop") == 4
