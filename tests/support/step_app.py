"""A job whose worker is killed at each point between its steps, for `test_steps_crash`; each step leaves a line outside of the database."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from sqlalchemy import text

from sa_jobqueue import AsyncJobContext, Registry, task

FOLDER = "SA_STEPS_FOLDER"
POINTS = ("first", "in a", "after a", "in b", "after b", "in mark", "after mark", "after signal", "after sleep", "last")

registry = Registry()


def note(name: str) -> str:
    file = os.open(Path(os.environ[FOLDER]) / "effects", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, name.encode() + b"\n")
        os.fsync(file)
    finally:
        os.close(file)
    return name


def die(point: str) -> None:
    """Kill this process the first time that it comes here."""
    mark = Path(os.environ[FOLDER]) / point
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def a() -> str:
    note("a")
    die("in a")
    return "A"


async def b(value: str) -> str:
    note(f"b {value}")
    die("in b")
    return value + "B"


@task(registry=registry, name="ship", record=True)
async def ship(ctx: AsyncJobContext) -> str:
    """Every point kills its worker once."""
    die("first")
    value = await ctx.step("a", a)
    die("after a")
    value = await ctx.step("b", b, value)
    die("after b")
    async with ctx.step_session("mark") as session:
        await session.execute(text("INSERT INTO effect VALUES ('mark')"))
        die("in mark")
    die("after mark")
    value += str(await ctx.wait_signal("go", str))
    die("after signal")
    await ctx.sleep_for(0.05)
    die("after sleep")
    await ctx.session.execute(text("INSERT INTO effect VALUES ('end')"))
    die("last")
    return value
