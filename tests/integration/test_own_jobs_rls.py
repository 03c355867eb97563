"""Row-level security on a job table of the application's own: a tenant's sessions see its jobs, workers see all."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import Engine, create_engine, select, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ProgrammingError
from sqlalchemy.orm import Session

from sa_jobqueue import JobStatus, Unique, enqueue_many, enqueue_select, explain_job
from sa_jobqueue.migrations import OwnTable
from sa_jobqueue.migrations.grants import Can, grant_statements
from sa_jobqueue.statements import cancel_jobs
from tests.support.archiving import move
from tests.support.own_jobs import SCHEMA, Base, Job, Note, Tenant, enqueue, registry, write_note
from tests.support.working import drain

#: What an application puts into a revision behind the call that makes the table.
POLICIES = """
ALTER TABLE own_queue.job ENABLE ROW LEVEL SECURITY;
CREATE POLICY of_tenant ON own_queue.job TO "{web}"
    USING (tenant_id = nullif(current_setting('app.tenant', true), '')::integer)
    WITH CHECK (tenant_id = nullif(current_setting('app.tenant', true), '')::integer);
CREATE POLICY of_workers ON own_queue.job TO "{worker}" USING (true) WITH CHECK (true);
"""


@pytest.fixture
def roles(empty_database_url: str) -> Iterator[dict[str, str]]:
    """The URLs of the owner, of a role that enqueues and may look, and of one that works."""
    names = {name: f"{name}_{secrets.token_hex(6)}" for name in ("web", "worker")}
    owner = create_engine(empty_database_url)
    with owner.begin() as connection:
        Tenant.__table__.create(connection)  # type: ignore[attr-defined]
        OwnTable(Job).create(connection)
        Base.metadata.create_all(connection)
        connection.execute(Tenant.__table__.insert(), [{"name": "acme"}, {"name": "umbrella"}])  # type: ignore[attr-defined]
        for name in names.values():
            connection.execute(text(f"CREATE ROLE {name} LOGIN PASSWORD 'secret'"))
        granted = [
            *grant_statements(
                names["web"], [Can.ENQUEUE], schema=SCHEMA, columns=["tenant_id", "importance", "source"]
            ),
            f"GRANT SELECT ON own_queue.job, own_tenant TO {names['web']}",
            *grant_statements(names["worker"], [Can.WORK], schema=SCHEMA),
            f"GRANT SELECT, INSERT ON own_note TO {names['worker']}",
            f"GRANT USAGE ON SEQUENCE own_note_id_seq TO {names['worker']}",
        ]
        for statement in (*granted, POLICIES.format(**names)):
            connection.execute(text(statement.replace(":", r"\:")))
    url = make_url(empty_database_url)
    made = {
        role: url.set(username=name, password="secret").render_as_string(hide_password=False)
        for role, name in names.items()
    }
    yield {"owner": empty_database_url, **made}
    with owner.begin() as connection:
        for name in names.values():
            connection.execute(text(f"DROP OWNED BY {name}"))
            connection.execute(text(f"DROP ROLE {name}"))
    owner.dispose()


@pytest.fixture
def web(roles: dict[str, str]) -> Iterator[Engine]:
    engine = create_engine(roles["web"])
    yield engine
    engine.dispose()


@contextmanager
def of_tenant(engine: Engine, tenant: int) -> Iterator[Session]:
    """A session that says whose it is, as a request does."""
    with Session(engine, expire_on_commit=False) as session:
        session.execute(select(text(f"set_config('app.tenant', '{tenant}', true)")))
        yield session


def test_a_tenant_sees_and_enqueues_its_own_jobs_only(web: Engine) -> None:
    """By a flush, by one statement for many, and by a select; another tenant's job is refused by the server."""
    for tenant in (1, 2):
        task = write_note.options(columns={"tenant_id": tenant})
        with of_tenant(web, tenant) as session:
            session.add(enqueue(task, f"of {tenant}"))
            session.execute(enqueue_many([task.call("many")], job=Job))
            source = select(Tenant.name).where(Tenant.id == tenant)
            session.execute(enqueue_select(task, source, job=Job))
            session.commit()
    for tenant in (1, 2):
        with of_tenant(web, tenant) as session:
            assert session.scalars(select(Job.tenant_id)).all() == [tenant] * 3
        with of_tenant(web, tenant) as session:
            session.add(enqueue(write_note.options(columns={"tenant_id": 3 - tenant}), "forged"))
            with pytest.raises(ProgrammingError, match="violates row-level security policy"):
                session.commit()
    with Session(web) as session:
        assert session.scalars(select(Job.id)).all() == [], "a session that does not say whose it is sees nothing"
        session.add(enqueue(write_note.options(columns={"tenant_id": 1}), "of none"))
        with pytest.raises(ProgrammingError, match="violates row-level security policy"):
            session.commit()


def test_a_worker_runs_the_jobs_of_all_tenants(web: Engine, roles: dict[str, str]) -> None:
    """As a role that is neither the owner nor a superuser, and says no tenant."""
    for tenant in (1, 2):
        with of_tenant(web, tenant) as session:
            session.add(enqueue(write_note.options(columns={"tenant_id": tenant}), f"of {tenant}"))
            session.commit()
    drain(roles["worker"], registry)
    owner = create_engine(roles["owner"])
    with Session(owner) as session:
        assert session.scalars(select(Job.status)).all() == [JobStatus.COMPLETED] * 2
        assert set(session.scalars(select(Note.text))) == {"of 1", "of 2"}
    owner.dispose()
    with of_tenant(web, 1) as session:
        assert session.scalars(select(Job.status)).all() == [JobStatus.COMPLETED]


def test_a_tenant_acts_on_no_job_of_another(web: Engine) -> None:
    """The statements find none, because the policy hides it; so do those that lock."""
    with of_tenant(web, 1) as session:
        job = enqueue(write_note.options(columns={"tenant_id": 1}), "mine")
        session.add(job)
        session.commit()
    with of_tenant(web, 2) as session, pytest.raises(ProgrammingError, match="permission denied"):
        session.execute(cancel_jobs(Job.id == job.id, job=Job))
    with of_tenant(web, 2) as session:
        assert session.get(Job, job.id) is None


def test_a_unique_key_is_shared_by_all_tenants(web: Engine) -> None:
    """The keys are no rows of the job table: so the tenant belongs into the key."""
    for tenant, duplicate in ((1, False), (2, True)):
        once = write_note.options(columns={"tenant_id": tenant}, unique=Unique(key="once"))
        with of_tenant(web, tenant) as session:
            job = enqueue(once, "a")
            session.add(job)
            session.commit()
            assert job.is_duplicate is duplicate


def test_an_archive_without_policies_does_not_answer_those_whom_policies_hold(
    roles: dict[str, str], web: Engine
) -> None:
    """The policies of the jobs' table do not hold for it. Where the archive has policies of its own, these decide."""
    owner = create_engine(roles["owner"])
    with Session(owner) as session:
        task = write_note.options(columns={"tenant_id": 2})
        session.add(job := enqueue(task, "of umbrella"))
        session.flush()
        session.execute(cancel_jobs(Job.id == job.id, job=Job))
        move(session.connection(), job.id, job=Job)
        id = job.id
        name = make_url(roles["web"]).username
        session.execute(text(f'GRANT SELECT ON own_queue.archived_job, own_queue.worker TO "{name}"'))
        session.commit()
        assert explain_job(session, id, job=Job).reasons[0].what == "archived"
        with of_tenant(web, 1) as other:
            assert explain_job(other, id, job=Job).reasons[0].what == "missing"
        tenant = "(columns ->> 'tenant_id') = current_setting('app.tenant', true)"
        session.execute(text("ALTER TABLE own_queue.archived_job ENABLE ROW LEVEL SECURITY"))
        session.execute(
            text(f'CREATE POLICY of_tenant ON own_queue.archived_job TO "{name}" USING ({tenant})'.replace(":", r"\:"))
        )
        session.commit()
        for tenant_id, expected in ((1, "missing"), (2, "archived")):
            with of_tenant(web, tenant_id) as other:
                assert explain_job(other, id, job=Job).reasons[0].what == expected
    owner.dispose()
