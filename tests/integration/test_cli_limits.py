"""`limits list`, `limits set`, `limits remove`, `pause`, `resume`."""

from __future__ import annotations

import json
import re
import uuid
from typing import Any

import pytest
from sqlalchemy import Engine, insert, select, text, update

from sa_jobqueue import KeyLimits, Limits, Rate
from sa_jobqueue.models import KeyRow, LimitRow, LimitState, WorkerRow
from tests.support.cli import as_json, invoke, notes, output, refused
from tests.support.commands import in_terminal
from tests.support.factory import make_job

LIMIT, KEY = LimitRow.__table__, KeyRow.__table__


def row(engine: Engine, name: str = "sync", owner: str = "queue", key: str | None = None) -> Any:
    table = LIMIT if key is None else KEY
    found = select(table).where(table.c.name == name, table.c.owner == owner)
    with engine.connect() as connection:
        return connection.execute(found if key is None else found.where(KEY.c.key == key)).one_or_none()


def declare(engine: Engine, name: str, limits: Limits) -> None:
    """As a worker does for its code."""
    columns = limits.columns()
    with engine.begin() as connection:
        connection.execute(
            insert(LimitRow).values(
                owner="queue", name=name, **columns, declared=columns, declared_at=text("now()"), definitions=["a"]
            )
        )


# ---- setting


def test_set_changes_what_is_given(engine: Engine, url: str) -> None:
    """The others stay; none takes one away."""
    said = output("limits", "set", "sync", "--running", "50", "--rate", "500/1m", "--burst", "20", "--strict", url=url)
    assert said == "set limits of queue sync\n"
    found = row(engine)
    assert (found.running, found.rate_count, found.rate_seconds, found.rate_burst, found.strict, found.held) == (
        50, 500, 60.0, 20, True, True,
    )  # fmt: skip
    output(
        "limits", "set", "sync", "--running", "none", "--key-running", "1", "--key-rate", "20/s", "--key-burst", "3",
        "--max-waiting", "0", "--when-full", "drop_newest", "--not-strict", url=url,
    )  # fmt: skip
    found = row(engine)
    assert (found.running, found.rate_count, found.strict, found.max_waiting, found.when_full) == (
        None, 500, False, 0, "drop_newest",
    )  # fmt: skip
    assert (found.key_running, found.key_rate_count, found.key_rate_seconds, found.key_rate_burst) == (1, 20, 1.0, 3)
    output("limits", "set", "sync", "--rate", "None", "--key-rate", "none", "--max-waiting", "none", url=url)
    found = row(engine)
    assert (found.rate_count, found.key_rate_count, found.max_waiting, found.key_running) == (None, None, None, 1)


def test_set_is_for_a_task_or_a_key_too(engine: Engine, url: str) -> None:
    """As JSON it says what it has written."""
    assert output("limits", "set", "shop.sync", "--task", "--running", "3", url=url) == "set limits of task shop.sync\n"
    assert row(engine, "shop.sync", "task").running == 3
    answer = as_json(
        "limits", "set", "sync", "--key", "42", "--running", "2", "--weight", "5", "--rate", "7/1.5s", url=url
    )
    assert answer == {
        "action": "set", "owner": "queue", "name": "sync", "key": "42", "touched": True,
        "changes": {"running": 2, "rate_count": 7, "rate_seconds": 1.5, "rate_burst": 1, "weight": 5},
    }  # fmt: skip
    found = row(engine, key="42")
    assert (found.running, found.weight, found.rate_count, found.rate_seconds) == (2, 5, 7, 1.5)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["sync"], "say what changes, as in --running 50"),
        (["sync", "--running", "some"], "--running must be a whole number or none, not 'some'"),
        (["sync", "--running", "0"], "running must be an integer from 1 to 1,000,000, not 0"),
        (["sync", "--rate", "500"], "--rate must be a number and a time, as in 500/1m or 20/s, or none, not '500'"),
        (["sync", "--rate", "5/parsec"], "--rate must be a number and a time"),
        (["sync", "--key-rate", "1m/5"], "--key-rate must be a number and a time"),
        (["sync", "--rate", "0/s"], "a rate's count must be an integer from 1"),
        (["sync", "--rate", "5/0s"], "a rate's per must be from a microsecond to a year, not 0.0"),
        (["sync", "--burst", "5"], "--burst belongs to a rate: give --rate with it"),
        (["sync", "--key-rate", "none", "--key-burst", "5"], "--key-burst belongs to a rate: give --key-rate with it"),
        (["sync", "--max-waiting", "-1"], "max_waiting must be an integer from 0 to 1,000,000, not -1"),
        (["sync", "--when-full", "drop"], "when_full must be one of wait, drop_newest"),
        (["sync", "--weight", "5"], "--weight is the weight of a key: give --key with it"),
        (["sync", "--key", "42", "--weight", "0"], "weight must be an integer from 1 to 1,000, not 0"),
        (["sync", "--key", "42", "--strict"], "the other options are for all keys of a queue or task"),
        (["sync", "--key", "", "--running", "5"], "key must have 1 to 200 characters, not 0"),
        (["", "--running", "5"], "the queue's name must have 1 to 200 characters, not 0"),
        (["--running", "5"], "Missing argument 'NAME'"),
    ],
)
def test_set_refuses_what_cannot_be(engine: Engine, url: str, arguments: list[str], reason: str) -> None:
    """In one line; and writes nothing."""
    result = invoke("limits", "set", *arguments, url=url)
    assert (result.exit_code, result.stdout) == (2, "")
    assert reason in result.stderr
    assert row(engine) is None
    assert row(engine, key="42") is None


def test_remove_brings_back_what_code_declares(engine: Engine, url: str) -> None:
    """Or nothing; where there was no change by hand, exit code 1 says so."""
    declare(engine, "sync", Limits(running=3))
    output("limits", "set", "sync", "--running", "50", url=url)
    output("limits", "set", "sync", "--key", "42", "--running", "5", url=url)
    assert output("limits", "remove", "sync", url=url) == "removed limits of queue sync\n"
    assert (row(engine).running, row(engine).held) == (3, False)
    assert output("limits", "remove", "sync", "--key", "42", url=url) == "removed limits of queue sync, key 42\n"
    assert row(engine, key="42") is None
    again = invoke("limits", "remove", "sync", url=url)
    assert (again.exit_code, again.stdout, notes(again)) == (
        1, "", "queue sync has no limits that were set by hand\n",
    )  # fmt: skip


# ---- pausing


def test_a_queue_a_task_and_a_key_are_paused_and_resumed(engine: Engine, url: str) -> None:
    """Each by itself."""
    assert output("pause", "mail", "--reason", "an audit", url=url) == "paused queue mail\n"
    assert output("pause", "send", "--task", url=url) == "paused task send\n"
    assert output("pause", "mail", "--key", "4\n2", url=url) == "paused queue mail, key 4\\n2\n"
    assert row(engine, "mail").pause_reason == "an audit"
    assert row(engine, "send", "task").paused_at is not None
    assert row(engine, "mail", key="4\n2").paused_at is not None
    for arguments in (["mail"], ["send", "--task"], ["mail", "--key", "4\n2"]):
        assert as_json("resume", *arguments, url=url)["touched"]
    assert as_json("limits", "list", url=url) == []
    result = invoke("resume", "mail", "--json", url=url)
    assert result.exit_code == 1
    assert json.loads(result.stdout) == {
        "action": "resumed", "owner": "queue", "name": "mail", "key": None, "touched": False,
    }  # fmt: skip
    assert notes(invoke("resume", "mail", url=url)) == "queue mail is not paused\n"


def test_a_pause_needs_a_name(url: str) -> None:
    """There is none of all queues."""
    assert "Missing argument 'NAME'" in invoke("pause", url=url).stderr
    assert "key" in refused("pause", "mail", "--key", "", url=url)


def test_a_name_that_no_live_worker_serves_is_done_and_said(engine: Engine, url: str) -> None:
    """It may be misspelt, or that of a task. Without any workers nothing can be said."""
    hint = "no live worker serves a queue of this name; for a task add --task\n"
    assert notes(invoke("pause", "mial", url=url)) == ""
    worker = {"id": uuid.uuid4(), "host": "web-1", "pid": 7, "queues": ["mail"], "concurrency": 4, "version": "1"}
    with engine.begin() as connection:
        connection.execute(insert(WorkerRow).values(**worker))
    for arguments in (["pause", "mial"], ["limits", "set", "mial", "--running", "5"], ["pause", "mial", "--key", "42"]):
        result = invoke(*arguments, url=url)
        assert (result.exit_code, notes(result)) == (0, hint)
    assert notes(invoke("resume", "send", url=url)) == "queue send is not paused\n" + hint
    pause = ["pause", "--task", "shop.snd"]
    assert notes(invoke(*pause, url=url)) == ""  # a worker that lists no tasks may know any
    with engine.begin() as connection:
        connection.execute(update(WorkerRow).values(tasks={"shop.send": {"aliases": ["send"]}}))
    assert notes(invoke(*pause, url=url)) == "no live worker knows a task of this name; for a queue omit --task\n"
    assert notes(invoke("pause", "--task", "send", url=url)) == ""
    assert notes(invoke("limits", "remove", "send", url=url)).endswith(hint)
    for arguments in (["pause", "mail"], ["pause", "send", "--task"], ["resume", "mial"], ["limits", "remove", "mial"]):
        assert notes(invoke(*arguments, url=url)) == ""
    assert json.loads(invoke("pause", "mial", "--json", url=url).stdout)["touched"]


# ---- the list


def test_list_shows_what_limits_what_runs_and_what_waits(engine: Engine, url: str) -> None:
    """With pauses, their reasons without passwords, what waits because a handler has said so, and what is held."""
    declare(engine, "declared", Limits(running=3))
    output("limits", "set", "mail", "--running", "50", "--rate", "500/90s", "--burst", "20", url=url)
    output("limits", "set", "mail", "--key-running", "1", "--key-rate", "20/2h", "--strict", url=url)
    output("limits", "set", "mail", "--max-waiting", "7", "--when-full", "drop_newest", url=url)
    output("limits", "set", "mail", "--share", "time", url=url)
    output("limits", "set", "mail", "--key", "42", "--weight", "5", "--running", "2", url=url)
    output("pause", "send", "--task", "--reason", "see postgresql://me:secret@host/db", url=url)
    with engine.begin() as connection:
        for status in ("running", "queued"):
            make_job(connection, status, queue="mail", task="send", concurrency_key="42")
        state = insert(LimitState).values(
            owner="queue", name="declared", key="", blocked_until=text("now() + interval '30 min'")
        )
        connection.execute(state)
    header, declared, mail, key, send = output("limits", "list", url=url).splitlines()
    assert header.split() == ["OF", "RUNNING", "WAITING", "RATE", "EACH", "KEY", "NOTE"]
    assert declared.endswith("  rate limited by the other side, for 30m")
    assert mail.split("  ")[0] == "queue mail"
    assert "1 of 50        1  500/90s, burst 20" in mail
    assert "1 running, 20/2h, strict, 7 waiting, if full drop_newest, equal time" in mail
    assert mail.endswith("held")
    assert key.startswith("  key 42")
    assert "1 of 2" in key
    assert "weight 5" in key
    assert re.search(r"paused \d+s ago: see postgresql://me:\*{3}@host/db", send)
    rows = as_json("limits", "list", url=url)
    assert [(one["name"], one["key"], one["runs"], one["waits"], one["held"]) for one in rows] == [
        ("declared", None, 0, 0, False), ("mail", None, 1, 1, True), ("mail", "42", 1, 1, None), ("send", None, 1, 1, False),
    ]  # fmt: skip
    assert rows[0]["declared"]["running"] == 3
    assert "secret" not in json.dumps(rows)


def test_a_key_is_listed_below_its_queue_or_task_also_where_only_the_key_is_limited(engine: Engine, url: str) -> None:
    """And not below the one before it."""
    declare(engine, "mail", Limits(running=3))
    for key in ("1", "2"):
        output("limits", "set", "sync", "--key", key, "--weight", "5", url=url)
    output("limits", "set", "sync", "--task", "--key", "1", "--weight", "5", url=url)
    lines = output("limits", "list", url=url).splitlines()[1:]
    assert [" ".join(line.split()[:2]) for line in lines] == [
        "queue mail", "queue sync", "key 1", "key 2", "task sync", "key 1",
    ]  # fmt: skip


@pytest.mark.usefixtures("measured")
def test_list_in_80_columns_cuts_no_limit(engine: Engine, url: str) -> None:
    """What has no place beside the rest goes below each other, in a column of its own."""
    limits = Limits(
        rate=Rate(500, per=60, burst=50),
        per_key=KeyLimits(running=1),
        max_waiting=1,
        when_full="replace_oldest_waiting",
    )
    declare(engine, "previews", limits)
    output("limits", "set", "previews", "--key", "4\n2", "--weight", "5", url=url)
    output("pause", "previews", "--reason", "the renderer is down until Monday", url=url)
    shown = in_terminal("limits", "list", url=url, columns=80)
    assert "…" not in shown
    lines = [line.rstrip() for line in shown.splitlines()]
    assert re.fullmatch(r"queue previews +0 +0  500/1m, burst 50", lines[2])
    said = " ".join(line.strip() for line in lines[3:-1])
    assert "each key: 1 running, 1 waiting, if full replace_oldest_waiting paused" in said
    assert said.endswith("s ago: the renderer is down until Monday")
    assert re.fullmatch(r"  key 4\\n2 +0 +0  weight 5", lines[-1])
    assert "each key  " in in_terminal("limits", "list", url=url, columns=160)


def test_without_limits_list_says_how_to_set_some(url: str) -> None:
    """Exit code 0, and an empty list as JSON."""
    result = invoke("limits", "list", url=url)
    assert (result.exit_code, result.stdout) == (0, "")
    assert notes(result).startswith("no limits, and nothing is paused; `sa-jobqueue limits set`")
    assert as_json("limits", "list", url=url) == []
