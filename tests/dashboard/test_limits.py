"""The page of limits and keys, and what is done to them there."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import quote

import pytest
from sqlalchemy import Connection, Engine, select, text

from sa_jobqueue import Job, KeyLimits, Rate
from sa_jobqueue.dashboard import Access
from sa_jobqueue.dashboard.actions.limits import shown_limits
from sa_jobqueue.models import AuditEntry, KeyRow, LimitRow
from sa_jobqueue.statements import set_limit
from tests.support.browsing import Seen, Viewer
from tests.support.busy_scene import Scene, fill
from tests.support.factory import make_job, make_jobs, wait_until_blocked_by
from tests.support.limits import KEYS, LIMITS, key, limit


@pytest.fixture
def scene(engine: Engine) -> Scene:
    with engine.begin() as connection:
        return fill(connection)


def section(page: Seen, title: str) -> str:
    """The text below a heading, with ages to the minute."""
    html = page.html.partition(f">{title}</h2>")[2].partition("<h2")[0]
    return re.sub(r"(\dm) \d+s", r"\1", Seen(html).text)


def limit_of(connection: Connection, name: str) -> Any:
    return connection.execute(select(LIMITS).where(LIMITS.c.name == name)).one()


def test_limits_are_shown_with_what_of_them_is_used(engine: Engine, scene: Scene) -> None:
    page = Viewer(engine, Access.READ).see("/limits")
    owners, keys = section(page, "Queues and tasks"), section(page, "Single keys")
    assert "queue mail set by hand 2 / 2 500/1m, burst 50" in owners
    assert "queue sync 1 1 running, strict" in owners
    assert "task shop.report 0 / 5" in owners
    assert "queue reports 0 paused the warehouse is being loaded" in owners
    assert "queue sync , key 42 1 / 1 5" in keys
    assert "queue sync , key 7 0 1 paused asked by the customer" in keys


def test_who_waits_for_whom_is_shown(engine: Engine, scene: Scene) -> None:
    """Limits all of whose permits are taken: by which jobs, and how many wait."""
    page = Viewer(engine, Access.READ).see("/limits")
    full = section(page, "At their limit")
    first, second, third = scene.running[:3]
    assert f"queue mail 2 / 2 12 {first} , {second} " in full
    assert f"queue sync , key 42 1 / 1 2 {third} " in full
    assert f"/jobs/{first}" in page.links


def test_a_rate_that_holds_jobs_back_says_until_when(engine: Engine) -> None:
    """Of a queue, of each key, and of a single key; a rate for whose next start no job waits is not named."""
    with engine.begin() as connection:
        for name in ("idle", "calls"):
            connection.execute(set_limit(name, rate=Rate(6, per=3_600, burst=1)))
        connection.execute(set_limit("sync", per_key=KeyLimits(rate=Rate(6, per=3_600, burst=1))))
        connection.execute(set_limit("sync", key="7", rate=Rate(12, per=3_600, burst=1)))
        make_jobs(connection, 2, queue="calls")
        for state in ("'calls', ''", "'idle', ''", "'sync', '7'", "'sync', '42'"):
            connection.exec_driver_sql(
                f"INSERT INTO sa_jobqueue.limit_state (owner, name, key, free_at) VALUES ('queue', {state}, now() + interval '5 min')"
            )
        for one in ("7", "42"):
            make_jobs(connection, 3, queue="sync", concurrency_key=one)
    full = section(Viewer(engine, Access.READ).see("/limits"), "At their limit")
    assert "queue calls – 2 Rate 6/1h: the next start is possible in " in full
    assert "queue sync , key 42 – 3 Rate 6/1h" in full
    assert "queue sync , key 7 – 3 Rate 12/1h" in full
    assert "idle" not in full


def test_what_is_paused_is_shown_with_what_waits_because_of_it(engine: Engine, scene: Scene) -> None:
    paused = section(Viewer(engine, Access.READ).see("/limits"), "Paused")
    assert "queue reports 25m ago 5 the warehouse is being loaded" in paused
    assert "queue sync , key 7 10m ago 0 asked by the customer" in paused


def test_a_queue_that_the_other_side_holds_back_says_until_when(engine: Engine, scene: Scene) -> None:
    with engine.begin() as connection:
        connection.execute(
            text(
                "INSERT INTO sa_jobqueue.limit_state (owner, name, key, blocked_until) VALUES ('queue', 'mail', '', now() + interval '5 min')"
            )
        )
    assert "held back by the other side in 5m" in section(Viewer(engine).see("/limits"), "Queues and tasks")


def test_limits_are_found_by_name_and_key(engine: Engine, scene: Scene) -> None:
    page = Viewer(engine, Access.READ).see("/limits", name="sync", key="42")
    assert "key 42" in section(page, "Single keys")
    assert "key 7" not in section(page, "Single keys")
    assert "mail" not in section(page, "Queues and tasks")


def test_of_many_keys_the_first_are_shown(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO sa_jobqueue.job_key (owner, name, key, running) SELECT 'queue', 'sync', n::text, 1 FROM generate_series(1, 300) AS n"
        )
    page = Viewer(engine).see("/limits")
    assert "The first 100 are shown." in page.text
    assert section(page, "Single keys").count("queue sync , key") == 100


def test_the_limits_of_a_queue_are_set(engine: Engine, scene: Scene) -> None:
    """As the form says them: what is empty is no limit. What the form does not show stays."""
    with engine.begin() as connection:
        limit(connection, "sync", when_full="drop_newest", max_waiting=3)
        seen = shown_limits(limit_of(connection, "sync")._mapping)
    viewer = Viewer(engine)
    fields = {
        "seen": seen,
        "owner": "queue",
        "name": "sync",
        "running": "20",
        "rate": "500/1m",
        "burst": "50",
        "key_rate": "5/s",
        "next": "/limits",
    }
    assert "The limits of queue sync are set." in viewer.do("set_limit", **fields).text
    with engine.connect() as connection:
        found = limit_of(connection, "sync")
    assert (found.running, found.rate_count, found.rate_seconds, found.rate_burst) == (20, 500, 60.0, 50)
    assert (found.key_running, found.key_rate_count, found.key_rate_seconds) == (None, 5, 1.0)
    assert (found.strict, found.when_full, found.max_waiting, found.held) == (True, "drop_newest", 3, True)
    assert "20" in section(viewer.see("/limits", name="sync"), "Queues and tasks")


def test_the_form_of_a_limit_shows_it_and_sends_it_back_as_it_is(engine: Engine, scene: Scene) -> None:
    """Whoever changes one field does not lose the others."""
    with engine.begin() as connection:
        limit(
            connection,
            "mail",
            rate_count=1_500,
            rate_seconds=3_600.0,
            rate_burst=50,
            key_running=3,
            key_rate_count=2,
            key_rate_seconds=0.5,
            key_rate_burst=9,
        )
        before = limit_of(connection, "mail")
    viewer = Viewer(engine)
    html = viewer.see("/limits", name="mail").html.partition('id="owners-title"')[2]
    form = html.partition('/act/set_limit"')[2].partition("</form>")[0]
    sent = {str(field["name"]): field["value"] for field in Seen(form).all("input")}
    assert sent["rate"] == "1,500/1h"
    assert sent["burst"] == "50"
    viewer.do("set_limit", **sent)
    with engine.connect() as connection:
        after = limit_of(connection, "mail")
    assert {**before._mapping, "version": 0} == {**after._mapping, "version": 0}


def test_a_form_that_has_not_shown_the_limits_that_there_are_is_refused(engine: Engine, scene: Scene) -> None:
    """It would take those away that it did not show: one for something else, and one that another has overtaken."""
    viewer = Viewer(engine)
    viewer.do("set_limit", name="new", running="6", key_running="2", key_rate="60/1m")
    for seen in ({}, {"seen": "running=6"}):
        answer = viewer.send("set_limit", {"name": "new", "running": "4", **seen})
        assert answer.status_code == 400
        assert "key_running=2" in answer.text
        (link,) = [one for one in Seen(answer.text).links if one.startswith("/limits?")]
        assert 'value="running=6, ' in viewer.see(link).html
    with engine.connect() as connection:
        found = limit_of(connection, "new")
    assert (found.running, found.key_running, found.key_rate_count) == (6, 2, 60)


def test_a_form_keeps_the_rates_that_it_does_not_show(engine: Engine, scene: Scene) -> None:
    """Rates of named units are not in the form: who raises another limit of each key does not remove them."""
    of_tokens = KeyLimits(running=2, rates=[Rate(1_000, per=60, unit="tokens")])
    with engine.begin() as connection:
        connection.execute(set_limit("new", per_key=of_tokens))
    Viewer(engine).do("set_limit", name="new", seen="key_running=2", key_running="3", key_rate="5/1s")

    with engine.connect() as connection:
        columns = LimitRow.key_running, LimitRow.key_rate_count, LimitRow.key_rates
        kept = connection.execute(select(*columns).where(LimitRow.name == "new")).one()
    assert kept == (3, 5, of_tokens.columns()["key_rates"])


def test_a_form_of_limits_that_are_gone_is_refused(engine: Engine, scene: Scene) -> None:
    """Another has removed them: the form would make them again."""
    viewer = Viewer(engine)
    viewer.do("set_limit", name="new", running="6")
    viewer.do("remove_limit", name="new")
    answer = viewer.send("set_limit", {"name": "new", "running": "4", "seen": "running=6"})
    assert answer.status_code == 400
    assert "expected none: they were removed meanwhile" in Seen(answer.text).text
    with engine.connect() as connection:
        assert connection.execute(select(LIMITS).where(LIMITS.c.name == "new")).all() == []


@pytest.mark.parametrize("key", [None, "99"])
def test_of_two_who_set_the_first_limits_of_a_place_one_is_refused(
    engine: Engine, scene: Scene, key: str | None
) -> None:
    """Neither form has shown any. The second one would take away what the first has set."""
    table, place = (LIMITS, {"name": "new"}) if key is None else (KEYS, {"name": "new", "key": key})
    with engine.connect() as connection, ThreadPoolExecutor(1) as pool:
        connection.execute(set_limit("new", key=key, running=6, rate=Rate(5)))
        second = pool.submit(Viewer(engine).send, "set_limit", {**place, "running": "4"})
        wait_until_blocked_by(connection)
        connection.commit()
        assert second.result().status_code == 400
        found = connection.execute(select(table).where(table.c.name == "new")).one()
    assert (found.running, found.rate_count) == (6, 5)


def test_the_limits_of_a_key_are_set_and_removed(engine: Engine, scene: Scene) -> None:
    viewer = Viewer(engine)
    viewer.do("set_limit", owner="queue", name="sync", key="99", running="3", weight="7")
    with engine.connect() as connection:
        found = connection.execute(select(KEYS).where(KEYS.c.key == "99")).one()
    assert (found.running, found.weight, found.rate_count) == (3, 7, None)
    assert (
        "Removed the limits of queue sync, key 99: "
        in viewer.do("remove_limit", owner="queue", name="sync", key="99", next="/limits").text
    )
    with engine.connect() as connection:
        assert connection.execute(select(KEYS).where(KEYS.c.key == "99")).all() == []


def test_the_limit_of_a_task_is_set_and_removed(engine: Engine, scene: Scene) -> None:
    viewer = Viewer(engine)
    viewer.do("set_limit", owner="task", name="shop.report", running="2", seen="running=5")
    with engine.connect() as connection:
        assert connection.scalar(select(LIMITS.c.running).where(LIMITS.c.owner == "task")) == 2
    viewer.do("remove_limit", owner="task", name="shop.report")
    with engine.connect() as connection:
        assert connection.scalar(select(LIMITS.c.running).where(LIMITS.c.owner == "task")) is None


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"running": "0"}, "running: '0' was given, expected a number from 1 to 1,000,000"),
        ({"running": "many"}, "running: 'many' was given, expected a number"),
        ({"running": "1000001"}, "expected a number from 1 to 1,000,000"),
        ({"rate": "fast"}, "rate: 'fast' was given, expected a number and a time, as in 500/1m or 20/s"),
        ({"rate": "0/1m"}, "a rate's count must be an integer from 1"),
        ({"rate": "5/9000d"}, "from a microsecond to a year"),
        ({"burst": "5"}, "burst: '5' was given, expected nothing: it belongs to a rate"),
        ({"rate": "5/s", "burst": "0"}, "burst: '0' was given, expected a number from 1"),
        ({"key_running": "-1"}, "key_running: '-1' was given"),
        ({"key_rate": "x"}, "key_rate: 'x' was given"),
        ({"key": "42", "weight": "1001"}, "weight: '1001' was given, expected a number from 1 to 1,000"),
        ({"name": ""}, "expected the name of a queue"),
        ({"owner": "key"}, "expected one of queue, task"),
    ],
)
def test_a_limit_that_cannot_be_read_is_said_and_nothing_is_set(
    engine: Engine, fields: dict[str, str], said: str
) -> None:
    answer = Viewer(engine).send("set_limit", {"name": "mail", **fields})
    assert answer.status_code == 400
    assert said in Seen(answer.text).text
    with engine.connect() as connection:
        assert connection.execute(select(LIMITS)).all() == []


def test_a_key_is_paused_with_a_reason_and_resumed(engine: Engine, scene: Scene) -> None:
    viewer = Viewer(engine)
    viewer.do("pause", owner="queue", name="sync", key="42", reason="asked by the customer")
    assert re.search(r"queue sync , key 42 \d+s ago 2 asked by the customer", section(viewer.see("/limits"), "Paused"))
    viewer.do("resume", owner="queue", name="sync", key="42")
    assert "key 42" not in section(viewer.see("/limits", n="1"), "Paused")
    with engine.connect() as connection:
        assert connection.scalar(select(KeyRow.weight).where(KeyRow.key == "42")) == 5


@pytest.mark.parametrize("key", [None, "42"], ids=["task", "key"])
def test_a_breaker_is_opened_by_name_and_closed_in_its_row(engine: Engine, key: str | None) -> None:
    """The audit has a row for each, with who did it. A queue has no breaker."""
    viewer = Viewer(engine, Access(can=Access.OPERATE.can, who="ada"))
    place = {"owner": "task", "name": "shop.call", **({} if key is None else {"key": key})}
    of = "task shop.call" + ("" if key is None else ", key 42")
    assert f"Opened the breaker of {of}: no job starts for 2 minutes" in viewer.do("open_breaker", **place).text
    page = viewer.see("/limits")
    assert "breaker open until" in page.text
    assert len(page.all("form", action="/act/close_breaker")) == 1
    assert f"Closed the breaker of {of}: its jobs start again." in viewer.do("close_breaker", **place).text
    assert "Nothing was changed" in viewer.do("close_breaker", **place).text
    assert "task: a queue has no breaker" in Seen(viewer.send("open_breaker", {**place, "owner": "queue"}).text).text
    with engine.connect() as connection:
        said = connection.execute(select(AuditEntry.action, AuditEntry.who, AuditEntry.target).order_by(AuditEntry.id))
        assert said.all() == [
            (action, "ada", {name: [value] for name, value in place.items()})
            for action in ("open_breaker", "close_breaker")
        ]
        assert connection.execute(select(LIMITS)).all() == []


def test_a_viewer_of_some_queues_sees_and_changes_the_limits_of_these_alone(engine: Engine, scene: Scene) -> None:
    """And not those of tasks, whose jobs may be in any queue."""
    with engine.begin() as connection:
        key(connection, "secret", "reports", running=1)
    viewer = Viewer(engine, Access(can=Access.ADMIN.can, queues=["sync"]))
    page = viewer.see("/limits")
    for other in ("mail", "reports", "shop.report", "secret", "warehouse"):
        assert other not in page.html
    assert "key 42" in page.text
    for fields in ({"name": "mail"}, {"owner": "task", "name": "sync"}, {"name": "reports", "key": "a"}):
        for action in ("set_limit", "remove_limit", "pause", "resume", "open_breaker", "close_breaker"):
            assert viewer.send(action, {**fields, "running": "1"}).status_code == 404
    with engine.connect() as connection:
        seen = shown_limits(limit_of(connection, "sync")._mapping)
    viewer.do("set_limit", name="sync", running="4", seen=seen)
    with engine.connect() as connection:
        assert connection.scalar(select(LimitRow.running).where(LimitRow.name == "sync")) == 4


@pytest.mark.parametrize(
    ("can", "expected"), [({"pause"}, {"pause", "resume", "open_breaker"}), ({"limit"}, {"set_limit", "remove_limit"})]
)
def test_a_viewer_sees_the_forms_that_they_may_use(engine: Engine, scene: Scene, can: Any, expected: set[str]) -> None:
    page = Viewer(engine, Access(can=can)).see("/limits")
    forms = {(found["action"] or "").rpartition("/")[2] for found in page.all("form", method="post")}
    assert forms == expected


# ---- now and then


def test_a_change_is_said_with_what_waits_behind_it(engine: Engine, scene: Scene) -> None:
    """Only the limits that differ are set, and the audit has each change."""
    with engine.begin() as connection:
        limit(connection, "mail", running=6, rate_count=10, rate_seconds=1.0, rate_burst=1, held=False)
        seen = shown_limits(limit_of(connection, "mail")._mapping)
    viewer = Viewer(engine)
    fields = {"name": "mail", "seen": seen, "running": "4", "rate": "10/s", "next": "/limits"}
    page = viewer.do("set_limit", **fields)
    assert "The limits of queue mail are set." in page.text
    assert "running 6 → 4. Waiting behind it: 12." in page.text
    with engine.connect() as connection:
        assert limit_of(connection, "mail").running == 4
        audit = connection.scalars(select(AuditEntry.target)).one()
    assert audit == {"owner": ["queue"], "name": ["mail"], "changes": ["running 6 → 4"]}
    html = viewer.see("/limits", name="mail").html
    same = {**fields, "seen": html.partition('name="seen" value="')[2].partition('"')[0]}
    assert "Nothing was changed." in viewer.do("set_limit", **same).text
    assert "Waiting behind it: 12." in html
    assert viewer.send("set_limit", {"name": "new"}).status_code == 400


# ---- a key


def test_the_page_of_a_key_shows_its_jobs_its_share_and_its_limits(engine: Engine, scene: Scene) -> None:
    """In each queue, also the limit that it has as each other key; and its form sets a limit of its own."""
    with engine.begin() as connection:
        make_jobs(connection, 3, queue="mail", concurrency_key="42")
        limit(connection, "mail", key_running=6)
        make_jobs(connection, 2, "failed", queue="sync", concurrency_key="42", finished_at="now")
    viewer = Viewer(engine)
    page = viewer.see("/keys/42")
    assert "Waiting 5 the oldest for 1h" in page.text
    assert "Ended in the last hour 2" in page.text
    assert "Failed in the last hour 2" in page.text
    assert re.search(r"queue mail 0 / 6 0.0 % 3 \d+s 1 ", page.text)
    assert re.search(r"queue sync 1 / 1 100.0 % 2 1h\S* (\d+m )?5 ", page.text)
    assert "/jobs?key=42&status=failed" in page.links
    form = page.html.partition(">mail</a>")[2].partition('/act/set_limit"')[2].partition("</form>")[0]
    assert "Waiting behind it: 3." in Seen(form).text
    sent = {str(field["name"]): field["value"] for field in Seen(form).all("input")}
    page = viewer.do("set_limit", **{**sent, "running": "4"})
    assert "running 6 as each key → 4. Waiting behind it: 3." in page.text
    assert re.search(r"queue mail 0 / 4 ", page.text)


@pytest.mark.parametrize("name", [" acme ", "two\nlines"])
def test_the_page_and_the_form_of_a_key_take_its_name_as_it_is(engine: Engine, name: str) -> None:
    with engine.begin() as connection:
        id = make_job(connection, queue="mail", concurrency_key=name)
    viewer = Viewer(engine)
    page = viewer.see(f"/keys/{quote(name)}")
    (link,) = [link for link in page.links if link.startswith("/jobs?key=") and "status" not in link]
    assert f'id="job-{id}"' in viewer.see(link).html
    sent = {
        str(field["name"]): field["value"]
        for field in Seen(page.html.partition('/act/set_limit"')[2].partition("</form>")[0]).all("input")
    }
    viewer.do("set_limit", **{**sent, "running": "4"})
    with engine.connect() as connection:
        assert connection.scalars(select(KeyRow.key)).all() == [name]


def test_of_a_task_as_a_whole_no_number_is_said_to_wait(engine: Engine) -> None:
    """No index counts its due jobs, and claims have not passed over all of them."""
    with engine.begin() as connection:
        make_jobs(connection, 1, task="send", queue="mail")
    page = Viewer(engine).do("set_limit", owner="task", name="send", running="2")
    assert "running none → 2." in page.text
    for seen in (page, Viewer(engine).see("/limits", name="send")):
        assert "Waiting behind it" not in seen.text


def test_a_key_is_paused_on_its_page_by_who_may(engine: Engine, scene: Scene) -> None:
    """Viewers of some queues see the key in these alone, and viewers of some jobs not at all."""
    with engine.begin() as connection:
        make_jobs(connection, 3, queue="mail", concurrency_key="42")
    page = Viewer(engine, Access(can={"pause"}, queues={"sync"})).see("/keys/42")
    assert "Waiting 2 " in page.text
    assert "mail" not in page.html
    assert {(found["action"] or "").rpartition("/")[2] for found in page.all("form", method="post")} == {"pause"}
    assert "/act/" not in Viewer(engine, Access.READ).see("/keys/42").html
    assert Viewer(engine, Access(can={"pause"}, where=Job.concurrency_key == "42")).get("/keys/42").status_code == 403


def test_the_limit_of_a_key_is_lowered_with_three_clicks(engine: Engine, scene: Scene) -> None:
    """From the overview: the page of limits, the key, and the button of the form that is open there."""
    viewer = Viewer(engine)
    assert "/limits" in viewer.see("/").links
    assert "/keys/42" in viewer.see("/limits").links
    page = viewer.see("/keys/42")
    assert [found for found in page.all("details") if "open" in found]


def test_a_reason_has_at_most_a_thousand_characters(engine: Engine) -> None:
    answer = Viewer(engine).send("pause", {"owner": "queue", "name": "mail", "reason": "x" * 1_001})
    assert (answer.status_code, "at most 1,000 characters, not 1,001" in answer.text) == (400, True)
