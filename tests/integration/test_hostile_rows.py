"""A row is data: nothing in it becomes SQL, a channel's name, an import, or anything but JSON."""

from __future__ import annotations

import base64
import json
import pickle
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from sa_jobqueue import Job, JobContext, JobStatus, Registry, TaskName, enqueue, enqueue_many, task
from tests.support import pooler
from tests.support.cli import output
from tests.support.databases import connect
from tests.support.waiting import wait_until
from tests.support.working import drain, job_of, long_healthy, working

#: Each holds `hostile`, so that it is found wherever it is spliced in.
HOSTILE = [
    "hostile'; DROP TABLE sa_jobqueue.job; --",
    'hostile"; NOTIFY "elsewhere',
    "hostile %s %(id)s %% :id {schema}",
    "hostile\\'; $$ $body$ /* ",
    "hostile\n; SELECT pg_sleep(600)",
    "hostile','x') ON CONFLICT DO NOTHING --",
    "hostile " + "😀" * 190,
]


@contextmanager
def statements_sent() -> Iterator[list[str]]:
    """The text of every statement that any engine of this process sends meanwhile."""
    sent: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        sent.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    try:
        yield sent
    finally:
        event.remove(Engine, "before_cursor_execute", note)


def test_names_and_payloads_are_never_part_of_a_statement(engine: Engine, database_url: str) -> None:
    """Hostile names of queues and tasks, arguments, tags, results and errors, from enqueueing to the end: each job runs
    with what it was given, its queue is woken for it, and no statement's text has any of it.
    """
    pooler.skip_where_deaf(database_url)
    registry = Registry()
    ran: dict[str, tuple[str, Any]] = {}

    def run(ctx: JobContext, value: Any) -> Any:
        ran[ctx.task] = (ctx.queue, value)
        ctx.session.add(enqueue(TaskName("hostile unknown").options(queue="hostile unserved", delay=3600), value=value))
        if value["fail"]:
            raise ValueError(value["text"])
        return value["text"]

    tasks = [
        task(name=name, queue=name, registry=registry, record=True, max_attempts=1)(run) for name in HOSTILE
    ]  # fmt: skip
    values = [{name: name, "text": name, "fail": number % 2} for number, name in enumerate(HOSTILE)]
    one_slot_each = dict.fromkeys(HOSTILE, 1)
    # Polling alone would take ten minutes.
    with statements_sent() as sent, working(database_url, registry, queues=one_slot_each, poll=600, lease=60):
        wait_until(lambda: all(gates_are_open(engine, HOSTILE)))
        assert re.fullmatch(r'LISTEN "sa_jobqueue_\d+"', listening(database_url))
        with Session(engine) as session:
            half = len(tasks) // 2
            session.add_all(
                enqueue(one.options(tags=[one.name]), value) for one, value in zip(tasks[:half], values, strict=False)
            )
            session.execute(
                enqueue_many(one.call(value) for one, value in zip(tasks[half:], values[half:], strict=True))
            )
            session.commit()
        wait_until(lambda: finished(engine) == len(HOSTILE))
    assert ran == {name: (name, value) for name, value in zip(HOSTILE, values, strict=True)}
    assert sent
    assert [one for one in sent if "hostile" in one or "😀" in one] == []
    with Session(engine) as session:
        for job in session.scalars(select(Job).where(Job.task.in_(HOSTILE))):
            said = job.errors[0]["message"] if job.status == JobStatus.FAILED else job.result
            assert said == job.task


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("args", "convert_from(decode('7b2261223a220022227d', 'hex'), 'UTF8')::jsonb"),
        ("args", '\'{"a": "\\u0000"}\'::jsonb'),
        ("queue", "convert_from(decode('6100', 'hex'), 'UTF8')"),
        ("task", "'a' || chr(0)"),
    ],
)
def test_no_row_can_hold_a_nul(engine: Engine, column: str, value: str) -> None:
    """PostgreSQL refuses it in text and in JSON, however it comes; so nothing that is claimed has one."""
    row = {"task": "'t'", column: value}
    with engine.connect() as connection, pytest.raises(DBAPIError, match=r"0x00|u0000|null character"):
        connection.exec_driver_sql(f"INSERT INTO sa_jobqueue.job ({', '.join(row)}) VALUES ({', '.join(row.values())})")


def gates_are_open(engine: Engine, queues: list[str]) -> list[bool]:
    asked = text(
        "SELECT coalesce(to_timestamp(pg_sequence_last_value(to_regclass('sa_jobqueue.gate_' || (hashtext(name) & 15))))"
        " > clock_timestamp(), false) FROM unnest(cast(:names AS text[])) AS name"
    )
    with engine.connect() as connection:
        return list(connection.scalars(asked, {"names": queues}))


def listening(url: str) -> str:
    """The statement by which the worker's listener listens."""
    with connect(url) as connection:
        query = (
            "SELECT query FROM pg_stat_activity WHERE datname = current_database() "
            "AND query LIKE 'LISTEN%' AND pid <> pg_backend_pid()"
        )
        row: Any = wait_until(lambda: connection.execute(query).fetchone())
        return str(row[0])


def finished(engine: Engine) -> int:
    with Session(engine) as session:
        return len(session.scalars(select(Job.id).where(Job.is_finished)).all())


# ---- nothing is imported, evaluated or unpickled

_DONE: list[tuple[str, str]] = []
_armed = threading.Event()
_WATCHED = {"import", "compile", "exec", "pickle.find_class", "marshal.loads", "os.system", "subprocess.Popen", "open"}


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if _armed.is_set() and event in _WATCHED and "booby_trap" in (said := repr(arguments)):
        _DONE.append((event, said))


@pytest.fixture
def booby_trap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module on the path that writes a file when it is imported; yields where that file would be."""
    mark = tmp_path / "sprung"
    (tmp_path / "booby_trap.py").write_text(
        f"open({str(mark)!r}, 'w').close()\nclass Trap:\n    def __init__(self, *a): pass\ndef spring(*a): pass\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    if not getattr(sys, "_sa_jobqueue_audited", False):  # a hook stays for as long as the process
        sys.addaudithook(_audit)
        sys._sa_jobqueue_audited = True  # type: ignore[attr-defined]
    _DONE.clear()
    _armed.set()
    yield mark
    _armed.clear()
    sys.modules.pop("booby_trap", None)


class _Reduced:
    def __reduce__(self) -> tuple[Any, tuple[str, ...]]:
        return exec, ("import booby_trap",)


PICKLED = base64.b64encode(pickle.dumps(_Reduced())).decode()
#: What some serialiser or other would make an object or a call of.
OBJECTS: list[Any] = [
    PICKLED,
    {"__reduce__": ["exec", ["import booby_trap"]]},
    {"py/object": "booby_trap.Trap"},
    {"py/reduce": [{"py/type": "booby_trap.Trap"}, {"py/tuple": [1]}]},
    {"__class__": "booby_trap.Trap", "__module__": "booby_trap", "__init__": []},
    {"__type__": "booby_trap:Trap", "__data__": PICKLED},
    {"$type": "booby_trap.Trap", "$function": "booby_trap.spring"},
    "!!python/object/apply:booby_trap.spring []",
    "__import__('booby_trap')",
    "{{ __import__('booby_trap') }}",
    "${booby_trap.spring()}",
    "data:application/x-python-pickle;base64," + PICKLED,
]
TASKS = [
    "booby_trap.spring",
    "booby_trap:spring",
    "booby_trap",
    "os.system",
    "builtins.exec",
    "__import__('booby_trap')",
    "../booby_trap",
    PICKLED[:200],
]


def insert_row(connection: Any, **columns: Any) -> int:
    """A row as another program writes it, by SQL alone."""
    row = {"queue": "default", "args": {}, "meta": {}, "errors": [], "worker": None, "status": "queued", **columns}
    written = {name: json.dumps(value) if isinstance(value, (dict, list)) else value for name, value in row.items()}
    return int(
        connection.execute(
            "INSERT INTO sa_jobqueue.job (task, queue, args, meta, errors, worker, status) VALUES "
            "(%(task)s, %(queue)s, %(args)s, %(meta)s, %(errors)s, %(worker)s, %(status)s) RETURNING id",
            written,
        ).fetchone()[0]
    )


def test_no_row_makes_the_worker_import_or_evaluate_anything(engine: Engine, url: str, booby_trap: Path) -> None:
    """Task names that are importable paths go back as unknown; arguments that look like objects of some serialiser's
    arrive as the JSON they are; the worker that is said to have died is text.
    """
    registry = Registry()
    taken: list[Any] = []

    @task(registry=registry, name="take", record=True)
    def take(ctx: JobContext, value: Any) -> Any:
        taken.append(value)
        return value

    with connect(url) as connection:
        insert_row(connection, task="take", args={"value": 1})
    drain(url, registry)  # what the worker itself imports late is there from now on
    taken.clear()
    with connect(url) as connection:
        known = [
            insert_row(connection, task="take", args={"value": one}, meta={"value": one}, errors=[{"type": one}])
            for one in OBJECTS
        ]
        wrong = [insert_row(connection, task="take", args=one) for one in OBJECTS if isinstance(one, dict)]
        unknown = [insert_row(connection, task=one, args={"value": OBJECTS[1]}) for one in TASKS]
        dead = insert_row(connection, task="take", args={"value": 2}, worker="booby_trap:Trap", status="running")
    before = set(sys.modules)
    long_healthy(engine)
    with working(url, registry):
        wait_until(lambda: all(job_of(engine, id).is_finished for id in [*known, dead]))
        wait_until(lambda: all(job_of(engine, id).errors for id in wrong))
        wait_until(lambda: all(is_put_off(job_of(engine, id)) for id in unknown))
    assert set(sys.modules) == before
    assert _DONE == []
    assert not booby_trap.exists()
    in_order = partial(json.dumps, sort_keys=True)
    assert sorted(taken, key=in_order) == sorted([*OBJECTS, 2], key=in_order)
    assert [job_of(engine, id).result for id in known] == OBJECTS


def is_put_off(job: Job) -> bool:
    return job.status == JobStatus.QUEUED and job.claims == 1 and job.attempt == 0


def test_no_row_makes_a_command_import_or_evaluate_anything(url: str, booby_trap: Path) -> None:
    """To look at rows is to look at text and JSON, even where the application's tasks are not known."""
    with connect(url) as connection:
        ids = [
            insert_row(connection, task=name, args={"value": one}, meta={"value": one}, errors=[{"type": one}])
            for name, one in zip([*TASKS, *TASKS], OBJECTS, strict=False)
        ]
    output("list", url=url)
    before = set(sys.modules)
    for id in ids:
        output("show", str(id), url=url)
    output("list", "--json", url=url)
    output("stats", url=url)
    loaded_by_commands = ("rich.", "sa_jobqueue.")
    assert {name for name in set(sys.modules) - before if not name.startswith(loaded_by_commands)} == set()
    assert _DONE == []
    assert not booby_trap.exists()


def test_the_trap_would_spring(booby_trap: Path) -> None:
    """What the two tests above look for is there when code does what must not be done."""
    pickle.loads(base64.b64decode(PICKLED))
    assert booby_trap.exists()
    assert {event for event, _ in _DONE} >= {"import"}
    assert "booby_trap" in sys.modules
