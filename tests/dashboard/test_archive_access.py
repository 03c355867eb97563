"""Who may see which jobs of the archive in the dashboard."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import (
    Engine,
    column,
    create_engine,
    exists,
    literal_column,
    or_,
    select,
    table,
    text,
    true,
)
from sqlalchemy.orm import Session, aliased

from sa_jobqueue.dashboard import Access
from sa_jobqueue.dashboard.filters import of_archive
from sa_jobqueue.dashboard.pages import PAGES
from sa_jobqueue.migrations import OwnTable, upgrade_database
from sa_jobqueue.models import ArchivedJob, Job, companions_of
from sa_jobqueue.statements import discard_jobs
from tests.support import own_jobs
from tests.support.archiving import ERROR, archived_job, move
from tests.support.browsing import Viewer
from tests.support.factory import make_job


@pytest.fixture(autouse=True)
def own(database_url: str) -> str:
    """A database of the test's own: its archive has no month yet."""
    return database_url


ACCESS = [
    Access(can=Access.ADMIN.can, queues=["mail"]),
    Access(can=Access.ADMIN.can, where=Job.queue == "mail"),
    Access(can=Access.ADMIN.can, where=or_(Job.meta["tags"][0].astext == "mine", Job.concurrency_key == "acme")),
]


@pytest.mark.parametrize("access", ACCESS, ids=["queues", "where", "where of several"])
def test_jobs_that_a_viewer_may_not_see_are_not_there(engine: Engine, access: Access) -> None:
    """Neither in the list, nor by their id, nor for the field in the head."""
    mine = archived_job(engine, "failed", queue="mail", task="mine", meta={"tags": ["mine"]}, errors=[ERROR])
    other = archived_job(
        engine, "failed", queue="sync", task="secret", errors=[ERROR], subject_type="Order", subject_id="7"
    )
    viewer = Viewer(engine, access)
    for page in PAGES:
        for id in (mine, other):
            answer = viewer.get(page.path.replace("{id}", str(id)))
            assert "secret" not in answer.text
    assert viewer.get(f"/jobs/{mine}").status_code == 200
    assert viewer.get(f"/jobs/{other}").status_code == 404
    for query in ({}, {"id": other}, {"task": "secret"}, {"subject": "Order:7"}, {"error": "Down"}, {"queue": "sync"}):
        assert f"/jobs/{other}" not in viewer.see("/archived", **query).links
    assert f"/jobs/{mine}" in viewer.see("/archived").links
    assert viewer.get("/find", q=str(mine)).headers["location"] == f"/jobs/{mine}"
    assert viewer.get("/find", q=str(other)).status_code == 200


OTHER = table("job", column("queue"), schema="sa_jobqueue")


@pytest.mark.parametrize(
    "where",
    [
        text("queue = 'mail'"),
        literal_column("queue") == "mail",
        Job.id.in_(select(Job.id).where(Job.queue == "mail")),
        exists(select(1).where(Job.queue == "mail")),
    ],
    ids=["text", "literal", "query", "exists"],
)
def test_a_condition_that_cannot_be_asked_of_the_archive_hides_all_of_it(engine: Engine, where: Any) -> None:
    """And no link leads there."""
    assert of_archive(where, Job, ArchivedJob) is None
    id = archived_job(engine, queue="mail")
    with engine.begin() as connection:
        make_job(connection, queue="mail")
    viewer = Viewer(engine, Access(can=Access.ADMIN.can, where=where))
    assert f"/jobs/{id}" not in viewer.see("/archived").links
    assert viewer.get(f"/jobs/{id}").status_code == 404
    assert not [one for one in viewer.see("/jobs").links if one.startswith("/archived")]


@pytest.mark.parametrize(
    "where",
    [aliased(Job).queue == "mail", OTHER.c.queue == "mail", own_jobs.Job.source == "mail"],
    ids=["alias", "table", "another class"],
)
def test_no_other_table_is_joined_to_the_archive(where: Any) -> None:
    """Each of its rows would be seen because of one that is there."""
    assert of_archive(where, Job, ArchivedJob) is None


def test_a_condition_on_jobs_is_one_on_the_archive() -> None:
    """Columns of the application's own are read from JSON, as what they are."""
    archived = companions_of(own_jobs.Job).archived_job
    condition = of_archive((own_jobs.Job.tenant_id == 3) & (own_jobs.Job.queue == "mail"), own_jobs.Job, archived)
    assert condition is not None
    said = str(condition.compile(compile_kwargs={"literal_binds": True}))
    assert said == (
        "CAST((own_queue.archived_job.columns ->> 'tenant_id') AS INTEGER) = 3 AND own_queue.archived_job.queue = 'mail'"
    )
    assert of_archive(true(), own_jobs.Job, archived) is not None
    typed, of_typed = own_jobs.TypedJob, companions_of(own_jobs.TypedJob).archived_job
    for one in (
        typed.document["a"].astext == "b",
        typed.number.is_(None),
        typed.price > 1,
        typed.urgent,
        typed.day.is_(None),
    ):
        assert of_archive(one, typed, of_typed) is not None


@pytest.fixture
def tenants(empty_database_url: str) -> Iterator[tuple[Engine, list[int]]]:
    """A job of each of two tenants, in the archive of a table of the application's own."""
    engine = create_engine(empty_database_url)
    with engine.begin() as connection:
        upgrade_database(connection)
        own_jobs.Tenant.__table__.create(connection)  # type: ignore[attr-defined]
        OwnTable(own_jobs.Job).create(connection)
        own_jobs.Base.metadata.create_all(connection)
    ids: list[int] = []
    with Session(engine) as session:
        for name in ("ada", "bob"):
            session.add(tenant := own_jobs.Tenant(name=name))
            session.flush()
            task = own_jobs.write_note.options(columns={"tenant_id": tenant.id})
            session.add(job := own_jobs.enqueue(task, f"of {name}"))
            session.flush()
            ids.append(job.id)
        session.execute(discard_jobs(own_jobs.Job.id.in_(ids), reason="away", job=own_jobs.Job))
        move(session.connection(), *ids, job=own_jobs.Job)
        session.commit()
    yield engine, ids
    engine.dispose()


def test_a_tenant_sees_its_own_archived_jobs(tenants: tuple[Engine, list[int]]) -> None:
    """By a column that only the application's table has."""
    engine, (mine, theirs) = tenants
    viewer = Viewer(engine, Access(can=Access.ADMIN.can, where=own_jobs.Job.tenant_id == 1), job=own_jobs.Job)
    page = viewer.see(f"/jobs/{mine}")
    assert '"text": "of ada"' in page.text
    assert "is in the archive" in page.text
    assert viewer.get(f"/jobs/{theirs}").status_code == 404
    assert [one for one in viewer.see("/archived").links if one.startswith("/jobs/")] == [f"/jobs/{mine}"]
    assert "/archived" in viewer.see("/jobs").links
    assert viewer.get("/find", q=str(theirs)).status_code == 200
    assert Viewer(engine).get(f"/jobs/{mine}").status_code == 404  # the package's own table has another archive


def test_where_policies_hide_jobs_the_archive_is_not_shown(engine: Engine) -> None:
    """Unless it has policies, too."""
    id = archived_job(engine)
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE sa_jobqueue.job ENABLE ROW LEVEL SECURITY"))
        connection.execute(text("ALTER TABLE sa_jobqueue.job FORCE ROW LEVEL SECURITY"))
        connection.execute(text("CREATE ROLE of_policies"))
        connection.execute(text("GRANT USAGE ON SCHEMA sa_jobqueue TO of_policies"))
        connection.execute(text("GRANT SELECT ON ALL TABLES IN SCHEMA sa_jobqueue TO of_policies"))
    role = create_engine(engine.url, connect_args={"options": "-c role=of_policies"})
    try:
        assert Viewer(role).get(f"/jobs/{id}").status_code == 404
        assert Viewer(role).see("/archived").links.count(f"/jobs/{id}") == 0
    finally:
        role.dispose()
        with engine.begin() as connection:
            connection.execute(text("DROP OWNED BY of_policies"))
            connection.execute(text("DROP ROLE of_policies"))
