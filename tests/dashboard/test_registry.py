"""What the dashboard does with the application's tasks: a form that enqueues a job, and a try of a job."""

from __future__ import annotations

import threading
from contextlib import suppress
from datetime import date
from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from sqlalchemy import Connection, Engine, NullPool, create_engine, func, insert, select, text
from sqlalchemy.ext.asyncio import create_async_engine

from sa_jobqueue import (
    AsyncJobContext,
    Job,
    JobContext,
    Registry,
    Secret,
    SecretKeys,
    Sensitive,
    Snooze,
    TaskName,
    Unique,
    enqueue,
    task,
)
from sa_jobqueue.dashboard import Access
from sa_jobqueue.errors import JobQueueError
from sa_jobqueue.models import AuditEntry, Signal, Step
from tests.dashboard.test_hostile import BAD
from tests.support.browsing import Seen, Viewer
from tests.support.databases import driver_url
from tests.support.factory import make_job, row

registry = Registry()


class Size(Enum):
    SMALL = "s"
    LARGE = "l"


@task(registry=registry, name="shop.report", queue="reports")
def report(
    day: date, pages: int, size: Size, kind: Literal["a", "b"] = "a", *, draft: bool = False, note: str | None, more: dict[str, int] = {}  # noqa: B006
) -> None: ...  # fmt: skip


@task(registry=registry, name="shop.write", dry_run=True, record=True)
def write(ctx: JobContext, fail: bool = False) -> dict[str, str]:
    ctx.logger.info("writing to postgresql://ada:secret@db/shop")
    ctx.progress(0.5, "half")
    ctx.session.execute(text("INSERT INTO tried VALUES (3, 'new')"))
    ctx.session.execute(text("UPDATE tried SET note = 'changed' WHERE id = 1"))
    ctx.session.execute(text("DELETE FROM tried WHERE id = 2"))
    ctx.session.add(enqueue(TaskName("shop.send"), card="4711"))
    ctx.session.commit()
    if fail:
        raise KeyError("missing")
    return {"note": "done"}


@task(registry=registry, name="shop.write_async", dry_run=True)
async def write_async(ctx: AsyncJobContext) -> None:
    await ctx.session.execute(text("INSERT INTO tried VALUES (3, 'new')"))


@task(registry=registry, name="shop.ship", dry_run=True)
async def ship(ctx: AsyncJobContext) -> None:
    await ctx.session.scalars(select(Job.id))
    label = await ctx.step("label", str)
    async with ctx.step_session("mark") as session:
        await session.execute(text("INSERT INTO tried VALUES (3, :label)"), {"label": label})
    await ctx.session.execute(text("UPDATE tried SET note = 'changed' WHERE id = 1"))
    await ctx.wait_signal("go")


@task(registry=registry, name="shop.snooze", dry_run=True)
def snooze(ctx: JobContext) -> Snooze:
    return Snooze(60)


@task(registry=registry, name="shop.commit", dry_run=True)
def commit(ctx: JobContext, by: str) -> None:
    ctx.session.execute(text("INSERT INTO tried VALUES (3, 'new')"))
    connection = ctx.session.connection()
    if by == "text":
        for end in ("COMMIT", "/* now */ rollback", "-- over\nEND"):
            with suppress(JobQueueError):
                connection.execute(text(end))
        connection.execute(text("INSERT INTO tried VALUES (5, 'new')"))
        connection.execute(text("COMMIT"))
    elif by == "connection":
        connection.commit()
    elif by == "driver":
        for end in (connection.connection.commit, connection.connection.rollback):
            with suppress(JobQueueError):
                end()
        connection.execute(text("INSERT INTO tried VALUES (5, 'new')"))
        connection.connection.commit()
    else:
        connection.rollback()
        connection.execute(text("INSERT INTO tried VALUES (3, 'new')"))
        connection.commit()


@task(registry=registry, name="shop.hostile", dry_run=True)
def hostile(ctx: JobContext, fail: bool) -> None:
    ctx.logger.warning(BAD)
    ctx.session.execute(text("INSERT INTO tried VALUES (3, :bad)"), {"bad": BAD})
    ctx.session.add(enqueue(TaskName(BAD).options(queue=BAD, key=BAD), bad=BAD))
    if fail:
        raise ValueError(BAD)


entered, leave = threading.Event(), threading.Event()


@task(registry=registry, name="shop.hang", dry_run=True)
def hang(ctx: JobContext) -> None:
    entered.set()
    leave.wait(60)


@task(registry=registry, name="shop.replace", unique=Unique(on_clash="replace"))
def replace() -> None: ...


@task(registry=registry, name="shop.plain")
def plain() -> None: ...


@pytest.fixture
def connection(engine: Engine) -> Any:
    with engine.begin() as made:
        made.execute(text("DROP TABLE IF EXISTS tried"))
        made.execute(text("CREATE TABLE tried (id int PRIMARY KEY, note text)"))
        made.execute(text("INSERT INTO tried VALUES (1, 'old'), (2, 'gone'), (4, 'other')"))
    with engine.connect() as made:
        yield made


def made(connection: Connection, name: str, status: str = "queued", **columns: Any) -> int:
    id = make_job(connection, status, task=name, **columns)
    connection.commit()
    return id


def rows(connection: Connection) -> dict[int, str]:
    connection.rollback()
    return {row.id: row.note for row in connection.execute(text("SELECT id, note FROM tried ORDER BY id"))}


# ---- the form


def test_the_form_has_a_field_for_each_argument(engine: Engine) -> None:
    """Of the kind of its annotation, and with its default."""
    page = Viewer(engine, registry=registry).see("/enqueue", task="shop.report")
    texts = {str(found["name"]) for found in page.all("input") if (found.get("name") or "").startswith("arg.")}
    choices = {str(found["name"]) for found in page.all("select") if (found.get("name") or "").startswith("arg.")}
    assert texts == {"arg.day", "arg.pages", "arg.note"}
    assert choices == {"arg.size", "arg.kind", "arg.draft"}
    assert [found["name"] for found in page.all("textarea")] == ["arg.more"]
    assert {found.get("value") for found in page.all("option")} >= {'"s"', '"l"', '"a"', '"b"', "true", "false"}
    assert "default: &#34;a&#34;" in page.html
    assert "shop.plain" in Viewer(engine, registry=registry).see("/enqueue").text


def test_a_job_is_enqueued_with_typed_arguments_and_options(engine: Engine, connection: Connection) -> None:
    """And its page is shown. The audit has no arguments."""
    viewer = Viewer(engine, Access.OPERATE.named("ada"), registry=registry)
    fields = {
        "task": "shop.report", "arg.day": "2030-01-31", "arg.pages": "7", "arg.size": '"l"', "arg.draft": "true", "arg.more": '{"a": 1}',
        "priority": "9", "delay": "2h", "key": "acme", "unique": "once",
    }  # fmt: skip
    page = viewer.do("enqueue", **fields)
    assert "Enqueued this job." in page.text
    job = row(connection, connection.scalar(select(func.max(Job.id))))
    assert job.args == {
        "day": "2030-01-31", "pages": 7, "size": "l", "draft": True, "note": None, "more": {"a": 1},
    }  # fmt: skip
    assert (job.task, job.queue, job.priority, job.concurrency_key) == ("shop.report", "reports", 9, "acme")
    assert (job.run_at - job.created_at).total_seconds() == 7_200
    assert job.uniqueness["key"] == "once"
    entry = connection.execute(select(AuditEntry.who, AuditEntry.action, AuditEntry.target)).one()
    assert entry[:2] == ("ada", "enqueue")
    assert entry.target == {
        "task": ["shop.report"],
        **{name: [fields[name]] for name in ("priority", "delay", "key", "unique")},
    }


def test_each_error_stands_at_its_field_and_what_was_typed_stays(engine: Engine, connection: Connection) -> None:
    fields = {
        "task": "shop.report", "arg.day": "yesterday", "arg.pages": "many", "arg.more": BAD, "arg.note": BAD, "queue": "*", "priority": "77",
        "delay": "soon", "key": "k" * 300, "unique": "u" * 600,
    }  # fmt: skip
    answer = Viewer(engine, registry=registry).send("enqueue", fields)
    assert answer.status_code == 400
    page = Seen(answer.text)
    wrong = {
        str(found["name"])
        for tag in ("input", "select", "textarea")
        for found in page.all(tag, **{"aria-invalid": "true"})
    }
    assert wrong == {f"arg.{name}" for name in ("day", "pages", "more", "size")} | {
        "queue",
        "priority",
        "delay",
        "key",
        "unique",
    }
    named = {found["id"] for found in page.all("small") if "id" in found}
    assert named == {f"{name}-error" for name in wrong}
    assert "A number is expected." in page.text
    typed = {str(found["name"]): found["value"] for found in page.all("input") if found.get("value")}
    assert (
        typed.items() >= {name: fields[name] for name in ("arg.day", "arg.pages", "arg.note", "queue", "delay")}.items()
    )
    assert "<script>alert" not in answer.text
    assert page.all("img") == []
    assert connection.scalar(select(func.count()).select_from(Job)) == 0


@pytest.mark.parametrize("value", ["[" * 100_000, "9" * 5_000, "1e999", "NaN", '"\\ud800"', '"\\u0000"', "null", "[]"])
def test_values_that_no_job_can_have_are_refused_in_words(engine: Engine, value: str) -> None:
    given = {"task": "shop.report", "arg.day": "2030-01-31", "arg.size": '"s"', "arg.pages": value, "arg.more": value}
    assert Viewer(engine, registry=registry).send("enqueue", given).status_code == 400


def test_without_a_registry_the_page_says_why_there_is_no_form(engine: Engine) -> None:
    viewer = Viewer(engine)
    assert "does not know the tasks of the application" in viewer.see("/enqueue").text
    assert viewer.send("enqueue", {"task": "shop.plain"}).status_code == 400


def test_a_viewer_enqueues_only_jobs_that_they_may_see(engine: Engine, connection: Connection) -> None:
    """And who may only look is shown neither a form nor the names of tasks."""
    for access in (
        Access(can={"enqueue"}, queues={"mail"}),
        Access(can={"enqueue"}, where=Job.concurrency_key == "acme"),
    ):
        viewer = Viewer(engine, access, registry=registry)
        assert "may not see a job with these values" in Seen(viewer.send("enqueue", {"task": "shop.plain"}).text).text
        assert viewer.send("enqueue", {"task": "shop.plain", "queue": "mail", "key": "acme"}).status_code == 303
    assert connection.scalar(select(func.count()).select_from(Job)) == 2
    page = Viewer(engine, Access.READ, registry=registry).see("/enqueue", task="shop.report")
    assert "You may not enqueue jobs." in page.text
    assert "shop." not in page.text.replace("shop.tasks", "")


def test_a_unique_job_does_not_replace_a_job_that_its_viewer_may_not_see(
    engine: Engine, connection: Connection
) -> None:
    viewer = Viewer(engine, registry=registry)
    viewer.do("enqueue", task="shop.replace", queue="sync", priority="4")
    mail = Viewer(engine, Access(can={"enqueue"}, queues={"mail"}), registry=registry)
    fields = {"task": "shop.replace", "queue": "mail", "priority": "9"}
    assert "A job that you may not see has this unique key." in Seen(mail.send("enqueue", fields).text).text
    assert connection.execute(select(Job.queue, Job.priority)).all() == [("sync", 4)]
    connection.rollback()
    viewer.do("enqueue", **fields)
    assert connection.scalars(select(Job.priority).where(Job.queue == "sync")).all() == [9]


def test_defaults_are_not_shown_where_arguments_are_masked(engine: Engine) -> None:
    page = Viewer(engine, registry=registry, format_args=lambda task, part, value: value).see(
        "/enqueue", task="shop.report"
    )
    assert "default: " not in page.text


# ---- a try


def test_a_try_shows_what_the_handler_wrote_and_keeps_nothing(engine: Engine, connection: Connection) -> None:
    """Rows by table, jobs, the result and log lines; the job is as it was, and the audit has the try."""
    id = made(connection, "shop.write")
    before = row(connection, id)
    viewer = Viewer(engine, Access.OPERATE, registry=registry)
    assert 'action="/act/try"' in viewer.see(f"/jobs/{id}").html
    page = Seen(viewer.send("try", {"id": id}).text)
    assert "completed The job would have ended like this." in page.text
    assert "tried 1 1 1" in page.text
    assert 'insert tried id=3 note "new"' in page.text
    assert 'update tried id=1 note "old" → "changed"' in page.text
    assert 'delete tried id=2 note "gone"' in page.text
    assert "other" not in page.text
    assert "shop.send default" in page.text
    assert '"note": "done"' in page.text
    assert "INFO writing to postgresql://ada:***@db/shop" in page.text
    assert rows(connection) == {1: "old", 2: "gone", 4: "other"}
    assert row(connection, id) == before
    assert connection.scalars(select(Job.task)).all() == ["shop.write"]
    assert connection.execute(select(AuditEntry.action, AuditEntry.target)).one() == (
        "try",
        {"id": [str(id)], "task": ["shop.write"]},
    )


def test_a_try_ends_at_a_wait_and_shows_the_steps(engine: Engine, connection: Connection) -> None:
    """A recorded step returns its result. The try records nothing, and does not take the signal."""
    id = made(connection, "shop.ship", args={})
    viewer = Viewer(engine, registry=registry)
    connection.execute(
        insert(Step).values(job_id=id, claim_token=1, revision=1, kind="step", name="label", result="L1")
    )
    connection.commit()
    page = Seen(viewer.send("try", {"id": id}).text)
    assert "suspended The job would wait for signal 'go'." in page.text
    assert "label returned its recorded result mark ended, and was not recorded" in page.text
    assert 'insert tried id=3 note "L1"' in page.text
    assert "update tried" not in page.text

    connection.execute(insert(Signal).values(name="go", payload={}))
    connection.commit()
    page = Seen(viewer.send("try", {"id": id}).text)
    assert "completed The job would have ended like this." in page.text
    assert "signal:go ended" in page.text
    assert 'update tried id=1 note "old" → "changed"' in page.text
    assert connection.scalars(select(Step.name)).all() == ["label"]
    assert connection.scalars(select(Signal.name)).all() == ["go"]
    assert rows(connection) == {1: "old", 2: "gone", 4: "other"}


def test_a_try_that_fails_shows_the_traceback(engine: Engine, connection: Connection) -> None:
    id = made(connection, "shop.write", "failed", args={"fail": True}, attempt=3, max_attempts=3)
    page = Seen(Viewer(engine, registry=registry).send("try", {"id": id}).text)
    assert "failed The job would have ended like this." in page.text
    assert "KeyError 'missing'" in page.text
    assert "in write" in page.text
    assert "joined.py" not in page.text
    assert rows(connection) == {1: "old", 2: "gone", 4: "other"}


@pytest.mark.parametrize("kind", ["async engine", "sync engine"])
@pytest.mark.parametrize("name", ["shop.write", "shop.write_async"])
def test_both_kinds_of_handlers_are_tried_with_both_kinds_of_engines(
    engine: Engine, connection: Connection, name: str, kind: str
) -> None:
    id = made(connection, name)
    url = driver_url(engine.url, "asyncpg" if kind == "async engine" else "psycopg")
    options = {"poolclass": NullPool}
    own = create_async_engine(url, **options) if kind == "async engine" else create_engine(url, **options)
    page = Seen(Viewer(own, registry=registry).send("try", {"id": id}).text)
    assert "completed The job would have ended like this." in page.text
    assert 'insert tried id=3 note "new"' in page.text
    assert rows(connection) == {1: "old", 2: "gone", 4: "other"}


@pytest.mark.parametrize("by", ["text", "connection", "driver", "rollback"])
def test_a_handler_that_commits_by_itself_leaves_nothing(engine: Engine, connection: Connection, by: str) -> None:
    """No write stays, before or after a COMMIT or ROLLBACK, which are refused."""
    id = made(connection, "shop.commit", args={"by": by})
    page = Seen(Viewer(engine, registry=registry).send("try", {"id": id}).text)
    assert "a_trial_is_never_committed" in page.text or "may not end the transaction" in page.text
    assert rows(connection) == {1: "old", 2: "gone", 4: "other"}


def test_only_jobs_of_tasks_that_say_so_are_tried(engine: Engine, connection: Connection) -> None:
    """Not while they run, not without the registry, and not by viewers of some jobs."""
    ids = [made(connection, "shop.plain"), made(connection, "shop.write", "running"), made(connection, "shop.unknown")]
    tried = made(connection, "shop.write")
    some = Viewer(engine, Access(can={"try"}, where=Job.id > 0), registry=registry)
    for viewer, id in [
        *((Viewer(engine, registry=registry), id) for id in ids),
        (Viewer(engine), tried),
        (some, tried),
    ]:
        assert "/act/try" not in viewer.see(f"/jobs/{id}").html
        assert viewer.send("try", {"id": id}).status_code == 404
    assert rows(connection) == {1: "old", 2: "gone", 4: "other"}


def test_what_is_masked_elsewhere_is_masked_in_a_try(engine: Engine, connection: Connection) -> None:
    """Also the columns of rows; if the function fails, nothing is shown."""
    id = made(connection, "shop.write")

    def mask(task: str, part: str, value: Any) -> Any:
        return {name: "…" if name in {"note", "card"} else shown for name, shown in value.items()}

    def fail(task: str, part: str, value: Any) -> Any:
        raise ValueError

    page = Viewer(engine, registry=registry, format_args=mask).send("try", {"id": id}).text
    assert 'insert tried id=3 note "…"' in Seen(page).text
    for secret in ("4711", "changed", '"gone"', '"done"'):
        assert secret not in Seen(page).text
    hidden = Seen(Viewer(engine, registry=registry, format_args=fail).send("try", {"id": id}).text).text
    assert "Its values are not shown" in hidden
    assert "4711" not in hidden


@pytest.mark.parametrize("fail", [False, True])
def test_what_a_tried_handler_says_is_text(engine: Engine, connection: Connection, fail: bool) -> None:
    id = made(connection, "shop.hostile", args={"fail": fail})
    answer = Viewer(engine, registry=registry).send("try", {"id": id})
    assert answer.status_code == 200
    assert "<script>alert" not in answer.text
    assert Seen(answer.text).all("img") == []


def test_a_handler_that_does_not_end_is_given_up(
    engine: Engine, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page answers meanwhile, and no other job is tried before the handler has ended."""
    monkeypatch.setattr("sa_jobqueue.dashboard.pages.registry.SECONDS", 0.0)
    monkeypatch.setattr("sa_jobqueue.dashboard.pages.registry._MARGIN", 0.1)
    id = made(connection, "shop.hang")
    viewer = Viewer(engine, registry=registry)
    try:
        for _ in range(2):
            answer = viewer.send("try", {"id": id})
            assert answer.status_code == 409
            assert "A handler that is being tried has not ended." in Seen(answer.text).text
        assert entered.is_set()
        assert viewer.see("/jobs")
    finally:
        leave.set()


# ---- secrets


def test_secrets_are_masked_on_every_page_and_in_the_form(engine: Engine, connection: Connection) -> None:
    """The page of a job, the list as a table and as CSV, the edit form, a try, and the form that enqueues, also after an error."""
    own = Registry(secrets=SecretKeys({"2026": b"k" * 32}, current="2026"))

    @task(registry=own, name="shop.sync", dry_run=True, record=True)
    def sync(
        ctx: JobContext, token: Annotated[str, Secret()] = "def-4711", pin: Annotated[int, Sensitive()] = 4711
    ) -> bool:
        ctx.session.add(enqueue(sync, "tok-4711", 4711))
        return token == "tok-4711"

    viewer = Viewer(engine, Access.ADMIN.named("ada"), registry=own)
    form = viewer.see("/enqueue", task="shop.sync")
    assert {str(found["name"]) for found in form.all("input", type="password")} == {"arg.token", "arg.pin"}
    wrong = viewer.send("enqueue", {"task": "shop.sync", "arg.token": "tok-4711", "arg.pin": "true"})
    done = viewer.do("enqueue", task="shop.sync", **{"arg.token": "tok-4711", "arg.pin": "4711"})
    id = connection.scalar(select(func.max(Job.id)))
    connection.rollback()
    tried = viewer.send("try", {"id": str(id)})
    pages = [
        form.html, wrong.text, done.html, tried.text, viewer.see(f"/jobs/{id}").html, viewer.see(f"/jobs/{id}/edit").html,
        viewer.get("/jobs", cols="id,args", status="queued").text,
        viewer.client.get("/jobs?cols=id,args", headers={"accept": "text/csv"}).text,
    ]  # fmt: skip
    assert "does not fit int" in wrong.text
    assert "true" in tried.text
    assert "(hidden)" in done.html
    for page in pages:
        assert "4711" not in page
        assert "$secret" not in page
    guess = viewer.get("/jobs", args='{"pin": {"$sensitive": 4711}}')
    assert "neither secret nor sensitive" in guess.text
    refused = viewer.send("edit", {"id": str(id), "args": '{"token": "tok-4711"}'})
    assert "only code, by Task.edit, can change them" in refused.text
