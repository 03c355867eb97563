"""The page of the database: what the doctor finds, sizes, and who holds old snapshots."""

from __future__ import annotations

import re
from collections.abc import Iterator
from uuid import uuid4

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.ext.asyncio import create_async_engine

from sa_jobqueue.dashboard import Access
from sa_jobqueue.doctor import CHECKS, Examination, look_at
from sa_jobqueue.migrations.grants import Can, grant_statements
from tests.support.browsing import Viewer
from tests.support.busy_scene import Scene, fill
from tests.support.databases import connect, driver_url
from tests.support.factory import make_job
from tests.support.failures import noted


@pytest.fixture
def scene(engine: Engine) -> Scene:
    with engine.begin() as connection:
        return fill(connection)


def test_each_check_is_a_row_the_worst_first(engine: Engine, scene: Scene) -> None:
    """With what was found, and what to do."""
    page = Viewer(engine, Access.READ).see("/database")
    checks = [
        str(found["id"]).removeprefix("check-") for found in page.all("tr") if str(found.get("id")).startswith("check-")
    ]
    assert sorted(checks) == sorted(one.name for one in CHECKS)
    levels = re.findall(
        r'<td><span class="state (ok|notice|problem)">',
        page.html.partition('id="findings-title"')[2].partition("</table>")[0],
    )
    assert levels == sorted(levels, key=["problem", "notice", "ok"].index)
    assert f"Problems {levels.count('problem')} " in page.text
    assert "To do:" in page.text


def test_tables_and_indexes_are_shown_with_their_sizes(engine: Engine, scene: Scene) -> None:
    page = Viewer(engine).see("/database")
    ids = {found.get("id") for found in page.all("tr")}
    assert {"table-job", "table-worker", "table-audit", "index-job_pkey", "index-job_claim_idx"} <= ids
    assert re.search(r"PostgreSQL \d+\.\d+", page.text)


def test_an_index_that_is_not_valid_is_marked(engine: Engine, database_url: str) -> None:
    with engine.begin() as connection:
        connection.execute(
            text("UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'sa_jobqueue.job_purge_idx'::regclass")
        )
    page = Viewer(engine).see("/database")
    row = page.html.partition('id="index-job_purge_idx"')[2].partition("</tr>")[0]
    assert "not valid" in row


def test_who_holds_an_old_snapshot_is_shown_with_its_statement(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is young is not worth a line."""
    with engine.connect() as holder:
        holder.execution_options(isolation_level="REPEATABLE READ")
        holder.execute(text("SELECT 'a report that takes long' FROM sa_jobqueue.job"))
        with engine.begin() as other:
            make_job(other)
        assert "a report that takes long" not in Viewer(engine).see("/database").html
        monkeypatch.setattr("sa_jobqueue.dashboard.pages.database._SHORT", 0.0)
        page = Viewer(engine).see("/database")
        rows = page.html.partition('id="holders-title"')[2].partition("</table>")[0]
    assert "a report that takes long" in rows
    assert "session" in rows


def test_a_viewer_of_some_queues_is_told_of_the_server_alone(engine: Engine) -> None:
    """No check that names queues, tasks or jobs, and nothing of what other sessions do."""
    with engine.connect() as holder:
        holder.execution_options(isolation_level="REPEATABLE READ")
        holder.execute(text("SELECT 'a report that takes long' FROM sa_jobqueue.job"))
        with engine.begin() as other:
            make_job(other, queue="secret", run_at="-infinity")
        page = Viewer(engine, Access(can=["read"], queues=["mail"])).see("/database")
    assert "secret" not in page.html
    assert "a report" not in page.html
    ids = {found.get("id") for found in page.all("tr")}
    assert "check-bloat" in ids
    assert not ids & {"check-queues", "check-waiting", "check-snapshot", "check-locks", "check-failures"}


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
def test_the_pages_are_read_over_async_drivers_too(
    engine: Engine, scene: Scene, database_url: str, driver: str
) -> None:
    made = create_async_engine(driver_url(database_url, driver))
    viewer = Viewer(made)
    failures: list[str] = []
    with viewer.client:
        for path in ("/", "/queues", "/limits", "/workers", "/database"):
            page = viewer.see(path)
            with noted(failures, path):
                assert "could not be looked at" not in page.text
                assert "live" in page.html
        viewer.client.portal.call(made.dispose)  # type: ignore[union-attr]
    assert not failures, "\n".join(failures)


@pytest.fixture
def reader(database_url: str) -> Iterator[Engine]:
    """An engine whose sessions have a role that may read, and nothing else."""
    role = f"reader_{uuid4().hex}"
    with connect(database_url) as connection:
        connection.execute(f"CREATE ROLE {role}")
        for statement in grant_statements(role, [Can.READ]):
            connection.execute(statement)
    made = create_engine(driver_url(database_url, "psycopg"), connect_args={"options": f"-c role={role}"})
    yield made
    made.dispose()
    with connect(database_url) as connection:
        connection.execute(f"DROP OWNED BY {role}")
        connection.execute(f"DROP ROLE {role}")


def test_a_role_that_may_only_read_sees_the_pages(engine: Engine, scene: Scene, reader: Engine) -> None:
    """What it may not do is said in the words of a refusal."""
    for path in ("/", "/queues", "/limits", "/workers", "/database"):
        assert "mail" in Viewer(reader, Access.READ).see(path).text or path == "/database"
    answer = Viewer(reader).send("pause", {"name": "mail"})
    assert answer.status_code == 403
    assert "sa-jobqueue grants" in answer.text


def test_a_role_without_any_right_is_told_so(engine: Engine, reader: Engine) -> None:
    """It may not even look which version the tables have."""
    with reader.connect() as connection:
        role = connection.scalar(text("SELECT current_user"))
    with engine.begin() as connection:
        connection.exec_driver_sql(f"DROP OWNED BY {role}")
    page = Viewer(reader, Access.READ).see("/jobs", expected=403)
    assert "sa-jobqueue grants --can read" in page.text


def test_plans_are_seen_over_a_connection_that_has_prepared_statements(engine: Engine) -> None:
    """psycopg prepares what runs often by itself, and forgets all of it with a rollback, also what the doctor has prepared."""
    with engine.connect() as connection:
        for _ in range(6):
            connection.execute(text("SELECT 1"))
        (plans,) = (one for one in look_at(Examination(connection)) if one.name == "plans")
        assert plans.level == "ok", plans.detail
        left = connection.scalar(text("SELECT count(*) FROM pg_prepared_statements WHERE name LIKE 'sa_jobqueue%'"))
        assert left == 0
