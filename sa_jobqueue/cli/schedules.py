"""Looking at schedules: `schedule list` and `schedule next`."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import islice
from typing import Annotated, Any, NoReturn

import typer

from sa_jobqueue.errors import OptionError
from sa_jobqueue.log import one_line
from sa_jobqueue.models import Schedule
from sa_jobqueue.schedules import Cron, rule_of
from sa_jobqueue.schedules.coming import coming_ticks, state_of, zone_of
from sa_jobqueue.statements import list_schedules
from sa_jobqueue.urls import mask_passwords

from .config import Config
from .messages import fail
from .options import Json
from .output import Column, age, cleaned, masked, note, print_json, print_table
from .place import transaction

__all__ = [
    "SCHEDULE_COLUMNS", "Name", "list_", "next_", "no_schedule", "schedule_line", "schedule_style",
]  # fmt: skip


def _parse_name(text: str) -> str:
    if not 1 <= len(text) <= 200:
        raise typer.BadParameter(f"a schedule's name has 1 to 200 characters, not {len(text)}")
    return text


Name = Annotated[str, typer.Argument(metavar="NAME", parser=_parse_name, help="The schedule's name.")]

SCHEDULE_COLUMNS = (
    Column("schedule", wide=True, least=12),
    Column("rule", wide=True, least=10),
    Column("zone", optional=True),
    Column("next"),
    Column("last job", shortened=lambda said: said.partition(" ")[0]),
    Column("note", wide=True, least=16),
)


def list_(config: Config, *, json: Json = False) -> None:
    """List schedules: when each is due next, its last job, and why one is paused or cannot be used.

    The last job is one that has not finished, if there is any. Times are from now.

    sa-jobqueue schedule list
    sa-jobqueue schedule list --json
    """
    with transaction(config) as connection:
        rows = connection.execute(list_schedules()).mappings().all()
    if json:
        print_json([_as_json(row) for row in rows])
        return
    if not rows:
        note("no schedules; make one with `sa-jobqueue schedule add`, or in code with registry.schedule(...)")
        return
    print_table(SCHEDULE_COLUMNS, [schedule_line(row) for row in rows], styles=[schedule_style(row) for row in rows])


def next_(
    config: Config,
    name: Name,
    *,
    number: Annotated[
        int, typer.Option("--number", "-n", metavar="N", min=1, max=1_000, help="How many times to show.")
    ] = 5,
    json: Json = False,
) -> None:
    """Show the next times of a schedule, in its own zone and in UTC.

    sa-jobqueue schedule next shop.daily_report -n 10
    """
    with transaction(config) as connection:
        row = connection.execute(list_schedules().where(Schedule.name == name)).mappings().one_or_none()
    if row is None:
        no_schedule(name)
    rule = rule_of(row["expression"], row["timezone"])
    zone = zone_of(rule)
    times = list(islice(coming_ticks(rule, row), number))
    if json:
        print_json([{"utc": at, "local": at.astimezone(zone)} for at in times])
        return
    lines = [(_local(at.astimezone(zone)), f"{at:%Y-%m-%d %H:%M:%S}", _distance(at, row["now"])) for at in times]
    columns = [Column(rule.timezone if isinstance(rule, Cron) else "UTC"), Column("UTC"), Column("when")]
    if zone is UTC:
        columns, lines = [columns[0], columns[2]], [(line[0], line[2]) for line in lines]  # type: ignore[misc]
    print_table(columns, lines)
    if why := _note(row):
        note(f"paused: {why}; the times count from now" if row["paused_at"] is not None else why)


def no_schedule(name: str) -> NoReturn:
    """End the command: there is none of this name."""
    fail(f"there is no schedule {name!r}: `sa-jobqueue schedule list` shows those there are", 1)


def _local(at: datetime) -> str:
    offset = f"{at:%z}"
    return f"{at:%a %Y-%m-%d %H:%M:%S} {offset[:3]}:{offset[3:5]}"


def _distance(at: datetime, now: datetime) -> str:
    seconds = (at - now).total_seconds()
    return f"in {age(seconds)}" if seconds > 0 else f"due {age(seconds)}"


def _as_json(row: Any) -> dict[str, Any]:
    last = {key: row[f"job_{key}"] for key in ("id", "status", "created_at", "finished_at")}
    kept = {key: value for key, value in row.items() if not key.startswith("job_") and key != "now"}
    kept |= {"error": masked(row["error"]), "pause_reason": masked(row["pause_reason"])}
    return kept | {"state": state_of(row), "last_job": None if last["id"] is None else last}


def schedule_line(row: Any) -> tuple[object, ...]:
    """A schedule as a line of the list."""
    when = ""
    if state_of(row) == "active":
        when = _when(row)
    elif state_of(row) == "paused":
        when = "paused"
    last = ""
    if row["job_id"] is not None:
        since = row["job_finished_at"] or row["job_created_at"]
        last = f"{row['job_status']} {age((row['now'] - since).total_seconds(), short=True)}"
        last += " ago" if row["job_finished_at"] is not None else ""
    rule = " ".join(row["expression"].split())
    zone = "" if rule.startswith("every ") else row["timezone"]
    return row["name"], rule, zone, when, last, _note(row)


def _when(row: Any) -> str:
    try:
        at = next(coming_ticks(rule_of(row["expression"], row["timezone"]), row), None)
    except OptionError:
        return ""
    if at is None or at.year == 9_999:
        return "never"
    seconds = (at - row["now"]).total_seconds()
    return f"{'in' if seconds > 0 else 'due'} {age(seconds, short=True)}"


def _note(row: Any) -> str:
    if row["error"] is not None:
        said = f"error: {row['error']}"
    elif row["paused_at"] is not None:
        since = f"{age((row['now'] - row['paused_at']).total_seconds(), short=True)} ago"
        said = f"{row['pause_reason']} ({since})" if row["pause_reason"] else since
    elif row["waiting_since"] is not None:
        said = f"waits for the end of job {row['job_id']}"
    else:
        return ""
    return cleaned(one_line(mask_passwords(said)))


def schedule_style(row: Any) -> str:
    """How its line looks."""
    if state_of(row) == "bad":
        return "red"
    return "dim" if state_of(row) == "paused" else "yellow" if row["job_status"] == "failed" else ""
