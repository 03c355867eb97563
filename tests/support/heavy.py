"""Tasks that run in child processes: a child imports this module.

The handlers talk to the test through files in the folder HEAVY_FOLDER: `say` leaves a line, and `held` waits for a file.
"""

from __future__ import annotations

import ctypes
import logging
import os
import re
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import text

from sa_jobqueue import AsyncJobContext, Cancel, Discard, JobContext, Registry, Retry, RetryPolicy, Snooze, task

registry = Registry()
SOON = RetryPolicy(base=0.05, jitter=0)
NEVER = RetryPolicy(no_retry=(BaseException,))
MIB = 2**20


@task(registry=registry, name="uses", executor="process")
def uses(ctx: JobContext, tokens: int) -> None:
    """Report in a child process what it has used."""
    ctx.used(tokens=tokens)


def say(name: str) -> None:
    """Leave this process's id in a file."""
    with open(Path(os.environ["HEAVY_FOLDER"]) / name, "a", encoding="ascii") as out:
        out.write(f"{os.getpid()}\n")


def is_let_go(name: str) -> bool:
    """Whether the test has made the file for which a handler waits."""
    return (Path(os.environ["HEAVY_FOLDER"]) / f"go-{name}").exists()


def write(ctx: JobContext, note: str) -> None:
    """Leave a row, in the transaction of the job."""
    ctx.session.execute(
        text("INSERT INTO effect (job_id, note, pid) VALUES (:id, :note, :pid)"),
        {"id": ctx.job_id, "note": note, "pid": os.getpid()},
    )


@task(registry=registry, executor="process", retry=NEVER, record=True)
def add(a: int, b: int) -> dict[str, int]:
    """Returns a value, and the process that made it."""
    return {"sum": a + b, "pid": os.getpid()}


@dataclass
class Scan:
    raw: bytes


@task(registry=registry, executor="process", retry=SOON, record=True)
def scan_in_child(ctx: JobContext) -> Scan:
    """Returns what cannot be recorded."""
    write(ctx, "scanned")
    return Scan(b"\xff")


@task(registry=registry, retry=SOON, record=True)
def scan(ctx: JobContext) -> Scan:
    write(ctx, "scanned")
    return Scan(b"\xff")


@task(registry=registry, retry=SOON, record=True)
async def scan_on_loop(ctx: AsyncJobContext) -> Scan:
    return Scan(b"\xff")


@task(registry=registry, executor="process", retry=SOON)
def effect(ctx: JobContext, note: str = "") -> None:
    """Writes through its session."""
    write(ctx, note)


@task(registry=registry, executor="process", retry=NEVER)
def outcome(ctx: JobContext, kind: str, raised: bool, with_session: bool) -> Any:
    """Ends as it is told, and writes before."""
    if with_session:
        write(ctx, kind)
    said = {
        "retry": Retry(3_600, reason="later"),
        "snooze": Snooze(3_600),
        "rate limited": ctx.rate_limited(3_600),
        "cancel": Cancel("not wanted"),
        "discard": Discard("hopeless"),
    }[kind]
    if raised:
        raise said
    return said


class Unpicklable(Exception):
    """Cannot be pickled, because of what it holds and of its constructor."""

    def __init__(self, what: object, *, needed: int) -> None:
        super().__init__(f"cannot go anywhere: {needed}")
        self.what = what


@task(registry=registry, executor="process", retry=NEVER)
def fail() -> None:
    """Raises what could not be pickled."""
    raise Unpicklable(lambda: None, needed=7)


@task(registry=registry, executor="process", retry=SOON, timeout=1, max_attempts=1)
def spin(ctx: JobContext, name: str) -> None:
    """Computes for ever, after a write."""
    write(ctx, name)
    while True:
        pass


@task(registry=registry, executor="process", retry=SOON)
def held(ctx: JobContext, name: str) -> None:
    """Writes, then computes until the test lets it go."""
    write(ctx, name)
    say(f"started-{name}")
    while not is_let_go(name):
        sum(range(1_000))
    say(f"ended-{name}")


@task(registry=registry, executor="process", retry=SOON)
def patient(ctx: JobContext, name: str) -> None:
    """Writes, then waits until the test lets it go."""
    write(ctx, name)
    say(f"started-{name}")
    while not is_let_go(name):
        time.sleep(0.005)
    say(f"ended-{name}")


@task(registry=registry, executor="process", retry=SOON)
def polite(ctx: JobContext, name: str) -> None:
    """Looks at `ctx.cancelled`."""
    write(ctx, name)
    say(f"started-{name}")
    while not ctx.cancelled:
        sum(range(1_000))
    ctx.raise_if_cancelled()


@task(registry=registry, executor="process", retry=SOON)
def crash(ctx: JobContext, how: str, times: int = 1) -> None:
    """Takes its process along: the first `times` times. Then it writes."""
    write(ctx, how)
    say(f"crash-{how}")
    if len((Path(os.environ["HEAVY_FOLDER"]) / f"crash-{how}").read_text(encoding="ascii").split()) > times:
        return
    if how == "segfault":
        ctypes.string_at(0)
    elif how == "exit":
        os._exit(3)
    else:
        while True:
            pass


@task(registry=registry, executor="process", retry=SOON, rescue=False)
def crash_once(ctx: JobContext) -> None:
    """Takes its process along, and may not run twice."""
    write(ctx, "once")
    os._exit(3)


@task(registry=registry, executor="process", retry=SOON, memory_limit=256 * MIB)
def eat(ctx: JobContext, megabytes: int) -> None:
    """Needs memory; then it writes."""
    eaten = [bytearray(b"x") * MIB for _ in range(megabytes)]
    say("eaten")
    write(ctx, f"{len(eaten)} MB")


@task(registry=registry, executor="process", retry=NEVER)
def chat(ctx: JobContext) -> None:
    """Logs."""
    ctx.logger.info("hello %s", "there", extra={"order": 7, "odd": {1, 2}})
    logging.getLogger("heavy.quiet").info("not wanted")
    with suppress(ZeroDivisionError):
        1 / 0  # noqa: B018
    try:
        os.environ["HEAVY_NOT_THERE"]
    except KeyError:
        logging.getLogger("heavy").exception("an error\nof two lines")


@task(registry=registry, executor="process", retry=NEVER, timeout=3, max_attempts=1)
def parent(name: str) -> None:
    """Starts a program that would outlive it."""
    started = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    (Path(os.environ["HEAVY_FOLDER"]) / f"child-{name}").write_text(f"{started.pid}\n", encoding="ascii")
    started.wait()


@task(registry=registry)
def light(ctx: JobContext) -> None:
    """Runs on a thread of the worker's."""
    write(ctx, "light")


@task(registry=registry)
async def light_async() -> None:
    """Runs on the event loop."""


@task(registry=registry, executor="process", retry=SOON)
def dawdle(ctx: JobContext, note: str) -> None:
    """Takes a moment, in which its process may be killed; then it writes."""
    until = time.monotonic() + 0.03
    while time.monotonic() < until:
        sum(range(100))
    write(ctx, note)


@task(registry=registry, executor="process", retry=SOON)
def match_for_ever(ctx: JobContext, name: str) -> None:
    """Keeps Python's lock for ever, the first time."""
    write(ctx, name)
    if not is_let_go(name):
        say(f"started-{name}")
        re.match(r"(a+)+$", "a" * 60 + "b")


@task(registry=registry)
def fork(name: str) -> None:
    """Runs on a thread, and leaves a process behind that lives on, with all that the worker had open."""
    if os.fork() == 0:
        say(f"forked-{name}")
        while True:
            time.sleep(1)


@task(registry=registry, name="telling", executor="process", keep_logs=True)
def telling(ctx: JobContext) -> None:
    ctx.progress(0.5, "half")
    ctx.logger.info("told %s", "by a child \ud800")
    try:
        raise ValueError("bad")
    except ValueError:
        ctx.logger.exception("failed")


@task(registry=registry, executor="process", retry=SOON)
def fork_and_return(ctx: JobContext, name: str, raised: bool) -> None:
    """Forks, and both processes come back from the handler."""
    if os.fork() == 0:
        say(f"forked-{name}")
        if raised:
            raise ValueError("in the fork")
        return
    while not (Path(os.environ["HEAVY_FOLDER"]) / f"forked-{name}").exists():
        time.sleep(0.001)
    write(ctx, name)


@task(registry=registry, executor="process", retry=SOON)
def daemonize(ctx: JobContext, name: str, how: str) -> None:
    """Leaves a process that has all that this one has open, in a session of its own. Then its own ends, the first time."""
    if (Path(os.environ["HEAVY_FOLDER"]) / f"daemon-{name}").exists():
        write(ctx, name)
        return
    if how == "fork":
        if os.fork() == 0:
            os.setsid()
            say(f"daemon-{name}")
            while not is_let_go(name):
                time.sleep(0.01)
            os._exit(0)
    else:
        folder = os.environ["HEAVY_FOLDER"]
        os.system(  # a shell inherits what a subprocess does not
            f"setsid sh -c 'echo $$ >> {folder}/daemon-{name}; until test -e {folder}/go-{name}; do sleep 0.01; done' &"
        )
    while not (Path(os.environ["HEAVY_FOLDER"]) / f"daemon-{name}").exists():
        time.sleep(0.001)
    os._exit(3)


@task(registry=registry, executor="process", keep_logs=True)
def leave_a_thread(ctx: JobContext, name: str) -> None:
    """A thread of its goes on after its end, and says how far it is."""

    def go_on() -> None:
        while not is_let_go(name):
            ctx.progress(0.9, "the job before")
            ctx.logger.info("the job before")
            time.sleep(0.005)
        say(f"ended-{name}")

    threading.Thread(target=go_on, daemon=True).start()


@task(registry=registry, executor="process", keep_logs=True)
def after_it(ctx: JobContext, name: str) -> None:
    """Says something, and ends when the other's thread has said more."""
    ctx.progress(0.1, "this job")
    ctx.logger.info("this job")
    say(f"started-{name}")
    while not is_let_go(f"after-{name}"):
        time.sleep(0.005)
