"""Makes the Grafana board that the package ships.

python -m tests.support.grafana_board        writes sa_jobqueue/metrics/grafana.json
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from grafana_foundation_sdk.builders import dashboard, prometheus, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import DataSourceRef

from sa_jobqueue import metrics
from sa_jobqueue.metrics import names
from sa_jobqueue.metrics.names import Metric

FILE = Path(metrics.__file__).with_name("grafana.json")

#: What the reader of the board chooses: the database of Prometheus, and the queues.
_SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
_QUEUES = 'queue=~"$queue"'
_OF_QUEUES, _OF_TASKS = 'owner="queue",name=~"$queue"', 'owner="task"'


@dataclass(frozen=True)
class Line:
    """One expression of a panel, and how its series are named."""

    expr: str
    legend: str


@dataclass(frozen=True)
class Panel:
    """One chart. `unit`: one of Grafana's."""

    title: str
    unit: str
    lines: tuple[Line, ...]
    about: str = ""


def rate(metric: Metric, *by: str, where: str = "") -> str:
    """Per second, by these labels. Processes that ask the same database say the same: of these the largest counts."""
    how = "max" if metric in names.DATABASE else "sum"
    name = metric.series[0]
    selector = f"{{{where}}}" if where else ""
    return f"{how}{_by(by)} (rate({name}{selector}[$__rate_interval]))"


def gauge(metric: Metric, *by: str, where: str = "", how: str = "sum") -> str:
    """A gauge of all instances together."""
    return f"{how}{_by(by)} ({metric.name}{f'{{{where}}}' if where else ''})"


def _by(labels: tuple[str, ...]) -> str:
    return f" by ({', '.join(labels)})" if labels else ""


def quantiles(metric: Metric, where: str = "", *by: str) -> tuple[Line, ...]:
    """The p50, p95 and p99 of a histogram."""
    selector = f"{{{where}}}" if where else ""
    counted = f"sum by ({', '.join(('le', *by))}) (rate({metric.series[0]}{selector}[$__rate_interval]))"
    legend = " ".join(f"{{{{{label}}}}}" for label in by)
    return tuple(
        Line(f"histogram_quantile({q}, {counted})", f"{legend} p{round(q * 100)}".strip()) for q in (0.5, 0.95, 0.99)
    )


def _one(title: str, unit: str, expr: str, legend: str, about: str = "") -> Panel:
    return Panel(title, unit, (Line(expr, legend),), about)


_CLAIM_INDEXES = 'index=~"job_claim_idx|job_key_ready_idx|job_key_later_idx"'

ROWS: dict[str, tuple[Panel, ...]] = {
    "Throughput": (
        _one(
            "Attempts by outcome", "ops", rate(names.JOBS, "outcome", where=_QUEUES), "{{outcome}}",
            "How attempts ended, per second.",
        ),
        _one("Completed by queue", "ops", rate(names.JOBS, "queue", where=f'outcome="completed",{_QUEUES}'), "{{queue}}"),
        _one("Completed by task", "ops", rate(names.JOBS, "task", where=f'outcome="completed",{_QUEUES}'), "{{task}}"),
    ),
    "Latency": (
        Panel(
            "Wait", "s", quantiles(names.WAIT_SECONDS, _QUEUES, "queue"), "How long jobs had been due when they started."
        ),
        Panel("Run time", "s", quantiles(names.RUN_SECONDS, _QUEUES, "queue"), "How long handlers took."),
        Panel("Claim", "s", quantiles(names.CLAIM_SECONDS), "How long claims took, with the outcomes written along."),
    ),
    "Failures": (
        _one("Failed for good, by task", "ops", rate(names.JOBS, "task", where=f'outcome="failed",{_QUEUES}'), "{{task}}"),
        _one("To be retried, by task", "ops", rate(names.JOBS, "task", where=f'outcome="retried",{_QUEUES}'), "{{task}}"),
        Panel(
            "Rescued and lost", "ops",
            (
                Line(rate(names.RESCUED, "queue", where=_QUEUES), "{{queue}} rescued"),
                Line(rate(names.JOBS, "queue", where=f'outcome="lost",{_QUEUES}'), "{{queue}} lost"),
            ),
            "Jobs taken over from dead workers, and outcomes that came after their claim was over.",
        ),
        _one("Failed jobs that are kept", "short", gauge(names.FAILED, "queue", where=_QUEUES, how="max"), "{{queue}}"),
    ),
    "Backlog": (
        _one("Due", "short", gauge(names.DUE, "queue", where=_QUEUES, how="max"), "{{queue}}", "Counted up to 10,001."),
        _one("Queued, due or not", "short", gauge(names.QUEUED, "queue", where=_QUEUES, how="max"), "{{queue}}"),
        _one("Age of the oldest due job", "s", gauge(names.OLDEST_DUE, "queue", where=_QUEUES, how="max"), "{{queue}}"),
        Panel(
            "Schedules", "short",
            (
                Line(gauge(names.SCHEDULES, how="max"), "active"),
                Line(gauge(names.SCHEDULES_BEHIND, how="max"), "behind"),
                Line(gauge(names.SCHEDULES_FAILING, how="max"), "failing"),
            ),
        ),
        _one("Schedules: furthest behind", "s", gauge(names.SCHEDULE_BEHIND_SECONDS, how="max"), "behind"),
    ),
    "Limits and pauses": (
        Panel(
            "Permits of queues", "short",
            (
                Line(gauge(names.LIMIT_USED, "name", where=_OF_QUEUES, how="max"), "{{name}} used"),
                Line(gauge(names.LIMIT_RUNNING, "name", where=_OF_QUEUES, how="max"), "{{name}} limit"),
            ),
            "How many jobs run, and how many may run at once.",
        ),
        Panel(
            "Permits of tasks", "short",
            (
                Line(gauge(names.LIMIT_USED, "name", where=_OF_TASKS, how="max"), "{{name}} used"),
                Line(gauge(names.LIMIT_RUNNING, "name", where=_OF_TASKS, how="max"), "{{name}} limit"),
            ),
        ),
        _one(
            "Due, and waiting because of a pause", "short", gauge(names.PAUSED_DUE, "owner", "name", how="max"), "{{owner}} {{name}}",
            "Counted up to 10,001.",
        ),
        Panel(
            "Limited and paused", "short",
            (
                Line(f"sum ({gauge(names.LIMITED, 'owner', 'name', how='max')})", "limited"),
                Line(f"sum ({gauge(names.PAUSED, 'owner', 'name', how='max')})", "paused"),
                Line(f"sum ({gauge(names.BREAKERS_OPEN, 'task', how='max')})", "breakers open"),
            ),
            "How many queues and tasks; and breakers of tasks and keys.",
        ),
        _one("Keys with ready jobs", "short", gauge(names.READY_KEYS, "queue", where=_QUEUES, how="max"), "{{queue}}", "Counted up to 1,001."),
    ),
    "Workflows": (
        _one("Workflows", "short", gauge(names.WORKFLOWS, "state", how="max"), "{{state}}", "Counted up to 10,001."),
        _one("Age of the oldest that runs", "s", gauge(names.WORKFLOW_OLDEST, how="max"), "oldest"),
        _one(
            "Not read by a worker yet", "short", gauge(names.WORKFLOW_EVENTS, how="max"), "events",
            "What has happened to jobs of workflows. Of paused ones it stays until they are resumed. Counted up to 10,001.",
        ),
        Panel(
            "Workflows to be moved on", "short",
            (
                Line(gauge(names.WORKFLOWS_BEHIND, how="max"), "not read"),
                Line(gauge(names.WORKFLOWS_OVERDUE, how="max"), "past their deadline"),
            ),
            "Under load some are always there. Those not read are counted up to 101.",
        ),
        _one(
            "Not moved on for", "s", gauge(names.WORKFLOW_BEHIND_SECONDS, how="max"), "behind",
            "How long ago the first job ended whose end was not read. Paused workflows are left out.",
        ),
    ),
    "Workers and slots": (
        Panel(
            "Slots", "short",
            (
                Line(gauge(names.SLOTS, "queue", where=_QUEUES), "{{queue}} slots"),
                Line(gauge(names.SLOTS_BUSY, "queue", where=_QUEUES), "{{queue}} busy"),
                Line(gauge(names.SLOTS_STUCK, "queue", where=_QUEUES), "{{queue}} stuck"),
                Line(gauge(names.BUFFERED, "queue", where=_QUEUES), "{{queue}} buffered"),
            ),
        ),
        Panel(
            "Processes", "short",
            (
                Line(gauge(names.PROCESSES), "serving"),
                Line(gauge(names.LISTENING), "listening"),
                Line(gauge(names.WORKERS, "state", how="max"), "{{state}} by the database"),
            ),
        ),
        _one("Live workers by queue", "short", gauge(names.QUEUE_WORKERS, "queue", where=_QUEUES, how="max"), "{{queue}}"),
        _one("Running by queue", "short", gauge(names.RUNNING, "queue", where=_QUEUES, how="max"), "{{queue}}"),
        _one("Memory", "bytes", names.MEMORY.name, "{{instance}} {{process}}"),
        _one("Event loop: time to answer", "s", names.LOOP_LAG.name, "{{instance}} {{process}}"),
        _one("Outcomes that wait to be written", "short", gauge(names.UNWRITTEN, "instance"), "{{instance}}"),
        _one("Share of slots claimed for", "percentunit", names.CLAIM_SHARE.name, "{{instance}} {{process}}"),
    ),
    "Database": (
        Panel(
            "Answers", "short",
            (Line(gauge(names.UP, how="min"), "up"), Line(gauge(names.READ, "part", how="min"), "{{part}} read")),
        ),
        _one("Oldest snapshot", "s", gauge(names.SNAPSHOT_SECONDS, how="max"), "age"),
        _one("Oldest snapshot in transactions", "short", gauge(names.SNAPSHOT_XIDS, how="max"), "transactions"),
        _one("Sessions that wait for locks", "short", gauge(names.LOCK_WAITS, how="max"), "waiting"),
        Panel(
            "Connections", "short",
            (
                Line(gauge(names.CONNECTIONS, how="max"), "used"),
                Line(gauge(names.ACTIVE, how="max"), "active"),
                Line(gauge(names.CONNECTIONS_MAX, how="max"), "allowed"),
            ),
        ),
        _one(
            "Index entries read per job claimed", "short",
            f"sum ({rate(names.INDEX_ROWS_READ, 'index', where=_CLAIM_INDEXES)}) / clamp_min({rate(names.CLAIMED)}, 0.1)", "entries",
            "Claims that meet many dead rows read many entries.",
        ),
        _one("Scans of indexes", "ops", rate(names.INDEX_SCANS, "index"), "{{index}}"),
        Panel(
            "Dead and live rows", "short",
            (
                Line(gauge(names.TABLE_DEAD, "table", how="max"), "{{table}} dead"),
                Line(gauge(names.TABLE_LIVE, "table", how="max"), "{{table}} live"),
            ),
        ),
        Panel(
            "Size", "bytes",
            (
                Line(gauge(names.TABLE_BYTES, "table", how="max"), "{{table}}"),
                Line(gauge(names.INDEX_BYTES, "index", how="max"), "{{index}}"),
            ),
        ),
        _one("Time since the last vacuum", "s", gauge(names.TABLE_SINCE_VACUUM, "table", how="max"), "{{table}}"),
        _one("Time since the last analyze", "s", gauge(names.TABLE_SINCE_ANALYZE, "table", how="max"), "{{table}}"),
        _one("Autovacuums", "ops", rate(names.TABLE_AUTOVACUUMS, "table"), "{{table}}"),
        _one("Transactions", "ops", rate(names.TRANSACTIONS, "end"), "{{end}}"),
        _one("Deadlocks", "ops", rate(names.DEADLOCKS), "deadlocks"),
        _one("Blocks of this database", "ops", rate(names.BLOCKS, "from"), "{{from}}"),
        _one("Time for blocks of this database", "s", rate(names.BLOCK_SECONDS, "what"), "{{what}}", "Per second."),
        _one("Blocks by process", "ops", rate(names.IO_BLOCKS, "process", "what"), "{{process}} {{what}}", "PostgreSQL 16 and later."),
        _one("Time for blocks by process", "s", rate(names.IO_SECONDS, "process", "what"), "{{process}} {{what}}", "Per second; PostgreSQL 16 and later."),
        _one("Temporary files", "Bps", rate(names.TEMP_BYTES), "written"),
        _one("Notification queue", "percentunit", gauge(names.NOTIFY_QUEUE, how="max"), "full"),
        _one("Standbys: behind", "s", gauge(names.REPLICATION_SECONDS, how="max"), "behind"),
        _one("Standbys: WAL not replayed", "bytes", gauge(names.REPLICATION_BYTES, how="max"), "behind"),
        _one("Age of the oldest row not frozen", "short", gauge(names.FROZEN_AGE, how="max"), "transactions"),
        _one("The doctor's problems", "short", gauge(names.FINDING, "check", where='level="problem"', how="max"), "{{check}}"),
    ),
    "Cleanup": (
        _one("Finished jobs to delete", "short", gauge(names.OVERDUE, how="max"), "overdue", "Counted up to 10,001."),
        _one("Overdue for", "s", gauge(names.OVERDUE_SECONDS, how="max"), "overdue"),
    ),
}  # fmt: skip


def expressions() -> Iterator[str]:
    """All expressions of the board."""
    for panels in ROWS.values():
        for panel in panels:
            for line in panel.lines:
                yield line.expr


def board() -> dict[str, Any]:
    """The board, as Grafana imports it."""
    builder = (
        dashboard.Dashboard("sa_jobqueue")
        .uid("sa-jobqueue")
        .tags(["sa_jobqueue"])
        .editable()
        .refresh("30s")
        .time("now-3h", "now")
        .timezone("browser")
        .with_variable(dashboard.DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
        .with_variable(
            dashboard.QueryVariable("queue")
            .label("Queue")
            .datasource(_SOURCE)
            .query(f"label_values({names.JOBS.name}, queue)")
            .multi(True)
            .include_all(True)
            .all_value(".*")
        )
    )
    ids = count(1)
    for title, panels in ROWS.items():
        builder = builder.with_row(dashboard.Row(title).id(next(ids)))
        for panel in panels:
            builder = builder.with_panel(_chart(panel).id(next(ids)))
    made: dict[str, Any] = json.loads(JSONEncoder(sort_keys=True).encode(builder.build()))
    for panel in made["panels"]:
        if panel.get("options", ...) is None:
            del panel["options"]
    return made


def _chart(panel: Panel) -> timeseries.Panel:
    chart = (
        timeseries.Panel()
        .title(panel.title)
        .description(panel.about)
        .unit(panel.unit)
        .min(0)
        .datasource(_SOURCE)
        .height(8)
        .span(8)
        .fill_opacity(10)
    )
    for number, line in enumerate(panel.lines):
        query = prometheus.Dataquery().expr(line.expr).legend_format(line.legend).ref_id(chr(ord("A") + number))
        chart = chart.with_target(query.range())
    return chart


def text() -> str:
    """The file."""
    return json.dumps(board(), indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
