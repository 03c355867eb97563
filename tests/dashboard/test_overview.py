"""The first page: whether all is well, and where it is not."""

from __future__ import annotations

import json
import re
import threading
from datetime import UTC
from itertools import count, pairwise
from typing import Any
from urllib.parse import parse_qsl

import pytest
from sqlalchemy import Engine, event, text, update

from sa_jobqueue.dashboard import Access
from sa_jobqueue.dashboard.activity import bars, points
from sa_jobqueue.dashboard.pages import database as doctoring
from sa_jobqueue.dashboard.pages.database import Examined
from sa_jobqueue.dashboard.request import PageContext
from sa_jobqueue.dashboard.shared import Kept
from sa_jobqueue.doctor import CHECKS, Finding
from sa_jobqueue.models import Job, Stat
from sa_jobqueue.rules.lifecycle import COUNTED
from sa_jobqueue.rules.tally import BUCKETS
from tests.support.browsing import Seen, Viewer
from tests.support.busy_scene import Scene, add_backlog, add_stats, fill, make_worker
from tests.support.factory import make_job
from tests.support.limits import limit
from tests.support.waiting import wait_until


@pytest.fixture
def scene(engine: Engine) -> Scene:
    with engine.begin() as connection:
        return fill(connection)


def charts(page: Seen) -> list[dict[str, Any]]:
    """What the page's charts are drawn from."""
    return [json.loads(found["data-chart"] or "") for _, found in page.elements if "data-chart" in found]


def test_the_numbers_of_all_queues_are_added_up(engine: Engine, scene: Scene) -> None:
    page = Viewer(engine).see("/")
    for said in (
        "Due now 19 22 queued",
        "Running 4 live workers: 2, 1 stale",
        "Failed 9 still kept",
        "Oldest wait 1h",
    ):
        assert said in page.text


def test_outcomes_are_a_stacked_chart_and_a_table(engine: Engine, scene: Scene) -> None:
    """By minute; each outcome that there was, as it is counted."""
    page = Viewer(engine).see("/", window="1h")
    throughput, _, waits = charts(page)
    assert throughput["stacked"]
    assert [one["label"] for one in throughput["series"]] == ["completed", "retried", "failed", "cancelled"]
    at = throughput["at"]
    assert len(at) in (60, 61)
    assert {after - before for before, after in pairwise(at)} == {60}
    assert all(len(one["values"]) == len(at) for one in throughput["series"])
    assert sum(throughput["series"][2]["values"]) > 0
    assert [one["label"] for one in waits["series"]] == ["p50", "p95", "p99"]
    p50, p95 = waits["series"][0]["values"][5], waits["series"][1]["values"][5]
    assert 0.05 <= p50 <= 0.1 < p95 <= 1.0
    assert page.text.count("From (UTC)") == 2 + 1
    assert "up to 50 ms" in page.text


@pytest.mark.parametrize(
    ("window", "steps", "seconds"), [("5m", (5, 6), 60), ("24h", (95, 96, 97), 900), ("7d", (83, 84, 85), 7_200)]
)
def test_the_time_shown_can_be_chosen(
    engine: Engine, scene: Scene, window: str, steps: tuple[int, ...], seconds: int
) -> None:
    """Its steps are whole ones."""
    throughput = charts(Viewer(engine).see("/", window=window))[0]
    assert len(throughput["at"]) in steps
    assert all(at % seconds == 0 for at in throughput["at"])


def test_a_window_that_there_is_not_is_said(engine: Engine) -> None:
    assert "expected one of 5m, 1h, 24h, 7d" in Viewer(engine).see("/", expected=400, window="9y").text


def test_a_rate_is_that_of_the_minute(engine: Engine) -> None:
    """90 jobs in each whole minute are 90 a minute, whatever the window; one that has just begun is not guessed from."""
    with engine.begin() as connection:
        add_stats(connection, "mail", "send", minutes=300, each=0, failed=0)
        connection.exec_driver_sql("UPDATE sa_jobqueue.stat SET completed = 90, retried = 0, cancelled = 0")
    for window in ("1h", "24h"):
        (completed, *_), at = (one := charts(Viewer(engine).see("/", window=window))[0])["series"], one["at"]
        assert set(completed["values"][-8:-1]) == {90.0}, (window, at)


def test_a_wait_beyond_the_last_bound_is_said_to_be_longer(engine: Engine) -> None:
    """More than an hour is not told apart: jobs that waited for days must not read as an hour."""
    with engine.begin() as connection:
        add_stats(connection, "mail", "send", minutes=30)
        bounds, rest = ", ".join(["0"] * (BUCKETS - 1)), 5
        connection.exec_driver_sql(f"UPDATE sa_jobqueue.stat SET waits = ARRAY[{bounds}, {rest}]")
    page = Viewer(engine).see("/")
    assert "Wait, p95 > 1h p50 > 1h · p99 > 1h" in page.text
    assert charts(page)[2]["open"] == 3_600


def test_what_arrived_is_a_line_over_the_outcomes_with_the_backlog_below(engine: Engine) -> None:
    """And a sentence says whether the workers keep up; paused queues are left out of it."""
    with engine.begin() as connection:
        add_stats(connection, "mail", "send", failed=0)
        connection.exec_driver_sql("UPDATE sa_jobqueue.stat SET completed = 10, retried = 5, cancelled = 0")
        add_backlog(connection, "mail", "200 - 2 * n")
        add_backlog(connection, "reports", "900 - 9 * n")
    page = Viewer(engine).see("/", window="1h")
    throughput, backlog, _ = charts(page)
    assert (throughput["stacked"], throughput["series"][-1]["label"]) == (3, "in")
    assert set(throughput["series"][-1]["values"][3:-3]) == {26.0}
    running, due = backlog["series"]
    assert set(running["values"][:-2]) == {2}
    assert {after - before for before, after in pairwise(due["values"][:-2])} == {11}
    assert re.search(r"Falls behind: 1,\d{3} in, [89]\d\d out in 1h; grows by 6\d\d an hour\.", page.text)
    with engine.begin() as connection:
        limit(connection, "reports", paused_at=text("now()"))
    page = Viewer(engine).see("/", window="1h", n=1)
    assert " an hour. The paused queues are left out: reports." in page.text


def test_charts_tell_queues_and_tasks_apart(engine: Engine, scene: Scene) -> None:
    """The largest ones each; of the backlog a task is not known."""
    with engine.begin() as connection:
        add_backlog(connection, "mail", "5")
        add_backlog(connection, "sync", "7")
    throughput, backlog, _ = charts(Viewer(engine).see("/", by="queue"))
    assert [line["label"] for line in throughput["series"]] == ["mail", "sync", "index", "in"]
    assert [line["label"] for line in backlog["series"]] == ["mail", "sync"]
    assert [line["colour"] for line in backlog["series"]] == [line["colour"] for line in throughput["series"][:2]]
    page = Viewer(engine).see("/", by="task")
    assert charts(page)[0]["series"][0]["label"] == "shop.send_receipt"
    assert "by queue and not by task" in page.text
    assert "expected one of queue, task" in Viewer(engine).see("/", expected=400, by="worker").text


def test_a_time_of_the_viewers_is_shown_and_is_in_the_address(engine: Engine, scene: Scene) -> None:
    """In whole steps; with links to the time before and after it."""
    page = Viewer(engine).see("/", **{"from": "2026-01-01T10:03", "to": "2026-01-01T11:00"}, expected=400)
    assert "expected a time for which there are statistics" in page.text
    with engine.connect() as connection:
        begin, end = connection.execute(
            text("SELECT date_trunc('hour', now()) - interval '4 h', date_trunc('hour', now()) - interval '1 h'")
        ).one()
    page = Viewer(engine).see("/", **{"from": begin.isoformat(), "to": end.isoformat()})
    at = charts(page)[0]["at"]
    assert (at[0], at[-1], {after - before for before, after in pairwise(at)}) == (
        begin.timestamp(),
        end.timestamp() - 900,
        {900},
    )
    assert f"{begin.astimezone(UTC):%Y-%m-%d %H:%M} to " in page.text
    (later,) = [found["href"] for found in page.all("a", rel="next")]
    assert charts(Viewer(engine).see(later or ""))[0]["at"][0] == end.timestamp()


def test_queues_are_shown_with_a_line_of_what_ended(engine: Engine, scene: Scene) -> None:
    """The one with the most due jobs first; one that is paused, and one that no worker serves, says so."""
    page = Viewer(engine).see("/")
    rows = page.text[page.text.index("Queue State Due") :]
    order = [rows.index(f" {name} ") for name in ("mail", "reports", "sync", "index")]
    assert order == sorted(order)
    assert "reports paused" in rows
    lines = page.all("polyline")
    assert len(lines) == 4
    assert len((lines[0]["points"] or "").split()) in (60, 61)


def test_a_queue_that_no_worker_serves_is_marked(engine: Engine) -> None:
    with engine.begin() as connection:
        make_job(connection, queue="forgotten")
    assert "forgotten no worker" in Viewer(engine).see("/").text


def test_errors_are_grouped_by_task_type_and_first_line(engine: Engine, scene: Scene) -> None:
    """And lead to their page. A group that is resolved is not shown."""
    page = Viewer(engine).see("/")
    assert "7 shop.send_receipt SMTPServerDisconnected: Connection unexpectedly closed" in page.text
    assert "2 shop.index KeyError: '…'" in page.text
    (link,) = [one for one in page.links if "task=shop.index" in one]
    assert link.startswith("/errors?task=shop.index&error=builtins.KeyError&group=")
    viewer = Viewer(engine)
    assert viewer.see(link).text.count("sku-17") == 3  # of the newest job, and of each of the two
    viewer.do("resolve_errors", **dict(parse_qsl(link.partition("?")[2])))
    assert [one for one in viewer.see("/", window="5m").links if "task=shop.index" in one] == []


def test_errors_of_a_viewers_queue_are_found_behind_many_of_others(engine: Engine) -> None:
    with engine.begin() as connection:
        make_job(connection, "failed", queue="mine", errors=[{"type": "builtins.KeyError", "message": "mine"}])
        connection.exec_driver_sql("""
            INSERT INTO sa_jobqueue.job (queue, task, status, finished_at, errors)
            SELECT 'other', 'a_task', 'failed', now(), '[{"type": "builtins.ValueError", "message": "other"}]'
            FROM generate_series(1, 1000)
        """)
    page = Viewer(engine, Access(can=["read"], queues=["mine"])).see("/")
    assert "1 a_task KeyError: mine" in page.text
    assert "other" not in page.text


def test_what_the_doctor_finds_is_an_alarm_with_its_advice(engine: Engine) -> None:
    with engine.begin() as connection:
        make_job(connection, queue="forgotten")
    page = Viewer(engine).see("/")
    assert "Problems and notices" in page.text
    assert "problem queues : " in page.text
    assert "forgotten" in page.text
    assert "/queues" in Seen(page.html.partition('id="alarm-queues"')[2].partition("</div>")[0]).links
    assert "`" not in page.text


def test_all_is_well_in_an_empty_queue_that_is_served(engine: Engine) -> None:
    """Apart from a worker that does not listen, because this one is a row alone."""
    with engine.begin() as connection:
        make_worker(connection, schema_version=1)
    names = {
        found["id"] for found in Viewer(engine).see("/").all("div") if (found.get("id") or "").startswith("alarm-")
    }
    assert names <= {"alarm-workers"}


def test_the_doctor_looks_once_a_minute_whoever_asks(
    engine: Engine, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[object] = []
    real = __import__("sa_jobqueue.dashboard.pages.database", fromlist=["look_at"]).look_at
    monkeypatch.setattr(
        "sa_jobqueue.dashboard.pages.database.look_at", lambda one, **how: (looks.append(one), real(one, **how))[1]
    )
    for path in ("/", "/database", "/"):
        Viewer(engine).see(path, n="1")
        Viewer(engine, Access(can=["read"], queues=["mail"])).see(path)
    assert len(looks) == 1


def test_a_doctor_that_takes_long_is_not_waited_for_to_the_end(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was not looked at is said."""
    monkeypatch.setattr("sa_jobqueue.dashboard.pages.database._WHOLE", -1.0)
    page = Viewer(engine).see("/")
    assert "notice doctor : not checked" in page.text
    assert "schema" in page.text.partition("not checked")[2]


def test_the_numbers_of_others_are_not_shown(engine: Engine, scene: Scene) -> None:
    """A viewer who may see one queue gets its numbers, its errors and its chart; and of the doctor what is said of the server."""
    viewer = Viewer(engine, Access(can=["read"], queues=["index"]))
    page = viewer.see("/")
    assert "Due now 0 0 queued" in page.text
    assert "Running 1 live workers: 1 " in page.text
    assert "Failed 2 still kept" in page.text
    for other in ("mail", "sync", "reports", "send_receipt", "SMTP"):
        assert other not in page.html.replace("hx-sync", "")
    assert sum(charts(page)[0]["series"][0]["values"]) < sum(charts(Viewer(engine).see("/"))[0]["series"][0]["values"])
    nothing = Viewer(engine, Access(can=["read"], queues=[])).see("/")
    assert "Failed 0 still kept" in nothing.text
    assert "index" not in nothing.text.replace("indexes", "")


def test_each_outcome_can_be_drawn(engine: Engine) -> None:
    with engine.begin() as connection:
        add_stats(connection, "mail", "send")
        connection.execute(update(Stat).values(dict.fromkeys(COUNTED, 1)))
    assert {line["label"] for line in charts(Viewer(engine).see("/"))[0]["series"]} >= {*COUNTED}


def test_a_viewer_of_some_jobs_begins_with_the_list_of_jobs(engine: Engine, scene: Scene) -> None:
    """Sums over the jobs of all are not for them: no such page is in the menu, and none is shown."""
    viewer = Viewer(engine, Access(can=Access.ADMIN.can, where=Job.queue == "mail"))
    assert viewer.get("/").headers["location"] == "/jobs"
    page = viewer.see("/jobs")
    for path in ("/", "/queues", "/limits", "/workers", "/database"):
        assert path not in page.links
        if path != "/":
            assert viewer.get(path).status_code == 403
    assert Viewer(engine, Access.NONE).get("/").status_code == 403


def test_a_large_number_is_not_counted_to_its_end(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO sa_jobqueue.job (queue, task) SELECT 'mail', 'send' FROM generate_series(1, 10100)"
        )
    assert "Due now 10,000+ 10,000+ queued" in Viewer(engine).see("/").text


# ---- parts


def test_a_line_is_as_high_as_its_highest_value() -> None:
    assert points([0, 2, 1]) == "0,19 50,1 100,10"
    assert points([5]) == "0,1"
    assert points([0, 0]) == "0,19 100,19"


def test_bars_are_from_the_first_to_the_last_bucket_with_something() -> None:
    counts = [0] * 19
    counts[2], counts[4] = 5, 10
    assert [(count, width) for _, _, count, width in bars(counts)] == [(5, 50.0), (0, 0.0), (10, 100.0)]
    assert bars([0] * 19) == []


def test_while_one_reads_again_the_others_get_the_last_answer(engine: Engine) -> None:
    """With two connections of one engine; another engine has answers of its own."""
    kept: Kept[int] = Kept(0.0)
    with engine.connect() as one, engine.connect() as other:
        assert kept.get(one, "key", lambda: 1) == 1
        entered, go_on = threading.Event(), threading.Event()

        def slow() -> int:
            entered.set()
            assert go_on.wait(30)
            return 2

        thread = threading.Thread(target=lambda: kept.get(one, "key", slow))
        thread.start()
        wait_until(entered.is_set)
        assert kept.get(other, "key", lambda: 3) == 1
        assert kept.get(other, "key", lambda: 3) == 1
        assert kept.get(other, "another key", lambda: 4) == 4
        go_on.set()
        thread.join()
        assert Kept(60.0).get(other, "key", lambda: 5) == 5


def test_an_answer_that_failed_is_not_kept(engine: Engine) -> None:
    kept: Kept[int] = Kept(60.0)
    with engine.connect() as connection:
        with pytest.raises(ZeroDivisionError):
            kept.get(connection, "key", lambda: 1 // 0)
        assert kept.get(connection, "key", lambda: 1) == 1
        assert kept.get(connection, "key", lambda: 2) == 1
        assert [kept.get(connection, number, lambda number=number: number) for number in range(500)] == list(range(500))  # type: ignore[misc]


def test_nobody_waits_for_the_doctor_again(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Findings of the last ten minutes are shown, and examined again once the viewer has the page. The status is examined at once."""
    numbers, now = count(1), [0.0]

    def examine(context: PageContext) -> Examined:
        return Examined(context.now(), [Finding("doctor", "problem", f"examination {next(numbers)}", "")])

    monkeypatch.setattr(doctoring, "_examine", examine)
    monkeypatch.setattr("sa_jobqueue.dashboard.shared.monotonic", lambda: now[0])
    viewer = Viewer(engine)
    for seconds, number in ((0, 1), (61, 1), (63, 2), (700, 3)):
        now[0] = seconds
        assert f"examination {number} " in viewer.see("/").text
    now[0] = 800
    viewer.get("/status")
    assert "examination 4 " in viewer.see("/").text
    assert next(numbers) == 5


def test_each_check_of_the_server_is_one_of_the_doctors() -> None:
    from sa_jobqueue.dashboard.pages.database import _OF_SERVER

    assert {one.name for one in CHECKS} >= _OF_SERVER


def test_a_page_is_a_few_statements(engine: Engine, scene: Scene) -> None:
    """Once the doctor has looked; with each viewer the same ones, whatever is in the tables."""
    viewer = Viewer(engine)
    viewer.see("/")
    seen: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda _, __, statement, *___: seen.append(statement))
    Viewer(engine).see("/", window="5m")
    assert len(seen) <= 16, seen
