"""The pages of a job, of errors, and what finds one, where the jobs are in a table of the application's own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine, create_engine, select
from sqlalchemy.orm import Session

from sa_jobqueue import Unique
from sa_jobqueue.dashboard import Access
from sa_jobqueue.migrations import OwnTable, upgrade_database
from sa_jobqueue.statements import discard_jobs
from tests.support.browsing import Viewer
from tests.support.own_jobs import Base, Job, Tenant, enqueue, write_note


@pytest.fixture
def own(empty_database_url: str) -> Iterator[Engine]:
    """Jobs of two tenants, one of each has failed; there is no table of the package's."""
    engine = create_engine(empty_database_url)
    with engine.begin() as connection:
        upgrade_database(connection)
        connection.exec_driver_sql("DROP SCHEMA sa_jobqueue CASCADE")
        Tenant.__table__.create(connection)  # type: ignore[attr-defined]
        OwnTable(Job).create(connection)
        Base.metadata.create_all(connection)
    with Session(engine) as session:
        for name in ("ada", "bob"):
            session.add(tenant := Tenant(name=name))
            session.flush()
            once = write_note.options(unique=Unique(key=f"once {name}"), columns={"tenant_id": tenant.id})
            session.add_all(
                [enqueue(once, f"of {name}"), enqueue(write_note.options(columns={"tenant_id": tenant.id}), "late")]
            )
        session.flush()
        session.execute(discard_jobs(Job.uniqueness.is_not(None), reason="away", job=Job))
        session.commit()
    yield engine
    engine.dispose()


def test_a_tenant_sees_and_changes_its_own(own: Engine) -> None:
    """The page of its job, its errors, a copy with its columns; and nothing of the other tenant's."""
    viewer = Viewer(own, Access(can=Access.ADMIN.can, where=Job.tenant_id == 1), job=Job)
    with Session(own) as session:
        mine, theirs = (
            session.scalars(select(Job).where(Job.tenant_id == n, Job.status == "failed")).one() for n in (1, 2)
        )
        page = viewer.see(f"/jobs/{mine.id}")
        assert '"text": "of ada"' in page.text
        assert "away" in page.text
        assert viewer.get(f"/jobs/{theirs.id}").status_code == 404
        assert "Failed jobs: 1. Kinds of errors: 1." in viewer.see("/errors").text
        assert viewer.get("/find", q=str(mine.id)).headers["location"] == f"/jobs/{mine.id}"
        assert viewer.get("/find", q=str(theirs.id)).status_code == 200
        viewer.do("edit", id=mine.id, args='{"text": "new"}', again="yes")
        viewer.do("copy", id=mine.id)
        for action in ("edit", "copy", "retry"):
            assert "Nothing was changed" in viewer.do(action, id=theirs.id, priority=9).text
        session.expire_all()
        assert (mine.status, mine.args) == ("queued", {"text": "new"})
        assert (theirs.status, theirs.priority) == ("failed", 4)
        copy = session.scalars(select(Job).order_by(Job.id.desc()).limit(1)).one()
        assert (copy.tenant_id, copy.duplicate_of) == (1, mine.id)
