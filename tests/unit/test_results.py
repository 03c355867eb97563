"""Results: checked against the handler's return annotation when they are stored, and typed when they are read."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, Literal
from uuid import UUID

import pytest
from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypedDict

from sa_jobqueue import Job, JobEnd, JobStatus, Registry, Retry, Snooze, task
from sa_jobqueue.arguments.results import Results
from sa_jobqueue.arguments.storable import load
from sa_jobqueue.errors import PayloadError, ResultError, TaskError
from sa_jobqueue.rules.failures import describe
from sa_jobqueue.sql.steps import Recorded
from sa_jobqueue.worker.running.steps import _typed

if TYPE_CHECKING:
    from fractions import Fraction


@dataclass
class Line:
    item: str
    price: Decimal


class Unknown:
    """Of which pydantic knows nothing."""


class Report(BaseModel):
    lines: list[Line]
    made: datetime
    note: str = Field(default="", alias="remark")


VALUES: list[tuple[Any, Any]] = [
    (int, 3),
    (str, 'it\'s "quoted" \\ and ✓'),
    (float, 1e23),
    (bool, True),
    (type(None), None),
    (int | None, None),
    (list[int], [1, 2]),
    (tuple[int, str], (1, "a")),
    (set[str], {"a"}),
    (bytes, b"\x00\xff"),
    (date, date(2026, 11, 25)),
    (timedelta, timedelta(seconds=1.5)),
    (UUID, UUID(int=7)),
    (Decimal, Decimal("0.10")),
    (Line, Line("pen", Decimal("1.20"))),
    (dict[str, Line], {"a": Line("pen", Decimal("1.20"))}),
    (Report, Report(lines=[Line("pen", Decimal(1))], made=datetime(2026, 11, 25, tzinfo=UTC), remark="x")),
    (Annotated[int, Field(gt=2), ["not", "hashable"]], 3),
]


def returning(annotation: Any) -> Any:
    def handler() -> Any: ...

    handler.__annotations__["return"] = annotation
    return handler


def end(result: Any, **fields: Any) -> JobEnd:
    return JobEnd(**{"id": 7, "task": "x", "status": JobStatus.COMPLETED, "error": None, **fields, "result": result})


@pytest.mark.parametrize(("annotation", "value"), VALUES, ids=lambda one: getattr(one, "__name__", None))
def test_what_a_handler_returns_comes_back_equal(annotation: Any, value: Any) -> None:
    """Of the annotated type, by JSON."""
    stored = load(Results(returning(annotation), task="x").encode(value))

    assert end(stored).result_as(annotation) == value


@pytest.mark.parametrize(
    ("annotation", "value", "said"),
    [
        (int, "7", "its result: input should be a valid integer, got '7'"),
        (int, True, "its result: input should be a valid integer, got True"),
        (list[int], [1, "x"], "its result: [1]: input should be a valid integer, got 'x'"),
        (Line, {"item": "pen"}, "its result: input should be an instance of Line"),
        (float, float("nan"), "its result: nan cannot be a number in JSON"),
        (str, "a\x00", "its result: 'a\\x00' holds a NUL"),
        (str, "\ud800", "its result: '\\ud800' holds a lone surrogate"),
        (str, "x" * 30, "its result: 32 bytes of JSON, more than the 20 that are accepted"),
    ],
)
def test_a_result_that_does_not_fit_or_cannot_be_stored_says_why(annotation: Any, value: Any, said: str) -> None:
    """With the place in it."""
    with pytest.raises(PayloadError, match=re.escape(said)):
        Results(returning(annotation), task="x").encode(value, limit=20)


@pytest.mark.parametrize("annotation", [Any, object, Snooze | Retry])
def test_without_an_annotation_that_says_something_anything_goes(annotation: Any) -> None:
    """What pydantic can make JSON of."""
    assert Results(returning(annotation), task="x").encode(Line("pen", Decimal(1))) == '{"item":"pen","price":"1"}'


@dataclass
class Scan:
    name: str
    pages: list[bytes]


class Photo(BaseModel):
    raw: bytes


class Kept(BaseModel):
    model_config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")
    raw: bytes


@dataclass
class KeptScan:
    __pydantic_config__ = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")
    raw: bytes


@pytest.mark.parametrize(
    ("annotation", "value", "path"),
    [
        (Scan, Scan("a", [b"text", b"\xff"]), "pages[1]"),
        (dict[str, Scan], {"first": Scan("a", []), "second": Scan("b", [b"\xff"])}, "second.pages[0]"),
        (Photo, Photo(raw=b"\xff"), "raw"),
        (Any, Photo(raw=b"\xff"), "raw"),
    ],
)
def test_bytes_that_are_no_text_are_named_with_their_field(annotation: Any, value: object, path: str) -> None:
    """And what to do: a dataclass or a model decides itself how its bytes are written."""
    with pytest.raises(PayloadError) as caught:
        Results(returning(annotation), task="x").encode(value)
    said = f"task 'x': its result: {path}: cannot be stored as JSON: invalid utf-8 sequence of 1 bytes from index 0: "
    assert str(caught.value).startswith(said)
    assert 'ser_json_bytes="base64"' in str(caught.value)


@pytest.mark.parametrize("value", [Kept(raw=b"\x00\xff"), KeptScan(b"\x00\xff")])
def test_bytes_that_are_no_text_come_back_where_the_configuration_says_so(value: Any) -> None:
    """As the error says."""
    stored = Results(returning(type(value)), task="x").encode(value)
    assert JobEnd(7, "x", JobStatus.COMPLETED, json.loads(stored), None).result_as(type(value)) == value


def test_a_result_that_is_part_of_itself_is_said_so_in_a_line() -> None:
    """And not by a path of a hundred steps."""
    value: list[object] = []
    value.append(value)
    with pytest.raises(PayloadError, match=r"…: nested more than 100 levels deep, or part of itself$") as raised:
        Results(lambda: None, task="a_task").encode(value)
    assert len(str(raised.value)) < 150


def test_outcomes_are_no_results() -> None:
    """A handler may return one all the same."""
    results = Results(returning(int | Snooze | None), task="x")

    assert (results.encode(3), results.encode(None)) == ("3", "null")
    assert results.hint == int | None


def test_an_annotation_that_cannot_be_used_is_said_when_a_worker_starts() -> None:
    """Only for a task that records results."""
    registry = Registry()

    def unresolved() -> Fraction:
        raise NotImplementedError

    def unchecked() -> Unknown:
        raise NotImplementedError

    for name, handler, said in [
        ("unresolved", unresolved, "'Fraction'.* cannot be resolved .*outside `if TYPE_CHECKING:`"),
        ("unchecked", unchecked, r"cannot be checked against its return annotation .*return plain JSON"),
    ]:
        task(registry=registry, name=f"{name} and dropped")(handler).resolve()
        with pytest.raises(TaskError, match=said):
            task(registry=registry, name=name, record=True)(handler).resolve()


def test_a_row_that_is_deleted_at_once_keeps_no_result() -> None:
    """The two options contradict each other."""
    with pytest.raises(TaskError, match=r"record=True needs a row .* retain=0 deletes it"):
        task(registry=Registry(), name="x", record=True, retain=0)


def test_a_task_reads_the_results_of_its_jobs() -> None:
    """By its handler's annotation; under an alias, too."""
    registry = Registry()

    @task(registry=registry, name="new", aliases=["old"], record=True)
    def lines() -> list[Line]:
        raise NotImplementedError

    result = [{"item": "pen", "price": "1.20"}]
    assert lines.result(end(result, task="old")) == [Line("pen", Decimal("1.20"))]
    with pytest.raises(ResultError, match="job 7 is of task 'other', not of 'new'"):
        lines.result(end(result, task="other"))


class Sums(TypedDict):
    share: float
    lines: list[int]
    total: Decimal
    whole: float


def test_a_result_is_read_where_the_application_reads_json_numbers_as_decimal() -> None:
    """As by `json_deserializer=partial(json.loads, parse_float=Decimal, parse_int=Decimal)`."""
    text = '{"share": 0.1, "lines": [2, 12345678901234567890], "total": "1.20", "whole": 2.0}'
    result = json.loads(text, parse_float=Decimal, parse_int=Decimal)
    expected = {"share": 0.1, "lines": [2, 12345678901234567890], "total": Decimal("1.20"), "whole": 2.0}
    assert end(result).result_as(Sums) == expected


def test_a_record_that_does_not_fit_is_told_with_its_type() -> None:
    """The error writes the type as code does."""
    found = Recorded("signal:go", "signal", 1, None, '"blue"', is_ours=False)
    for hint, spelled in (
        (Literal["red", "green"], "Literal['red', 'green']"),
        (int | None, "int | None"),
        (Line, "Line"),
    ):
        with pytest.raises(ResultError) as caught:
            _typed(found, hint)
        assert str(caught.value).startswith(f"step 'signal:go': what was recorded is not of the type {spelled}: ")


@pytest.mark.parametrize(
    ("left", "said"),
    [
        (end("x"), "job 7: its result is no int: Input should be a valid integer"),
        (end(None), "record=True"),
        (
            end(None, error={"type": describe(PayloadError()).type, "message": "its result: 9 bytes"}),
            "it was not stored: its result: 9 bytes",
        ),
        (end(None, status=JobStatus.QUEUED), "job 7 has no result: it is queued$"),
        (
            end(None, status=JobStatus.FAILED, error={"type": "KeyError", "message": "no order"}),
            r"job 7 has no result: it is failed \(KeyError: no order\)",
        ),
        (end(None, status=None, task=None), "job 7 has no result: it is not there"),
    ],
)
def test_a_result_that_is_not_there_says_why(left: JobEnd, said: str) -> None:
    """Whatever the reason."""
    with pytest.raises(ResultError, match=said):
        left.result_as(int)


def test_a_job_says_the_same_of_itself() -> None:
    """A row as a query has loaded it."""
    job = Job(id=7, task="x", result={"a": 1}, errors=[{"type": "A"}, {"type": "B"}])

    assert job.end == JobEnd(7, "x", JobStatus.QUEUED, {"a": 1}, {"type": "B"})
    assert not job.end.is_completed
    with pytest.raises(ResultError, match="job 7 has no result: it is queued"):
        job.result_as(dict)


@pytest.mark.parametrize("errors", [["said by hand"], [None], {"type": "by hand"}, "by hand", 3])
def test_errors_that_plain_sql_has_written_are_no_entries(errors: Any) -> None:
    """As `wait_for` has it: the job has ended, and of its error nothing is known."""
    job = Job(id=7, task="shop.count", errors=errors)
    vars(job)["status"] = JobStatus.FAILED
    assert job.end.error is None
    with pytest.raises(ResultError, match=r"^job 7 has no result: it is failed$"):
        job.result_as(int)
