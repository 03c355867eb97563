"""The alerts, tried by Prometheus's own promtool: each fires on what it is for, and none on a queue that is well."""

from __future__ import annotations

import shutil
import subprocess
from importlib.resources import as_file
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.expressions import RULES, alerts

PROMTOOL = shutil.which("promtool")
pytestmark = pytest.mark.skipif(PROMTOOL is None, reason="there is no promtool here (Debian's package prometheus)")

#: Minutes of each series; the alerts are looked at a little earlier.
LENGTH, AT = 90, "85m"
DB, WORKER = 'job="db",instance="db:9101"', 'job="workers",instance="web:9100"'
MAIL, SEND = f'{WORKER},queue="mail"', f'{WORKER},queue="mail",task="send"'

#: A queue that is well: 600 jobs a minute, of which one fails.
HEALTHY = {
    f"sa_jobqueue_database_up{{{DB}}}": "1",
    f'sa_jobqueue_oldest_due_seconds{{{DB},queue="mail"}}': "2",
    f'sa_jobqueue_due{{{DB},queue="mail"}}': "30",
    f'sa_jobqueue_queue_workers{{{DB},queue="mail"}}': "2",
    f'sa_jobqueue_workers{{{DB},state="live"}}': "2",
    f'sa_jobqueue_workers{{{DB},state="stale"}}': "0",
    f'sa_jobqueue_jobs_total{{{SEND},outcome="completed"}}': "0+599x",
    f'sa_jobqueue_jobs_total{{{SEND},outcome="failed"}}': "0+1x",
    f'sa_jobqueue_jobs_total{{{SEND},outcome="lost"}}': "0",
    f"sa_jobqueue_rescued_total{{{SEND}}}": "3",
    f'sa_jobqueue_claim_seconds_bucket{{{WORKER},le="0.005"}}': "0+100x",
    f'sa_jobqueue_claim_seconds_bucket{{{WORKER},le="0.5"}}': "0+100x",
    f'sa_jobqueue_claim_seconds_bucket{{{WORKER},le="+Inf"}}': "0+100x",
    f"sa_jobqueue_unwritten{{{WORKER}}}": "12",
    f'sa_jobqueue_loop_lag_seconds{{{WORKER},process="1"}}': "0.004",
    f"sa_jobqueue_slots_stuck{{{MAIL}}}": "0",
    f'sa_jobqueue_claim_share{{{WORKER},process="1"}}': "1",
    f'sa_jobqueue_paused{{{DB},owner="queue",name="mail"}}': "0",
    f'sa_jobqueue_paused{{{DB},owner="queue",name="idle"}}': "1",  # and no job waits
    f'sa_jobqueue_paused_due{{{DB},owner="queue",name="mail"}}': "5",  # of a key that is paused
    f'sa_jobqueue_paused_due{{{DB},owner="queue",name="idle"}}': "0",
    f"sa_jobqueue_workflow_behind_seconds{{{DB}}}": "1.5",
    f"sa_jobqueue_schedules_behind{{{DB}}}": "0",
    f"sa_jobqueue_schedules_failing{{{DB}}}": "0",
    f"sa_jobqueue_purge_overdue_seconds{{{DB}}}": "20",
    f"sa_jobqueue_database_oldest_snapshot_seconds{{{DB}}}": "900",  # a report, but few rows died meanwhile
    f'sa_jobqueue_table_dead_rows{{{DB},table="job"}}': "5000",
    f"sa_jobqueue_database_lock_waits{{{DB}}}": "1",
    f"sa_jobqueue_database_connections{{{DB}}}": "40",
    f"sa_jobqueue_database_connections_max{{{DB}}}": "97",
    f"sa_jobqueue_database_notify_queue_ratio{{{DB}}}": "0",
    f"sa_jobqueue_database_replication_lag_seconds{{{DB}}}": "1",
    f"sa_jobqueue_database_frozenxid_age{{{DB}}}": "150000000",
    f'sa_jobqueue_doctor_finding{{{DB},check="plans",level="problem"}}': "0",
}

#: What makes each alert fire: series that take the place of healthy ones.
ILL: dict[str, dict[str, str]] = {
    "JobsWaitTooLong": {f'sa_jobqueue_oldest_due_seconds{{{DB},queue="mail"}}': "301"},
    "QueueNotServed": {f'sa_jobqueue_queue_workers{{{DB},queue="mail"}}': "0"},
    "NoWorker": {f'sa_jobqueue_workers{{{DB},state="live"}}': "0"},
    "JobsFail": {f'sa_jobqueue_jobs_total{{{SEND},outcome="failed"}}': "0+80x"},
    "RescuesRise": {f"sa_jobqueue_rescued_total{{{SEND}}}": "0+1x"},
    "OutcomesLost": {f'sa_jobqueue_jobs_total{{{SEND},outcome="lost"}}': "0+1x"},
    "ClaimsSlow": {f'sa_jobqueue_claim_seconds_bucket{{{WORKER},le="0.005"}}': "0+5x"},
    "OutcomesUnwritten": {f"sa_jobqueue_unwritten{{{WORKER}}}": "1001"},
    "WorkerLoopBlocked": {f'sa_jobqueue_loop_lag_seconds{{{WORKER},process="1"}}': "6"},
    "SlotsStuck": {f"sa_jobqueue_slots_stuck{{{MAIL}}}": "1"},
    "WorkersHeldBack": {f'sa_jobqueue_claim_share{{{WORKER},process="1"}}': "0.25"},
    "PausedForLong": {f'sa_jobqueue_paused{{{DB},owner="queue",name="mail"}}': "1"},
    "WorkflowsStandStill": {f"sa_jobqueue_workflow_behind_seconds{{{DB}}}": "121"},
    "ScheduleBehind": {f"sa_jobqueue_schedules_behind{{{DB}}}": "1"},
    "ScheduleFails": {f"sa_jobqueue_schedules_failing{{{DB}}}": "1"},
    "CleanupBehind": {f"sa_jobqueue_purge_overdue_seconds{{{DB}}}": "4000"},
    "OldSnapshot": {f'sa_jobqueue_table_dead_rows{{{DB},table="job"}}': "100001"},
    "DeadRows": {
        f"sa_jobqueue_database_oldest_snapshot_seconds{{{DB}}}": "60",
        f'sa_jobqueue_table_dead_rows{{{DB},table="job"}}': "2000000",
    },
    "LockWaits": {f"sa_jobqueue_database_lock_waits{{{DB}}}": "11"},
    "ConnectionsNearMax": {f"sa_jobqueue_database_connections{{{DB}}}": "90"},
    "NotifyQueueFills": {f"sa_jobqueue_database_notify_queue_ratio{{{DB}}}": "0.4"},
    "StandbyBehind": {f"sa_jobqueue_database_replication_lag_seconds{{{DB}}}": "400"},
    "FrozenAge": {f"sa_jobqueue_database_frozenxid_age{{{DB}}}": "900000000"},
    "DatabaseAway": {f"sa_jobqueue_database_up{{{DB}}}": "0"},
    "DoctorFindsProblem": {f'sa_jobqueue_doctor_finding{{{DB},check="plans",level="problem"}}': "1"},
}


def test_promtool_accepts_the_rules() -> None:
    """Their syntax, and that of their templates."""
    with as_file(RULES) as file:
        done = subprocess.run([str(PROMTOOL), "check", "rules", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_fires_on_what_it_is_for_and_none_on_a_queue_that_is_well(tmp_path: Path) -> None:
    """One alert fires in each ill world, and that one alone; in the healthy one none does."""
    assert set(ILL) == set(alerts())
    for name, changed in ILL.items():
        assert set(changed) <= set(HEALTHY), f"{name}: a series that the healthy queue does not have"
    tests = [world("well", {}, []), *(world(name, changed, [name]) for name, changed in ILL.items())]
    (tmp_path / "rules.yaml").write_text(RULES.read_text(encoding="utf-8"), encoding="utf-8")
    file = tmp_path / "tests.yaml"
    file.write_text(yaml.safe_dump({"rule_files": ["rules.yaml"], "evaluation_interval": "5m", "tests": tests}))
    done = subprocess.run([str(PROMTOOL), "test", "rules", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def world(name: str, changed: dict[str, str], firing: list[str]) -> dict[str, Any]:
    """A test of promtool's: these series, and the alerts that fire."""
    return {
        "name": name,
        "interval": "1m",
        "input_series": [
            {"series": series, "values": f"{values}{LENGTH}" if "+" in values else f"{values}+0x{LENGTH}"}
            for series, values in (HEALTHY | changed).items()
        ],
        "promql_expr_test": [
            {
                "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                "eval_time": AT,
                "exp_samples": [{"labels": f'{{alertname="{one}"}}', "value": 1} for one in firing],
            }
        ],
    }
