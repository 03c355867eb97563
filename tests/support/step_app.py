"""A job whose worker is killed at each point between its steps, for `test_steps_crash`. Each step writes a line outside the database."""

from __future__ import annotations

import os

from sqlalchemy import Engine, event, text

from sa_jobqueue import AsyncJobContext, Registry, task
from tests.support.killed import FOLDER, die, note

#: The statements by which a job is suspended: a part of their text, and how they are called in the points before and after them.
SUSPENDING = {"expires_at IS NOT NULL": "expiry", "INTO sa_jobqueue.wait": "wait"}
POINTS = (
    "first", "in a", "after a", "in b", "after b", "in mark", "after mark", "after signal", "before expiry", "after expiry", "before wait",
    "after wait", "after sleep", "last",
)  # fmt: skip

registry = Registry()


def die_around(moment: str, statement: str) -> None:
    """Kill this process when it reaches a statement of a suspension for the first time."""
    for part, name in SUSPENDING.items():
        if part in statement:
            die(f"{moment} {name}")


if FOLDER in os.environ:  # in the worker, and not in the tests that import this
    event.listen(Engine, "before_cursor_execute", lambda *given: die_around("before", given[2]))
    event.listen(Engine, "after_cursor_execute", lambda *given: die_around("after", given[2]))


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
