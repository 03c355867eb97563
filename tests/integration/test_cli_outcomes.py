"""How jobs ended: `stats --since`."""

from __future__ import annotations

import json
import uuid
from datetime import datetime

import pytest
from rich.console import Console
from sqlalchemy import Engine, text

from sa_jobqueue.cli import output as printing
from sa_jobqueue.rules.tally import BUCKETS, TaskTally
from sa_jobqueue.sql.store import default_store as store
from tests.support.cli import as_json, invoke, notes, output, refused

WORKER = uuid.UUID(int=1)


def buckets(**numbers: int) -> tuple[int, ...]:
    return tuple(numbers.get(f"b{number}", 0) for number in range(BUCKETS))


@pytest.fixture
def counted(engine: Engine) -> None:
    """What a worker has counted in this minute, and some of it an hour ago, too."""
    tallies = [
        TaskTally("mail", "shop.tasks.send", completed=90, retried=7, failed=3, run_seconds=50.0, wait_seconds=200.0, runs=buckets(b6=95, b8=5), waits=buckets(b2=100)),
        TaskTally("mail", "shop.tasks.resize", completed=10, run_seconds=1.0, wait_seconds=1.0, runs=buckets(b4=10), waits=buckets(b4=10)),
        TaskTally("slow", "shop.tasks.send", completed=1, lost=2, run_seconds=100.0, wait_seconds=0.0, runs=buckets(b13=1), waits=buckets(b0=1)),
    ]  # fmt: skip
    with engine.begin() as connection:
        store.enrol(connection, WORKER, host="web-1", pid=47, queues=["mail"], concurrency=5, version="1")
        assert store.add_stats(connection, tallies, worker=WORKER, number=1)
        connection.execute(
            text(
                "INSERT INTO sa_jobqueue.stat SELECT seconds, at - interval '2 hours', completed, retried, failed, cancelled, snoozed, suspended, "
                "released, rescued, lost, run_seconds, wait_seconds, queue, task, runs, waits FROM sa_jobqueue.stat WHERE queue = 'slow'"
            )
        )


@pytest.mark.usefixtures("counted")
def test_outcomes_of_the_last_time_are_summed_by_task(url: str) -> None:
    """With rates, means and quantiles; the older row is not among them."""
    said = as_json("stats", "--since", "1h", "--by", "task", url=url)
    assert said["by"] == ["task"]
    resize, send = said["rows"]
    assert (resize["task"], resize["completed"], resize["run_p50"]) == ("shop.tasks.resize", 10, pytest.approx(0.075))
    assert {name: send[name] for name in ("task", "completed", "retried", "failed", "lost")} == {
        "task": "shop.tasks.send", "completed": 91, "retried": 7, "failed": 3, "lost": 2,
    }  # fmt: skip
    minutes = (datetime.fromisoformat(said["until"]) - datetime.fromisoformat(said["since"])).total_seconds() / 60
    assert 60 <= minutes <= 61
    assert send["per_minute"] == pytest.approx(94 / minutes)
    assert send["run_mean"] == pytest.approx(150 / 101)
    assert 0.25 < send["run_p50"] < 0.5
    assert 1.0 < send["run_p99"] < 2.5


@pytest.mark.usefixtures("counted")
def test_the_question_can_be_narrowed_and_spread(url: str) -> None:
    """By queue if nothing else is said; by both; of some queues and tasks; over time."""

    def rows(*options: str) -> list[tuple[object, ...]]:
        found = as_json("stats", "--since", "3h", *options, url=url)["rows"]
        return [(row.get("queue"), row.get("task"), row["completed"]) for row in found]

    assert rows() == [("mail", None, 100), ("slow", None, 2)]
    both = [("mail", "shop.tasks.resize", 10), ("mail", "shop.tasks.send", 90), ("slow", "shop.tasks.send", 2)]
    assert rows("--by", "task,queue") == rows("--by", "task", "--by", "queue") == both
    assert rows("--by", "task", "--queue", "slow") == [(None, "shop.tasks.send", 2)]
    assert rows("--task", "shop.tasks.resize") == [("mail", None, 10)]
    assert rows("--step", "30m", "--queue", "slow") == [(None, None, 1), (None, None, 1)]
    assert rows("--step", "30m", "--queue", "slow", "--by", "queue") == [("slow", None, 1)] * 2
    assert rows("--queue", "none") == []


@pytest.mark.usefixtures("counted")
def test_people_get_a_table_with_a_total(url: str) -> None:
    """Outcomes that did not happen have no column."""
    result = invoke("stats", "--since", "1h", "--by", "task", url=url)
    title, resize, send, total = result.stdout.splitlines()
    assert title.split()[:6] == ["TASK", "COMPLETED", "RETRIED", "FAILED", "LOST", "/MIN"]
    assert resize.split()[:5] == ["shop.tasks.resize", "10", "0", "0", "0"]
    assert send.split()[:5] == ["shop.tasks.send", "91", "7", "3", "2"]
    assert total.split()[:5] == ["(all)", "101", "7", "3", "2"]
    assert "/min: jobs that ended" in notes(result)


@pytest.mark.usefixtures("counted")
def test_a_step_shows_when_it_began(url: str) -> None:
    """To the minute, with the day where it is more than one."""
    times = [line.split()[0] for line in output("stats", "--since", "3h", "--step", "1m", url=url).splitlines()]
    assert times[0] == "SINCE"
    assert [datetime.strptime(time, "%H:%M").second for time in times[1:]] == [0, 0]  # noqa: DTZ007
    assert output("stats", "--since", "2d", "--step", "1h", url=url).splitlines()[1].count("-") == 1


@pytest.mark.parametrize("width", [80, 140])
@pytest.mark.parametrize("by", ["task", "queue", "queue,task"])
@pytest.mark.usefixtures("counted")
def test_the_table_fits_into_the_terminal(monkeypatch: pytest.MonkeyPatch, url: str, width: int, by: str) -> None:
    """At 80 columns without means and the highest quantile; no heading is cut."""
    monkeypatch.setattr(
        printing,
        "terminal",
        lambda stream: Console(file=stream, highlight=False, force_terminal=True, width=width, color_system=None),
    )
    lines = output("stats", "--since", "1h", "--by", by, url=url, env={"TERM": "xterm"}).splitlines()
    assert max(map(len, lines)) <= width
    assert "…" not in lines[0]
    assert "run p95 " in lines[0]
    assert ("run p99" in lines[0]) == (width == 140)


def test_nothing_counted_is_said(url: str) -> None:
    """As a note, and as JSON without rows."""
    assert notes(invoke("stats", "--since", "10m", url=url)) == "workers have counted no such jobs in the last 10m\n"
    assert json.loads(invoke("stats", "--since", "10m", "--json", url=url).stdout)["rows"] == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--since", "91d"], "--since must be 1m to 90d"),
        (["--since", "30s"], "--since must be 1m to 90d"),
        (["--since", "1h", "--by", "worker"], "'worker' is neither queue nor task"),
        (["--since", "1h", "--step", "10s"], "--step must be 1m or longer, not 10 s"),
        (["--since", "8d", "--step", "10m"], "--step must be 1h or longer if --since is over 7d"),
        (["--since", "7d", "--step", "1m"], "into more than 2,000 parts"),
        (["--since", "1h", "--lately", "2h"], "--lately and --since contradict each other"),
        (["--by", "task"], "--by needs --since"),
        (["--task", "a"], "--task needs --since"),
        (["--step", "1h"], "--step needs --since"),
    ],
)
def test_what_cannot_be_answered_is_refused(url: str, options: list[str], said: str) -> None:
    """With what would be right."""
    assert said in refused("stats", *options, url=url)


@pytest.mark.usefixtures("counted")
def test_counts_outlive_their_jobs(engine: Engine, url: str) -> None:
    """The table of jobs is empty all the while."""
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT count(*) FROM sa_jobqueue.job")) == 0
    assert as_json("stats", "--since", "1h", url=url)["rows"]
