"""The pytest plugin as an application has it: found by itself, beside other plugins, with a transaction that is rolled back."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest
from sqlalchemy import Engine, func, select, text

from sa_jobqueue import Job
from tests.support.commands import environment
from tests.support.nightly import nightly

pytest.importorskip("anyio")

SHOP = """
    from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
    from sa_jobqueue import AsyncJobContext, JobContext, enqueue, task

    class Base(DeclarativeBase):
        pass

    class Order(Base):
        __tablename__ = "plugin_orders"
        id: Mapped[int] = mapped_column(primary_key=True)
        receipt: Mapped[bool] = mapped_column(default=False)

    @task(name="shop.send")
    def send(ctx: JobContext, order_id: int) -> None:
        ctx.session.get_one(Order, order_id).receipt = True

    @task(name="shop.send_async")
    async def send_async(ctx: AsyncJobContext, order_id: int) -> None:
        (await ctx.session.get_one(Order, order_id)).receipt = True
"""

SYNC = """
    import os
    import pytest
    from sqlalchemy import create_engine
    from sqlalchemy.orm import Session

    @pytest.fixture
    def session():
        engine = create_engine(os.environ["SA_JOBQUEUE_DATABASE_URL"])
        with engine.connect() as connection:
            transaction = connection.begin()
            with Session(connection, join_transaction_mode="create_savepoint") as session:
                yield session
            transaction.rollback()
        engine.dispose()
"""

ASYNC = """
    import os
    import pytest
    from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
    {imports}

    @{fixture}
    async def session({arguments}):
        engine = create_async_engine(os.environ["SA_JOBQUEUE_DATABASE_URL"])
        async with engine.connect() as connection:
            transaction = await connection.begin()
            async with AsyncSession(
                connection, join_transaction_mode="create_savepoint", expire_on_commit=False
            ) as session:
                yield session
            await transaction.rollback()
        await engine.dispose()
"""

TESTS = """
    import pytest
    from sa_jobqueue import Job, enqueue
    from shop import Order, send, send_async

    @pytest.mark.parametrize("number", range(4))
    def test_a_receipt(session, jobqueue, number):
        session.add_all([order := Order(id=1), enqueue(send if number % 2 else send_async, 1)])
        session.commit()
        jobqueue.assert_enqueued("shop.send" if number % 2 else "shop.send_async", order_id=1)
        assert jobqueue.drain().outcomes == {"completed": 1}
        assert order.receipt
        with pytest.warns(RuntimeWarning, match="a job of task 'shop.send' was never added to a session"):
            enqueue(send, 1)
        session.commit()
"""

ASYNC_TESTS = """
    import pytest
    from sa_jobqueue import Job, enqueue
    from shop import Order, send, send_async

    {mark}
    @pytest.mark.parametrize("number", range(4))
    async def test_a_receipt({arguments}, number):
        session.add_all([order := Order(id=1), enqueue(send if number % 2 else send_async, 1)])
        await session.commit()
        await jobqueue.assert_enqueued("shop.send" if number % 2 else "shop.send_async", order_id=1)
        assert (await jobqueue.drain()).outcomes == {{"completed": 1}}
        assert order.receipt
        await session.commit()
"""


@pytest.fixture
def folder(tmp_path: Path, engine: Engine) -> Path:
    """A project with the tables in the database."""
    (tmp_path / "shop.py").write_text(dedent(SHOP))
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    with engine.begin() as connection:
        connection.execute(
            text("CREATE TABLE IF NOT EXISTS plugin_orders (id serial PRIMARY KEY, receipt boolean NOT NULL)")
        )
    return tmp_path


def run(folder: Path, url: str, *arguments: str, **files: str) -> str:
    """What pytest says there."""
    for name, source in files.items():
        (folder / f"{name}.py").write_text(dedent(source))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments],
        cwd=folder, env=environment(url), capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    return done.stdout + done.stderr


@pytest.mark.parametrize("options", [(), *nightly(("-n", "2"))], ids=["alone", "xdist"])
def test_nothing_stays_of_tests_that_commit_in_an_outer_transaction(
    folder: Path, url: str, engine: Engine, options: tuple[str, ...]
) -> None:
    """With pytest-asyncio the same calls are awaited, beside tests that await nothing. Also on two workers of pytest-xdist at
    once, in one database.
    """
    said = run(
        folder, url, *options, "--asyncio-mode=auto", conftest=SYNC, test_shop=TESTS,
        test_shop_async=_asyncio("auto") + ASYNC_TESTS.format(mark="", arguments="session, jobqueue"),
    )  # fmt: skip

    assert "8 passed" in said, said
    with engine.connect() as connection:
        assert connection.scalar(select(func.count()).select_from(Job)) == 0


def _asyncio(mode: str) -> str:
    """The fixture of a session, for this mode of pytest-asyncio."""
    fixture = "pytest.fixture" if mode == "auto" else "pytest_asyncio.fixture"
    return ASYNC.format(imports="import pytest_asyncio", fixture=fixture, arguments="")


@pytest.mark.nightly
def test_in_the_strict_mode_of_pytest_asyncio_too(folder: Path, url: str) -> None:
    """With its own fixtures and marks."""
    said = run(
        folder,
        url,
        "--asyncio-mode=strict",
        conftest=_asyncio("strict"),
        test_shop=ASYNC_TESTS.format(mark="@pytest.mark.asyncio", arguments="session, jobqueue"),
    )

    assert "4 passed" in said, said


def _anyio() -> str:
    backend = '\n\n    @pytest.fixture\n    def anyio_backend():\n        return "asyncio"\n'
    return ASYNC.format(imports="", fixture="pytest.fixture", arguments="anyio_backend") + backend


def test_with_anyio_too(folder: Path, url: str) -> None:
    """The fixture may be named before the session's."""
    said = run(
        folder,
        url,
        "-p",
        "no:asyncio",
        conftest=_anyio(),
        test_shop=ASYNC_TESTS.format(mark="@pytest.mark.anyio", arguments="anyio_backend, jobqueue, session"),
    )

    assert "4 passed" in said, said


ASYNC_FAILING = """
    import pytest
    from sa_jobqueue import enqueue
    from shop import send

    {mark}
    async def test_too_early({arguments}):
        session.add(enqueue(send.options(delay=60), 1))
        await session.flush()
        assert (await jobqueue.drain()).outcomes["completed"] == 1
"""


@pytest.mark.parametrize("plugin", ["asyncio", *nightly("anyio")])
def test_the_report_of_a_failed_async_test_has_the_jobs_too(folder: Path, url: str, plugin: str) -> None:
    """They are read in the event loop of the test, after it has failed."""
    if plugin == "asyncio":
        said = run(
            folder, url, "--asyncio-mode=auto",
            conftest=_asyncio("auto"), test_shop=ASYNC_FAILING.format(mark="", arguments="session, jobqueue"),
        )  # fmt: skip
    else:
        said = run(
            folder, url, "-p", "no:asyncio", conftest=_anyio(),
            test_shop=ASYNC_FAILING.format(mark="@pytest.mark.anyio", arguments="anyio_backend, jobqueue, session"),
        )  # fmt: skip

    assert "1 failed" in said, said
    assert "assert 0 == 1" in said, said
    assert "jobs of sa_jobqueue" in said, said
    assert "(shop.send) is due in " in said, said


def test_the_session_may_come_of_another_fixture_and_reports_of_failed_tests_say_what_waits(
    folder: Path, url: str
) -> None:
    """The setting names it; one that gives no session is refused, with the name of the setting. The report of a failed test
    has the jobs, so that one need not look for them, and its assertion at the line of the test, not within the testing kit.
    """
    said = run(
        folder,
        url,
        "-o",
        "sa_jobqueue_session=db",
        conftest=SYNC.replace("def session()", "def db()"),
        test_shop=TESTS.replace("session, jobqueue", "db, jobqueue").replace("session.", "db."),
        test_wrong="import pytest\n@pytest.fixture\ndef db(): return 7\ndef test(jobqueue): ...",
        test_failing="""
            from sa_jobqueue import enqueue
            from shop import send

            def test_too_early(db, jobqueue):
                db.add(enqueue(send.options(delay=60), 1))
                db.flush()
                assert jobqueue.drain().outcomes == {"completed": 1}

            def test_not_enqueued(db, jobqueue):
                jobqueue.assert_enqueued(send, order_id=7)
        """,
    )

    assert "2 failed, 4 passed, 1 error" in said, said
    assert "the fixture 'db' gives no session" in said, said
    assert "sa_jobqueue_session = ..." in said, said
    assert "jobs of sa_jobqueue" in said, said
    assert "(shop.send) is due in " in said, said
    assert ">       jobqueue.assert_enqueued(send, order_id=7)" in said, said
    assert "shop.send(order_id=7) is not enqueued." in said, said
    assert "enqueued.py" not in said, said
