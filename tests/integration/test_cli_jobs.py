"""Looking: `list`, `show`, `stats`, `workers`."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import socket
import subprocess
import uuid
from datetime import UTC, datetime, timedelta

import pytest
from rich.console import Console
from sqlalchemy import Engine, func, insert, update
from sqlalchemy.orm import Session

from sa_jobqueue import KeyLimits
from sa_jobqueue.cli import output as printing
from sa_jobqueue.cli.filters import Filters
from sa_jobqueue.models import LogPart, Progress, Schedule, WorkerRow
from sa_jobqueue.rules import words
from sa_jobqueue.sql.readings.depths import group_errors
from sa_jobqueue.statements import pause, record_action, set_limit
from sa_jobqueue.tasks.registry import TaskName
from tests.support.cli import as_json, invoke, notes, output, refused
from tests.support.commands import CLI, environment, in_terminal
from tests.support.factory import make_job, row
from tests.support.waiting import wait_until

ERROR = {
    "at": "2026-01-02T03:04:05+00:00",
    "attempt": 1,
    "type": "ValueError",
    "message": "bad\nimage",
    "traceback": "",
}


def listed(url: str, *filters: str) -> list[int]:
    return [job["id"] for job in as_json("list", *filters, url=url)]


def test_list_shows_the_newest_jobs_up_to_the_limit(engine: Engine, url: str) -> None:
    """A note says that there are more."""
    with engine.begin() as connection:
        first, second, third = (make_job(connection) for _ in range(3))
    assert listed(url) == [third, second, first]
    result = invoke("list", "--limit", "2", "--json", url=url)
    assert [job["id"] for job in json.loads(result.stdout)] == [third, second]
    assert notes(result) == "the newest 2; --limit N shows more\n"


def test_every_status_and_every_reading_is_a_filter(engine: Engine, url: str) -> None:
    """Scheduled, retrying and due are readings of queued; live and finished are groups."""
    later = timedelta(hours=1)
    with engine.begin() as connection:
        due = make_job(connection)
        scheduled = make_job(connection, run_at=later)
        retrying = make_job(connection, run_at=later, attempt=1, errors=[ERROR])
        others = {one: make_job(connection, one) for one in ("blocked", "running", "completed", "failed", "cancelled")}
    assert listed(url, "--status", "queued") == [retrying, scheduled, due]
    assert listed(url, "--status", "due") == [due]
    assert listed(url, "--status", "scheduled") == [retrying, scheduled]
    assert listed(url, "--status", "retrying") == [retrying]
    for status, one in others.items():
        assert listed(url, "--status", status) == [one]
    assert listed(url, "--status", "live") == [others["running"], others["blocked"], retrying, scheduled, due]
    assert listed(url, "--status", "finished") == [others["cancelled"], others["failed"], others["completed"]]
    assert listed(url, "--status", "due", "--status", "failed") == [others["failed"], due]


def test_filters_of_different_kinds_narrow_each_other(engine: Engine, url: str) -> None:
    """Repeated, a filter takes more: two queues are either of them."""
    with engine.begin() as connection:
        make_job(connection, queue="mail", task="a")
        old = make_job(connection, queue="mail", task="b", created_at=timedelta(days=-3))
        other = make_job(connection, queue="it's; a queue", task="b")
    assert listed(url, "--queue", "mail", "--task", "b") == [old]
    assert listed(url, "--older-than", "2d12h") == [old]
    assert listed(url, "--task", "b", "--newer-than", "1w", "--queue", "mail", "--queue", "it's; a queue") == [
        other,
        old,
    ]
    assert listed(url, "--newer-than", "1h", "--task", "b") == [other]


def test_jobs_are_found_by_tag_by_error_and_since_a_time(engine: Engine, url: str) -> None:
    """Each tag must be there; a class of errors may be named with its module or without, and counts if it is the last."""
    ours = ERROR | {"type": "shop.errors.Gone_Error"}
    with engine.begin() as connection:
        both = make_job(connection, meta={"tags": ["vip", "new"]})
        one = make_job(connection, meta={"tags": ["vip"], "other": 1}, created_at=timedelta(hours=-3))
        gone = make_job(connection, "failed", errors=[ERROR, ours])
        mended = make_job(connection, "completed", errors=[ours])
        value = make_job(connection, "failed", errors=[ours, ERROR])
    assert listed(url, "--tag", "vip") == [one, both]
    assert listed(url, "--tag", "vip", "--tag", "new") == [both]
    assert listed(url, "--tag", "vi") == []
    assert listed(url, "--error", "Gone_Error") == listed(url, "--error", "shop.errors.Gone_Error") == [gone]
    assert listed(url, "--error", "Gone-Error") == listed(url, "--error", "_Error") == []
    assert listed(url, "--error", "Gone_Error", "--error", "ValueError") == [value, gone]
    assert listed(url, "--since", "2h") == [value, mended, gone, both]
    assert listed(url, "--since", (datetime.now(UTC) - timedelta(hours=2)).isoformat()) == [value, mended, gone, both]
    assert listed(url, "--since", "2000-01-01", "--tag", "vip") == [one, both]
    assert "'soon' is neither a time, as in 2030-01-31" in refused("list", "--since", "soon")
    assert output("discard", "--tag", "new", url=url) == "discarded 1 job\n"


def test_jobs_are_found_by_their_end_by_key_by_workflow_and_by_worker(engine: Engine, url: str) -> None:
    """After an outage those that failed then, whenever they were enqueued; a worker by its place or its id."""
    worker = uuid.uuid4()
    long_ago, ended = timedelta(days=-1), timedelta(hours=-2)
    with engine.begin() as connection:
        connection.execute(
            insert(WorkerRow).values(id=worker, host="web-1", pid=4711, queues=[], concurrency=1, version="1")
        )
        outage = make_job(connection, "failed", created_at=long_ago, finished_at=ended, worker=str(worker))
        make_job(connection, "failed", created_at=long_ago, finished_at=timedelta(hours=-4))
        late = make_job(connection, "failed", finished_at=timedelta(minutes=-1))
        waiting = make_job(connection, concurrency_key="tenant 7")
        member = make_job(connection, "failed", workflow_id=7, finished_at=ended)
    assert listed(url, "--finished-since", "3h", "--finished-before", "1h") == [member, outage]
    assert listed(url, "--finished-since", (datetime.now(UTC) - timedelta(hours=1)).isoformat()) == [late]
    assert listed(url, "--key", "tenant 7", "--key", "tenant 8") == [waiting]
    assert listed(url, "--workflow", "7") == [member]
    assert listed(url, "--worker", "web-1:4711") == listed(url, "--worker", "web-1") == [outage]
    assert listed(url, "--worker", str(worker)) == [outage]
    assert listed(url, "--worker", "web-2") == []


def test_a_worker_that_is_not_known_is_refused(engine: Engine, url: str) -> None:
    """Its row went with it: the message says how its jobs are found."""
    for command in (("list",), ("errors",), ("retry", "--dry-run")):
        result = invoke(*command, "--worker", "web-1:4712", url=url)
        assert result.exit_code != 0
        assert "no worker web-1:4712 is known" in result.stderr


def test_errors_groups_what_failed_alike(engine: Engine, url: str) -> None:
    """By task, class and first line, the largest group first; only those that meet the filters are counted."""
    gone = ERROR | {"type": "shop.Gone", "message": "no such order\nin detail"}
    with engine.begin() as connection:
        for _ in range(3):
            make_job(connection, "failed", task="shop.send", errors=[gone], finished_at=timedelta(hours=-1))
        make_job(connection, "failed", task="shop.send", errors=[ERROR], queue="mail")
        make_job(connection, "completed", task="shop.send", errors=[gone])
    found = as_json("errors", url=url)
    assert [(one["jobs"], one["task"], one["error"], one["line"]) for one in found] == [
        (3, "shop.send", "shop.Gone", "no such order"), (1, "shop.send", "ValueError", "bad"),
    ]  # fmt: skip
    assert [one["jobs"] for one in as_json("errors", "--queue", "mail", url=url)] == [1]
    assert "Gone: no such order" in output("errors", url=url)
    with engine.begin() as connection:
        target = {
            "task": ["shop.send"],
            "error": ["shop.Gone"],
            "group": [connection.execute(group_errors()).all()[0].group],
        }
        connection.execute(record_action("resolve_errors", who="ada", target=target, count=1))
    assert [one["mark"] for one in as_json("errors", url=url)] == ["resolved", ""]
    assert notes(invoke("errors", "--limit", "1", url=url)).endswith("1 of 2 groups; --limit N shows more\n")
    assert notes(invoke("errors", "--task", "nothing", url=url)).endswith("no such failed jobs\n")


def test_jobs_about_a_row(engine: Engine, url: str) -> None:
    """By the class and the key, or by the class alone; `show` says it, and `enqueue` sets it."""
    subjects = [("Order", "7"), ("Order", "8"), ("Line", "[7, 2]"), ("Order", "7"), (None, None)]
    with engine.begin() as connection:
        first, second, line, third, _ = [make_job(connection, subject_type=of, subject_id=id) for of, id in subjects]

    assert listed(url, "--subject", "Order:7") == [third, first]
    assert listed(url, "--subject", "Order") == [third, second, first]
    assert listed(url, "--subject", "Line:[7,2]", "--subject", "Order:8") == [line, second]
    assert listed(url, "--subject", "Customer:7") == []
    assert "about Line:[7, 2]" in output("show", str(line), url=url)
    assert as_json("list", "--subject", "Order:8", url=url)[0]["subject_id"] == "8"
    assert "a subject is written as a class and a key" in refused("list", "--subject", ":7", url=url)
    made = as_json("enqueue", "greet", "--subject", "Order:9", url=url)["id"]
    assert listed(url, "--subject", "Order:9") == [made]


def test_a_search_by_tag_is_a_containment(engine: Engine) -> None:
    """One that an index of the application's can serve, should it make one."""
    (criterion,) = Filters(tag=["vip"]).criteria()
    assert "meta @> " in str(criterion.compile(engine))


def test_list_shows_no_error_of_a_completed_job(engine: Engine, url: str) -> None:
    """`show` has each."""
    with engine.begin() as connection:
        number = make_job(connection, "completed", attempt=2, errors=[ERROR])
    assert "ValueError" not in output("list", url=url)
    (job,) = as_json("list", url=url)
    assert (job["error_type"], job["error_message"]) == (None, None)
    assert "ValueError" in output("show", str(number), url=url)


def test_an_error_without_a_message_is_its_class_alone(engine: Engine, url: str) -> None:
    """As Python prints it: no colon follows it."""
    with engine.begin() as connection:
        number = make_job(connection, "failed", errors=[ERROR | {"type": "TimeoutError", "message": ""}])
    for command in (["errors"], ["list"], ["show", str(number)]):
        shown = output(*command, url=url)
        assert "TimeoutError" in shown
        assert "TimeoutError:" not in shown


def test_an_error_in_a_list_is_its_class_and_its_first_line(engine: Engine, url: str) -> None:
    """What follows it, such as a statement of SQL over many lines, is in `show`; JSON has all."""
    error = ERROR | {"type": "sqlalchemy.exc.DataError", "message": "\nvalue too long\n[SQL: INSERT\n INTO a]"}
    with engine.begin() as connection:
        make_job(connection, "failed", errors=[error])
    line = output("list", url=url).splitlines()[1]
    assert line.endswith("DataError: value too long")
    assert "sqlalchemy" not in line
    (job,) = as_json("list", url=url)
    assert job["error_type"] == "sqlalchemy.exc.DataError"
    assert job["error_message"].endswith(" INTO a]")


@pytest.mark.parametrize(("attempt", "reading"), [(0, "scheduled"), (1, "retrying")])
def test_list_and_show_use_the_same_words(engine: Engine, url: str, attempt: int, reading: str) -> None:
    """The reading for people, and the status itself for scripts."""
    with engine.begin() as connection:
        number = make_job(connection, attempt=attempt, run_at=timedelta(hours=1), task="a")
    assert f" {reading} " in output("list", url=url)
    assert output("show", str(number), url=url).startswith(f"job {number}  a  {reading}\n")
    shown = as_json("show", str(number), url=url)
    assert (shown["reading"], shown["status"]) == (reading, "queued")


def test_a_blocked_job_is_not_due(engine: Engine, url: str) -> None:
    """It is not late, however long it waits."""
    with engine.begin() as connection:
        make_job(connection, "blocked", run_at=timedelta(hours=-1))
    assert "due" not in output("list", url=url)


def test_show_says_how_long_a_job_waited_and_ran(engine: Engine, url: str) -> None:
    """Since it was due; a job that has not begun has neither."""
    times = {"run_at": -90.0, "claimed_at": -89.5, "finished_at": -84.0}
    with engine.begin() as connection:
        done = make_job(connection, "completed", **{name: timedelta(seconds=age) for name, age in times.items()})
        waiting = make_job(connection)
        again = make_job(connection, run_at=timedelta(seconds=9), claimed_at=timedelta(seconds=-9), attempt=1)
    shown = output("show", str(done), url=url)
    assert "waited        0.5 s\n" in shown
    assert "ran           5.5 s\n" in shown
    assert as_json("show", str(done), url=url)["ran_seconds"] == 5.5
    for other in (waiting, again):
        assert "waited" not in output("show", str(other), url=url)
    assert [words.duration(one) for one in (0.0121, 0.31, 12.5, 75)] == ["12 ms", "0.31 s", "12.5 s", "1m 15s"]


@pytest.mark.usefixtures("measured")
def test_watch_shows_what_comes_until_it_is_stopped(engine: Engine, database_url: str) -> None:
    """In a terminal; without one, or as JSON, it is refused."""
    screen, terminal = pty.openpty()
    env = environment(database_url, {"TERM": "xterm", "COLUMNS": "100", "LINES": "10"})
    shown: list[str] = []

    def has(text: str) -> bool:
        while select.select([screen], [], [], 0)[0]:
            shown.append(os.read(screen, 65_536).decode(errors="replace"))
        return text in "".join(shown)

    with engine.begin() as connection:
        make_job(connection, task="the_first")
    with subprocess.Popen(
        [*CLI, "list", "--watch"], stdin=terminal, stdout=terminal, stderr=terminal, env=env
    ) as watching:
        try:
            wait_until(lambda: has("the_first"))
            with engine.begin() as connection:
                make_job(connection, task="the_second")
            wait_until(lambda: has("the_second"))
            watching.send_signal(signal.SIGINT)
            wait_until(lambda: has("\x1b[?1049l") and watching.poll() is not None)
        finally:
            watching.kill()
    os.close(screen)
    os.close(terminal)
    assert watching.returncode == 0
    assert "--watch needs a terminal" in invoke("list", "--watch", url=database_url).stderr
    assert "--watch and --json contradict each other" in refused("list", "--watch", "--json", url=database_url)


def test_without_a_terminal_a_list_is_plain_columns_in_full(engine: Engine, url: str) -> None:
    """One line per job, whatever its names hold; nothing is cut."""
    name = "n" * 200
    with engine.begin() as connection:
        make_job(connection, task=name, queue="[red]\n\x1b[31m名")
        make_job(connection, attempt=2, errors=[ERROR])
    header, second, first = output("list", url=url, env={"COLUMNS": "40"}).splitlines()
    assert header.split() == ["ID", "STATUS", "QUEUE", "TASK", "ATTEMPT", "AGE", "WHEN", "ERROR"]
    assert name in first
    assert r"[red]\n\x1b[31m名" in first
    assert "retrying" in second
    assert second.endswith("ValueError: bad")


def test_in_a_terminal_a_list_fits_its_width(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Names are shortened, ids and times are not; each job stays one line."""
    monkeypatch.setattr(
        printing, "terminal", lambda stream: Console(file=stream, width=40, force_terminal=True, color_system=None)
    )
    columns = [printing.Column("id", "right"), printing.Column("task", wide=True), printing.Column("when")]
    printing.print_table(columns, [(123456789, "a.very.long.name.of.a.task.that.does.not.fit", "3m ago")])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert all(len(line) <= 40 for line in lines)
    assert "123456789" in lines[2]
    assert "…" in lines[2]
    assert "3m ago" in lines[2]


@pytest.mark.usefixtures("measured")
def test_list_in_80_columns_shows_how_an_error_begins(engine: Engine, url: str) -> None:
    """A task goes without its module then, and the age of the job is left out."""
    error = ERROR | {"type": "shop.errors.LookupError", "message": "no such order: 3 is not in the table of orders"}
    with engine.begin() as connection:
        make_job(connection, task="shop.tasks.send_receipt", attempt=1, run_at=timedelta(seconds=9), errors=[error])
    lines = in_terminal("list", url=url, columns=80)
    assert "send_receipt" in lines
    assert "shop.tasks" not in lines
    assert "LookupError: no such" in lines
    assert "shop.tasks.send_receipt" in in_terminal("list", url=url, columns=160)


@pytest.mark.usefixtures("measured")
def test_doctor_in_60_columns_wraps_a_sentence_below_itself(url: str) -> None:
    """So the words before it stay a column of their own."""
    lines = [line for line in in_terminal("doctor", url=url, columns=60).splitlines() if line.strip()]
    assert any(re.match(r"ok +database +\S", line) for line in lines), lines
    assert any(re.match(r" {8,}\S", line) for line in lines), lines


def test_an_empty_list_is_no_error(url: str) -> None:
    """Exit code 0, a note on stderr, and an empty list as JSON."""
    hints = {"list": "no such jobs", "stats": "no jobs", "workers": "no workers; start one with `sa-jobqueue work`"}
    for command, hint in hints.items():
        result = invoke(command, url=url)
        assert (result.exit_code, result.stdout, notes(result)) == (0, "", f"{hint}\n")
    assert as_json("list", url=url) == []
    assert as_json("workers", url=url) == []
    assert as_json("stats", url=url)["queues"] == []


def test_show_has_arguments_meta_result_and_every_attempt(engine: Engine, url: str) -> None:
    """A traceback as it was written; a password in an error is not shown."""
    second = {
        "at": "2026-01-02T03:05:05+00:00", "attempt": 2, "type": "OSError",
        "message": "cannot reach postgresql://me:secret@db/shop", "traceback": "Traceback:\n  File x\nOSError: \x1b[31m\n",
    }  # fmt: skip
    with engine.begin() as connection:
        number = make_job(
            connection, "failed", task="shop.send", args={"order_id": 7}, meta={"tags": ["vip"]}, errors=[ERROR, second],
            result={"done": True},
        )  # fmt: skip
    shown = output("show", str(number), url=url)
    assert f"job {number}  shop.send  failed" in shown
    assert '"order_id": 7' in shown
    assert '"vip"' in shown
    assert '"done": true' in shown
    assert "ValueError: bad\nimage" in shown
    assert "\n  Traceback:\n    File x\n  OSError: \\x1b[31m\n" in shown
    assert "secret" not in shown
    assert as_json("show", str(number), url=url)["args"] == {"order_id": 7}


def test_show_names_the_worker_by_host_and_process_until_it_has_left(engine: Engine, url: str) -> None:
    """An operator cannot tell from the id alone where to look."""
    there, gone = uuid.uuid4(), uuid.uuid4()
    worker = {"host": "web-1", "pid": 7, "queues": ["mail"], "concurrency": 4, "version": "1"}
    with engine.begin() as connection:
        connection.execute(insert(WorkerRow).values(id=there, **worker))
        running, left = (make_job(connection, "running", worker=str(one)) for one in (there, gone))
    assert f"\nworker web-1:7 ({there})\n" in output("show", str(running), url=url)
    assert f"\nworker {gone}, which has left\n" in output("show", str(left), url=url)


def test_show_names_the_schedule_and_the_tick_that_a_job_was_made_for(engine: Engine, url: str) -> None:
    """Also of a schedule that was removed: its jobs stay."""
    with Session(engine) as session:
        session.add(made := Schedule("@daily", TaskName("shop.report"), name="the report"))
        session.flush()
        ago = timedelta(hours=-3)
        with_it = make_job(session.connection(), schedule_id=made.id, ticks=3, tick_at=ago)
        without = make_job(session.connection(), schedule_id=made.id + 1, ticks=1, tick_at=ago)
        removed = made.id + 1
        session.commit()
    shown = output("show", str(with_it), url=url)
    assert "\nschedule the report · stands for 3 ticks\n" in shown
    assert re.search(r"^tick +20.* \(3h ago\)$", shown, re.MULTILINE)
    assert f"\nschedule number {removed}, which was removed\n" in output("show", str(without), url=url)


def test_show_names_the_unique_key(engine: Engine, url: str) -> None:
    """The job and its duplicates have the same."""
    with engine.begin() as connection:
        first, second = (make_job(connection, uniqueness={"key": "order 7\x1b"}) for _ in range(2))
    for job in (first, second):
        assert "\nunique key order 7\\x1b\n" in output("show", str(job), url=url)


def test_no_password_of_an_error_is_shown_in_any_form(engine: Engine, url: str) -> None:
    """Whatever was written into `errors`; arguments are the user's, and stay as they are."""
    dsn = "postgresql://bob:hunter2@db/x"
    error = ERROR | {"message": f"cannot reach {dsn}", "traceback": f"Traceback:\n  connect({dsn!r})\n"}
    with engine.begin() as connection:
        number = make_job(connection, "failed", args={"dsn": dsn}, errors=[dsn, {"causes": [error]}, error])
    masked = "postgresql://bob:***@db/x"
    (job,) = as_json("list", url=url)
    assert job["error_message"] == f"cannot reach {masked}"
    assert output("list", url=url).endswith(f"ValueError: cannot reach {masked}\n")
    entry = error | {"message": f"cannot reach {masked}", "traceback": f"Traceback:\n  connect({masked!r})\n"}
    job = as_json("show", str(number), url=url)
    assert job["errors"] == [masked, {"causes": [entry]}, entry]
    assert job["args"] == {"dsn": dsn}
    shown = output("show", str(number), url=url).replace(f'"dsn": "{dsn}"', "")
    assert "hunter2" not in shown
    assert shown.count(masked) == 3


def test_show_of_a_missing_job_is_exit_code_1(url: str) -> None:
    """The database did answer, so it is not 2."""
    result = invoke("show", "99", url=url)
    assert (result.exit_code, notes(result)) == (1, "error: there is no job 99\n")


def test_stats_count_by_queue(engine: Engine, url: str) -> None:
    """Live jobs are all counted, finished ones only if they ended lately; the table ends with the sum."""
    with engine.begin() as connection:
        make_job(connection, queue="mail", run_at=timedelta(minutes=-5))
        make_job(connection, queue="mail", run_at=timedelta(minutes=5))
        make_job(connection, "running", queue="mail")
        make_job(connection, "failed", queue="images", finished_at=timedelta(hours=-2))
    images, mail = as_json("stats", url=url)["queues"]
    assert (mail["queued"], mail["due"], mail["running"]) == (2, 1, 1)
    assert 300 <= mail["oldest_due_age"] < 3_000
    assert images["failed"] == 0
    (images,) = as_json("stats", "--queue", "images", "--lately", "3h", url=url)["queues"]
    assert images["failed"] == 1
    header, *lines = output("stats", url=url).splitlines()
    assert header.split("  ")[0] == "QUEUE"
    assert [line.split()[0] for line in lines] == ["images", "mail", "(all)"]


def test_workers_shows_running_jobs_and_stale_workers(engine: Engine, url: str) -> None:
    """A worker is stale that was not seen for a minute."""
    live, stale = uuid.uuid4(), uuid.uuid4()
    common = {"host": "web-1", "pid": 7, "queues": ["mail", "default"], "concurrency": 4, "version": "1"}
    with engine.begin() as connection:
        connection.execute(insert(WorkerRow).values(id=live, **common))
        long_ago = func.now() - timedelta(minutes=3)
        connection.execute(insert(WorkerRow).values(id=stale, **common, seen_at=long_ago, started_at=long_ago))
        make_job(connection, "running", worker=str(live))
    first, second = as_json("workers", url=url)
    assert (first["id"], first["stale"], first["running"]) == (str(stale), True, 0)
    assert (second["id"], second["stale"], second["running"]) == (str(live), False, 1)
    lines = output("workers", url=url).splitlines()
    assert [line.split()[-1] for line in lines] == ["STATE", "stale", "live"]
    assert [line.split()[0] for line in lines] == ["WORKER", "web-1:7", "web-1:7"]


def test_workers_shows_how_a_worker_is(engine: Engine, url: str) -> None:
    """Its memory and the lag of its loop, as it last said; nothing for a worker that has not said it."""
    common = {"host": "web-1", "queues": ["mail"], "concurrency": 4, "version": "1"}
    said = {"memory": 94_000_000, "loop_lag": 0.004, "lease": 60.0, "schema_version": 1}
    with engine.begin() as connection:
        connection.execute(insert(WorkerRow).values(id=uuid.UUID(int=1), pid=7, **said, **common))
        connection.execute(insert(WorkerRow).values(id=uuid.UUID(int=2), pid=8, **common))
    first, second = as_json("workers", url=url)
    assert {name: first[name] for name in said} == said
    assert [second[name] for name in said] == [None] * 4
    head, line, *_ = output("workers", url=url).splitlines()
    assert "MEMORY" in head
    assert "94 MB" in line
    assert "4 ms" in line


def test_workers_shows_which_worker_is_held_back_and_why(engine: Engine, url: str) -> None:
    """The reason is below the table, and in JSON."""
    common = {"host": "web-1", "queues": ["mail"], "concurrency": 4, "version": "1"}
    reason = "12 sessions wait for locks (max_lock_waits is 10)"
    with engine.begin() as connection:
        connection.execute(insert(WorkerRow).values(id=uuid.uuid4(), pid=7, pressure=reason, **common))
        connection.execute(insert(WorkerRow).values(id=uuid.uuid4(), pid=8, **common))
    assert {one["pid"]: one["pressure"] for one in as_json("workers", url=url)} == {7: reason, 8: None}
    shown = invoke("workers", url=url)
    states = {line.split()[0]: line.rstrip().rsplit("  ", 1)[1].strip() for line in shown.stdout.splitlines()}
    assert states == {"WORKER": "STATE", "web-1:7": "held back", "web-1:8": "live"}
    assert f"web-1:7 is held back: {reason}" in shown.stderr


def test_what_a_worker_says_of_itself_reaches_no_terminal_as_an_order(engine: Engine, url: str) -> None:
    """A role that may only work writes it: neither a table, nor a note below it, nor JSON has a control character."""
    orders = "\x1b]0;mine\x07\x1b[2J\x9b31m\u202e"
    with engine.begin() as connection:
        its = {"host": orders, "queues": [orders], "pressure": orders, "version": orders}
        connection.execute(insert(WorkerRow).values(id=uuid.uuid4(), pid=7, concurrency=4, **its))
    for arguments in (("workers",), ("workers", "--json")):
        shown = invoke(*arguments, url=url)
        assert "mine" in shown.output
        assert (shown.stdout + shown.stderr).replace("\n", "").isprintable()
    assert as_json("workers", url=url)[0]["pressure"] == orders


def test_workers_are_asked_to_drain_by_host_and_process_or_by_host(engine: Engine, url: str) -> None:
    """Each once; the others are left. `workers` shows which drain."""
    common = {"queues": ["mail"], "concurrency": 4, "version": "1"}
    with engine.begin() as connection:
        for number, (host, pid) in enumerate([("web-1", 7), ("web-1", 8), ("web-2", 7), ("web:3", 7)], 1):
            connection.execute(insert(WorkerRow).values(id=uuid.UUID(int=number), host=host, pid=pid, **common))
    assert output("drain", "web-1:7", url=url) == "asked 1 worker to drain\n"
    assert output("drain", "web-1", "web:3:7", url=url) == "asked 2 workers to drain\n"
    result = invoke("drain", "web-1", "web-2:8", url=url)
    assert result.exit_code == 1
    assert "no such worker, or all were asked before" in result.stderr
    states = {line.split()[0]: line.split()[-1] for line in output("workers", url=url).splitlines()[1:]}
    assert states == {"web-1:7": "draining", "web-1:8": "draining", "web-2:7": "live", "web:3:7": "draining"}
    assert as_json("drain", "web-2", url=url) == {"action": "drained", "workers": [str(uuid.UUID(int=3))]}


def test_a_worker_with_an_expired_lease_is_stale_for_every_command(engine: Engine, url: str) -> None:
    """However lately it was seen: what one command calls dead, another does not call live."""
    dead = uuid.uuid4()
    with engine.begin() as connection:
        connection.execute(
            insert(WorkerRow).values(id=dead, host="web-1", pid=7, queues=["mail"], concurrency=4, version="1")
        )
        make_job(connection, "running", worker=str(dead), lease_expires_at=timedelta(seconds=-1))
    (found,) = as_json("workers", url=url)
    assert (found["id"], found["stale"]) == (str(dead), True)
    said = {one["name"]: one["detail"] for one in json.loads(invoke("doctor", "--json", url=url).stdout)["checks"]}
    assert said["workers"].startswith(
        "0 live, 1 stale; no worker is alive; not seen for a minute, or with an expired lease"
    )
    assert said["leases"].startswith("1 job running with an expired lease")


def test_alive_says_which_worker_is_not_there(url: str) -> None:
    """By its number a process of this machine is meant, which may be a supervisor's."""
    for names, said in {
        ("1",): f"on {socket.gethostname()} the process 1 is neither a worker nor a supervisor of workers",
        ("web-1:7",): "there is no worker web-1:7",
        (): f"there is no worker on {socket.gethostname()}",
    }.items():
        result = invoke("alive", *names, url=url)
        assert (result.exit_code, result.stdout) == (1, f"{said}; `sa-jobqueue workers` lists all workers\n")


def test_a_wrong_filter_is_one_line() -> None:
    """It shows the value, and for a status the possible ones."""
    said = refused("list", "--status", "nope")
    assert re.search(r"--status'[^:]*: 'nope' is not one of 'queued'", said)
    assert said.count("nope") == 1
    assert "'soon' is not a duration" in refused("list", "--older-than", "soon")
    assert "--limit" in refused("list", "--limit", "0")


def test_a_duration_of_more_than_100_years_is_one_line() -> None:
    """No timestamp could hold what it leads to."""
    for given in (("copy", "7", "--delay"), ("release", "7", "--delay"), ("retry", "7", "--spread")):
        assert "must be between 0 seconds and 100 years" in refused(*given, "99999999d")


def test_everything_works_in_another_schema(empty_database_url: str) -> None:
    """`--schema` alone says where the tables are; the usual schema is not even there."""
    url, schema = empty_database_url, ("--schema", 'My "Jobs"')
    output("migrate", *schema, url=url)
    number = output("enqueue", "a_task", *schema, url=url).strip()
    assert [job["id"] for job in as_json("list", "--status", "due", *schema, url=url)] == [int(number)]
    assert f"job {number}" in output("show", number, *schema, url=url)
    assert as_json("stats", *schema, url=url)["queues"][0]["due"] == 1
    assert output("discard", number, *schema, url=url) == "discarded 1 job\n"
    assert output("retry", "--all", *schema, url=url) == "retried 1 job\n"
    assert output("cancel", number, *schema, url=url) == "cancelled 1 job\n"
    assert output("prune", "--all", *schema, url=url) == "pruned 1 job\n"
    assert as_json("doctor", *schema, url=url)["ok"] is True
    assert """is missing, but there is 'My "Jobs"' (--schema 'My "Jobs"'); version""" in refused("list", url=url)


def test_ages_have_at_most_two_units() -> None:
    """The largest ones; `short` has one."""
    seconds = [None, 0.4, 59, 60, 200, 7_500, 90_000, 86_400, -5]
    assert [words.age(one) for one in seconds] == ["", "0s", "59s", "1m", "3m 20s", "2h 5m", "1d 1h", "1d", "5s"]
    assert words.age(7_500, short=True) == "2h"


def test_a_list_can_be_read_back(engine: Engine, url: str) -> None:
    """JSON has the status itself beside its reading, and times with their zone."""
    with engine.begin() as connection:
        number = make_job(connection, run_at=timedelta(hours=1))
        run_at = row(connection, number).run_at
    (job,) = as_json("list", url=url)
    assert (job["status"], job["reading"]) == ("queued", "scheduled")
    assert job["run_at"] == run_at.isoformat()


def note_down(engine: Engine, id: int, *, lines: int = 0) -> None:
    """What a worker would have written of a job that runs under the token 1."""
    said = [[1_790_000_000 + n, "INFO", f"line {n}"] for n in range(lines)]
    with engine.begin() as connection:
        connection.execute(
            insert(Progress).values(
                job_id=id, claim_token=1, claims=1, fraction=0.4, message="page 12\x1b of 30", written_at=func.now()
            )
        )
        for part, some in enumerate([said[: lines // 2], said[lines // 2 :]]):
            connection.execute(
                insert(LogPart).values(
                    job_id=id, claim_token=1, part=part, attempt=1, lines=some, written_at=func.now()
                )
            )


def test_show_says_how_far_a_job_is_and_its_last_log_lines(engine: Engine, url: str) -> None:
    """At 80 columns; a note says that there are more lines."""
    with engine.begin() as connection:
        id = make_job(connection, "running")
    note_down(engine, id, lines=30)
    result = invoke("show", str(id), url=url)
    assert re.search(r"^progress      40% page 12\\x1b of 30  \(\d+s ago\)$", result.stdout, re.MULTILINE)
    shown = [line for line in result.stdout.splitlines() if " INFO " in line]
    assert [line.rpartition("INFO")[2].strip() for line in shown] == [f"line {n}" for n in range(10, 30)]
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert notes(result) == "the last 20 of 30 log lines; --logs shows all\n"
    job = as_json("show", str(id), url=url)
    assert (job["progress"], job["progress_message"]) == (0.4, "page 12\x1b of 30")


def test_show_logs_shows_all_log_lines_and_nothing_else(engine: Engine, url: str) -> None:
    """As text and as JSON; without a password. Of a job that has none it says how a task keeps them."""
    with engine.begin() as connection:
        id, other = make_job(connection, "running"), make_job(connection)
    note_down(engine, id, lines=30)
    with engine.begin() as connection:
        some = [[1_790_000_100, "ERROR", "postgresql://me:secret@db/shop\nTraceback"]]
        connection.execute(
            insert(LogPart).values(job_id=id, claim_token=1, part=2, attempt=1, lines=some, written_at=func.now())
        )
    shown = output("show", str(id), "--logs", url=url).splitlines()
    assert shown[1] == "log of attempt 1"
    assert len(shown) == 34
    assert "secret" not in str(shown)
    assert shown[-1] == "    Traceback"
    found = as_json("show", str(id), "--logs", url=url)
    assert [line["message"] for line in found[:30]] == [f"line {n}" for n in range(30)]
    assert found[30].keys() == {"attempt", "at", "level", "message"}
    assert "secret" not in str(found)
    assert "@task(keep_logs=True)" in notes(invoke("show", str(other), "--logs", url=url))


def test_show_says_nothing_of_the_progress_of_an_earlier_claim(engine: Engine, url: str) -> None:
    """The row of the earlier one may still be there."""
    with engine.begin() as connection:
        id = make_job(connection, "running", claim_token=2)
    note_down(engine, id)
    assert "progress" not in output("show", str(id), url=url)
    assert as_json("show", str(id), url=url)["progress"] is None


def test_show_says_what_a_queued_job_waits_for(engine: Engine, url: str) -> None:
    """In sentences, and as data."""
    with engine.begin() as connection:
        connection.execute(set_limit("sync", per_key=KeyLimits(running=2)))
        connection.execute(pause("a_task", owner="task", reason="postgresql://me:secret@down is\nslow"))
        ran = [make_job(connection, "running", queue="sync", concurrency_key="42") for _ in range(2)]
        job = make_job(connection, queue="sync", concurrency_key="42")
    shown = output("show", str(job), url=url)
    assert f"waits for limit sync/42: 2 of 2 running (jobs {ran[0]}, {ran[1]})\n" in shown
    assert "waits for pause task a_task to end: postgresql://me:***@down is slow\n" in shown
    paused, _, full = as_json("show", str(job), url=url)["waits_for"]
    assert (paused["what"], paused["owner"], paused["name"]) == ("paused", "task", "a_task")
    assert "secret" not in paused["reason"] + paused["said"]
    assert full == {
        "owner": "queue", "name": "sync", "key": "42", "what": "running", "limit": 2, "used": 2, "job_ids": ran, "until": None,
        "seconds": None, "reason": None, "since": None, "workflow_id": None, "pid": None, "needs_help": False, "advice": "",
        "said": f"waits for limit sync/42: 2 of 2 running (jobs {ran[0]}, {ran[1]})",
    }  # fmt: skip
    assert as_json("show", str(ran[0]), url=url)["waits_for"] == []


def test_show_says_whether_a_worker_serves_the_queue_of_a_job_that_nothing_holds_back(engine: Engine, url: str) -> None:
    """Then it waits for its turn. A stale worker serves nothing, and a job that runs waits for nothing."""
    with engine.begin() as connection:
        job, later = make_job(connection, queue="mail"), make_job(connection, queue="mail", run_at=timedelta(hours=1))
        ran = make_job(connection, "running", queue="mail")
        stale = {"id": uuid.uuid4(), "host": "web-1", "pid": 7, "queues": ["mail"], "concurrency": 4, "version": "1"}
        connection.execute(insert(WorkerRow).values(**stale, seen_at=func.now() - timedelta(minutes=5)))
    alone = "has no worker: no live one serves queue mail\n"
    assert alone in output("show", str(job), url=url)
    with engine.begin() as connection:
        connection.execute(update(WorkerRow).values(seen_at=func.now()))
    assert "is first in queue mail\n" in output("show", str(job), url=url)
    assert "has no worker" not in output("show", str(later), url=url)
    assert "queue mail" not in output("show", str(ran), url=url).replace("queue mail ·", "")


def test_show_names_the_key_and_the_units(engine: Engine, url: str) -> None:
    """Only where a job has them; the group of a limited task is no key."""
    with engine.begin() as connection:
        keyed = make_job(connection, concurrency_key="4\n2", units=3)
        plain, grouped = make_job(connection), make_job(connection, concurrency_key="\x01a_task")
    assert "\nkey 4\\n2\nunits 3\n" in output("show", str(keyed), url=url)
    for job in (plain, grouped):
        shown = output("show", str(job), url=url)
        assert "\nkey" not in shown
        assert "\nunits" not in shown
