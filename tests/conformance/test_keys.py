"""Keys and units of jobs, over every driver, in both Sessions and on plain connections."""

from __future__ import annotations

from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from sa_jobqueue import Job, Registry, Unique, task
from tests.conformance.conftest import Client, settle

registry = Registry()


@task(registry=registry)
def sync(tenant: int) -> None: ...


async def test_jobs_with_and_without_keys_go_into_one_statement(client: Client, application: Engine) -> None:
    """In their order; one that has none has none. Any text but NUL is a key."""
    keys = ["42", None, "qu\"eue's\\{}", "NULL", "ä\n", None, "\x02", "42"]
    calls = [(sync.options(key=key or False, units=(number % 3) or None), number) for number, key in enumerate(keys)]
    with client.watched() as sent:
        async with client.open() as unit:
            await client.put(unit, *calls)
            await settle(unit.commit())

    assert len([one for one in sent if "INSERT" in one]) == 1
    with Session(application) as session:
        jobs = session.scalars(select(Job).order_by(Job.id)).all()
        assert [job.key for job in jobs] == keys
        assert [job.units for job in jobs] == [(number % 3) or None for number in range(len(keys))]
        assert list(session.scalars(select(Job.args["tenant"].as_integer()).order_by(Job.id))) == list(range(len(keys)))


async def test_a_job_without_them_is_inserted_as_before(client: Client, application: Engine) -> None:
    """Also after others have had some, in the same process."""
    async with client.open() as unit:
        await client.put(unit, (sync.options(key="a", units=2), 1))
        with client.watched() as sent:
            await client.put(unit, (sync, 2), (sync, 3))
        await settle(unit.commit())

    assert len(sent) == 1
    assert "concurrency_key" not in sent[0]
    assert "units" not in sent[0]


async def test_a_job_may_have_a_key_and_be_unique(client: Client, application: Engine) -> None:
    """They are two things: the unique key is who may be there, the key is whose turn it is."""
    once = sync.options(key="b", unique=Unique("one"), expires_in=60)
    async with client.open() as unit:
        await client.put(unit, (once, 1), (sync.options(key="a"), 2), (once, 3), (sync.options(units=5), 4))
        await settle(unit.commit())

    with Session(application) as session:
        jobs = session.scalars(select(Job).order_by(Job.args["tenant"].as_integer())).all()
        assert [(job.key, job.units, job.unique_key, job.is_duplicate) for job in jobs] == [
            ("b", None, "one", False), ("a", None, None, False), ("b", None, "one", True), (None, 5, None, False),
        ]  # fmt: skip
