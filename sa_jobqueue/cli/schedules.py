"""Looking at schedules: `schedule list` and `schedule next`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from functools import partial
from itertools import islice
from typing import Annotated, Any, NoReturn, get_args

import sqlalchemy as sa
import typer
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from ..enqueueing.backfill import plan_backfill
from ..errors import ConfigurationError, OptionError
from ..models import Overlap, Schedule
from ..rules.schedules import Cron, Every, Missed, coming_ticks, every, rule_of, state_of, zone_of
from ..rules.words import age, jobs_of
from ..statements import list_schedules, pause_schedules, remove_schedules, resume_schedules, run_schedules
from ..util.log import one_line
from ..util.urls import mask_passwords, masked
from .config import Config, Json, Key, Units, parse_duration, parse_moment
from .enqueue import call_of
from .output import Column, cleaned, fail, moment, note, print_json, print_table, say
from .place import transaction


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


# ---- Acting on schedules: `schedule add`, `pause`, `resume`, `run`, `backfill`, `remove`.

_MISSED, _OVERLAP = ", ".join(get_args(Missed)), ", ".join(get_args(Overlap))

#: None, because click before 8.3 refuses an empty list as the default of an argument.
Names = Annotated[list[str] | None, typer.Argument(metavar="NAME", help="These schedules.", show_default=False)]
#: Schedules that are named one by one.
_NAMED = 20
All = Annotated[bool, typer.Option("--all", help="All schedules.")]


def add(
    config: Config,
    *,
    rule: Annotated[str, typer.Argument(metavar="RULE", help='A cron expression, or "every 5m".')],
    task: Annotated[str, typer.Argument(metavar="TASK", help="The task's name, as in shop.send_receipt.")],
    arguments: Annotated[
        str, typer.Argument(metavar="JSON", help="Its arguments by name, as a JSON object; - reads them from stdin.")
    ] = "{}",
    name: Annotated[str | None, typer.Option(metavar="NAME", help="The schedule's name. Default: the task's.")] = None,
    timezone: Annotated[
        str, typer.Option(metavar="ZONE", help="The zone of a cron expression, as in Europe/Vienna.")
    ] = "UTC",
    queue: Annotated[
        str | None, typer.Option("--queue", "-q", metavar="NAME", help="The jobs' queue. Default: the task's.")
    ] = None,
    priority: Annotated[
        int | None, typer.Option(metavar="0-9", help="Higher first. Default: the task's, or 4.", show_default=False)
    ] = None,
    max_attempts: Annotated[
        int | None, typer.Option(metavar="N", help="Fail after N attempts. Default: the task's, or 10.")
    ] = None,
    expires_in: Annotated[
        timedelta | None,
        typer.Option(
            metavar="TIME", parser=parse_duration, help="Cancel a job if no attempt was made after this time."
        ),
    ] = None,
    deadline: Annotated[
        timedelta | None,
        typer.Option(metavar="TIME", parser=parse_duration, help="Time for all attempts of a job together."),
    ] = None,
    key: Key = None,
    units: Units = None,
    missed: Annotated[
        str, typer.Option(metavar="CHOICE", help=f"What becomes of ticks at which no worker was there: {_MISSED}.")
    ] = "once",
    catch_up: Annotated[
        timedelta | None,
        typer.Option(metavar="TIME", parser=parse_duration, help="Leave out ticks that are longer ago: 45s, 10m, 2h."),
    ] = None,
    overlap: Annotated[
        str, typer.Option(metavar="CHOICE", help=f"If a job is not finished at the next tick: {_OVERLAP}.")
    ] = "allow",
    jitter: Annotated[
        timedelta | None,
        typer.Option(metavar="TIME", parser=parse_duration, help="Each job is due up to this much later, by chance."),
    ] = None,
    pause_after: Annotated[
        int | None, typer.Option(metavar="N", help="Pause when N jobs in a row have failed.")
    ] = None,
    json: Json = False,
) -> None:
    """Make a schedule, and print its name.

    With --app the task must be there, and the arguments are checked against its handler; without, the worker does that.

    sa-jobqueue schedule add "0 7 * * mon-fri" shop.report '{"region": "EU"}' --timezone Europe/Vienna
    sa-jobqueue schedule add "every 5m" shop.clean_up --overlap skip
    """
    call = call_of(
        config, task, arguments, queue=queue, priority=priority, max_attempts=max_attempts, expires_in=expires_in,
        deadline=deadline, key=key, units=units,
    )  # fmt: skip
    options: dict[str, Any] = {
        "name": name, "timezone": timezone, "missed": missed, "catch_up": catch_up, "overlap": overlap,
        "jitter": jitter or 0.0, "pause_after": pause_after,
    }  # fmt: skip
    schedule = Schedule(_rule(rule), call, **options)
    parsed = rule_of(schedule.expression, schedule.timezone)
    made = schedule.name
    try:
        with transaction(config, make=True) as connection, Session(connection) as session:
            session.add(schedule)
            session.flush()
            first = parsed.after(schedule.counts_from)
    except IntegrityError as error:
        if getattr(error.orig, "sqlstate", None) != "23505":
            raise
        fail(f"there is a schedule {made!r} already: remove it first, or give this one another name by --name")
    if json:
        print_json({"name": made, "next_at": first})
        return
    say(cleaned(made))
    note(f"{call.task} · queue {call.queue} · {schedule.expression} · first at {moment(first)}")


def pause(
    config: Config,
    names: Names = None,
    *,
    all: All = False,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="What `list` says of it.")] = "paused by an operator",
    json: Json = False,
) -> None:
    """Pause schedules: they enqueue nothing until they are resumed, whatever is deployed meanwhile.

    Jobs that are enqueued already are not touched.

    sa-jobqueue schedule pause shop.daily_report --reason "the provider is down"
    """
    _act(config, names or [], partial(pause_schedules, reason=reason), done="paused", all=all, json=json)


def resume(
    config: Config,
    names: Names = None,
    *,
    all: All = False,
    json: Json = False,
) -> None:
    """Let paused schedules go on, from now: the ticks of the pause are left out.

    `backfill` enqueues them if you want them after all.

    sa-jobqueue schedule resume shop.daily_report
    """
    _act(config, names or [], resume_schedules, done="resumed", all=all, json=json, left="is not paused")


def remove(
    config: Config,
    names: Names = None,
    *,
    json: Json = False,
) -> None:
    """Delete schedules. Their jobs stay.

    One that code declares comes back with the next worker that declares it: pause that one.

    sa-jobqueue schedule remove old_report
    """
    _act(config, names or [], remove_schedules, done="removed", json=json)


def run(config: Config, name: Name, *, json: Json = False) -> None:
    """Enqueue a job of a schedule now, beside its ticks, also if it is paused. Print the job's id.

    sa-jobqueue schedule run shop.daily_report
    """
    with transaction(config) as connection:
        ids = list(connection.scalars(run_schedules(Schedule.name == name)))
    if not ids:
        no_schedule(name)
    if json:
        print_json({"id": ids[0], "schedule": name})
        return
    typer.echo(ids[0])


def backfill(
    config: Config,
    name: Name,
    *,
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="TIME",
            help="From this time on: 2030-01-31, 2030-01-31T09:00+01:00, or 2d ago as 2d. In the schedule's zone, if it names none.",
        ),
    ],
    end: Annotated[
        str | None, typer.Option("--to", metavar="TIME", help="Before this time. Default: now.", show_default=False)
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say how many jobs it would be; change nothing.")
    ] = False,
    json: Json = False,
) -> None:
    """Enqueue a job for each tick of a range of time that has none.

    A tick whose job is still in the table is left out, so a second backfill enqueues nothing. All jobs are due at once, whatever
    the schedule's overlap says. All are enqueued, or none. At most 100,000 ticks.

    sa-jobqueue schedule backfill shop.daily_report --from 2030-01-01 --to 2030-02-01 --dry-run
    """
    with transaction(config) as connection:
        row = connection.execute(
            sa.select(Schedule.expression, Schedule.timezone, sa.func.now().label("now")).where(Schedule.name == name)
        ).one_or_none()
        if row is None:
            no_schedule(name)
        zone = zone_of(rule_of(row.expression, row.timezone))
        since = _time(start, "--from", zone, row.now)
        until = None if end is None else _time(end, "--to", zone, row.now)
        if until is not None and until <= since:
            raise OptionError(f"--to must be later than --from, not {end!r}")
        plan = plan_backfill(connection, name, since, until, lock=not dry_run)
        if plan is None:
            no_schedule(name)
        if not dry_run:
            plan.enqueue(connection)
    ticks = plan.ticks
    if json:
        print_json(
            {
                "schedule": name, "count": len(ticks), "first": ticks[0] if ticks else None,
                "last": ticks[-1] if ticks else None, "there": plan.there, "left_from": plan.left_from, "dry_run": dry_run,
            }
        )  # fmt: skip
        return
    between = ""
    if ticks:
        first, last = (at.astimezone(zone).isoformat(sep=" ", timespec="seconds") for at in (ticks[0], ticks[-1]))
        between = f", for {first}" if len(ticks) == 1 else f", for {first} to {last}"
    say(f"{'would enqueue' if dry_run else 'enqueued'} {jobs_of(len(ticks))}{between}")
    if plan.there:
        note(f"{plan.there:,} tick{'' if plan.there == 1 else 's'} left out, whose jobs are there")
    if plan.left_from is not None:
        note(
            f"ticks from {plan.left_from.astimezone(zone).isoformat(sep=' ', timespec='seconds')} on are left to the workers"
        )


def _act(
    config: Config,
    names: Sequence[str],
    build: Callable[[sa.ColumnElement[bool]], sa.Executable],
    *,
    done: str,
    json: bool,
    all: bool = False,
    left: str = "no such schedule",
) -> None:
    """Act on the schedules; say which, and which of the given names were not touched."""
    if all and names:
        raise ConfigurationError("--all and names of schedules contradict each other: give one of them")
    if not all and not names:
        raise ConfigurationError("say which schedules, by their names" + ("" if done == "removed" else ", or --all"))
    chosen = sa.true() if all else Schedule.name == sa.func.any(sa.literal(list(names), sa.ARRAY(sa.Text)))
    with transaction(config) as connection:
        touched = sorted(connection.scalars(build(chosen)))
        there = set(connection.scalars(sa.select(Schedule.name).where(chosen))) if not all else set[str]()
    missing = {one: left if one in there else "no such schedule" for one in dict.fromkeys(names) if one not in touched}
    if json:
        print_json({"action": done, "schedules": touched, "not_touched": missing})
    else:
        said = ", ".join(touched) if len(touched) <= _NAMED else f"{len(touched):,} schedules"
        say(cleaned(f"{done} {said or 'no schedule'}"))
        if missing:
            note("not touched: " + ", ".join(f"{one} ({why})" for one, why in missing.items()))
    if missing:
        raise typer.Exit(1)


def _rule(text: str) -> str | Every:
    """A cron expression as it is; "every 5m" as an interval."""
    words = text.split()
    if words[:1] != ["every"]:
        return text
    try:
        return every(parse_duration("".join(words[1:])))
    except typer.BadParameter as error:
        raise OptionError(f'an interval is given as "every 5m", "every 1h30m" or "every 300s", not {text!r}') from error


def _time(text: str, option: str, zone: tzinfo, now: datetime) -> datetime:
    """A time, of `zone` if it names none; or a duration before now."""
    try:
        moment = parse_moment(text, zone)
        return moment if isinstance(moment, datetime) else now - moment
    except (typer.BadParameter, OverflowError):
        raise OptionError(
            f"{option} must be a time, as 2030-01-31 or 2030-01-31T09:00+01:00, or a duration before now, as 2d, not {text!r}"
        ) from None
