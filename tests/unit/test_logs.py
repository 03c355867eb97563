"""How commands write logs: a line per event, without passwords."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

import sa_jobqueue
from sa_jobqueue import Retry
from sa_jobqueue.cli.application import load_app
from sa_jobqueue.cli.config import Config, LogLevel
from sa_jobqueue.cli.logs import LogFormat, set_log_format
from sa_jobqueue.cli.output import set_up_logging
from sa_jobqueue.tasks.middleware import installed, remove_middleware
from sa_jobqueue.util.log import get_logger
from sa_jobqueue.worker.running.joblog import lasting

DSN = "postgresql://bob:hunter2@db/x"
MASKED = "postgresql://bob:***@db/x"


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    """Written to as a command does; afterwards the root logger is as before."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers[:] = []
    set_up_logging(LogLevel.INFO)
    yield logging.getLogger("shop")
    root.handlers[:], root.level = handlers, level
    for middleware in installed.all:
        remove_middleware(middleware)


class _Database:
    def __str__(self) -> str:
        return DSN


def test_extras_of_a_json_line_have_no_passwords(logger: logging.Logger, capsys: pytest.CaptureFixture[str]) -> None:
    """However deep in them; numbers and times stay what they are."""
    set_log_format(LogFormat.JSON)
    at = datetime(2030, 1, 1, tzinfo=UTC)
    logger.info("to %s", DSN, extra={"dsn": DSN, "many": [{DSN: (DSN, 7, None)}], "object": _Database(), "at": at})
    line = json.loads(capsys.readouterr().err)
    assert line["message"] == f"to {MASKED}"
    assert line["dsn"] == line["object"] == MASKED
    assert line["many"] == [{MASKED: [MASKED, 7, None]}]
    assert line["at"] == str(at)


def test_any_extra_makes_a_json_line(logger: logging.Logger, capsys: pytest.CaptureFixture[str]) -> None:
    """What is no JSON is shown as text; what the line says itself is not overwritten."""
    set_log_format(LogFormat.JSON)
    logger.info("one", extra={"totals": {(1, 2): 3, None: 4}, "ratio": [float("nan"), 0.5], "level": 3, "pid": "x"})
    (text,) = capsys.readouterr().err.splitlines()
    line = json.loads(text, parse_constant=pytest.fail)
    assert line["totals"] == {"(1, 2)": 3, "None": 4}
    assert line["ratio"] == ["nan", 0.5]
    assert (line["level"], line["pid"], line["extra_level"], line["extra_pid"]) == ("info", os.getpid(), 3, "x")


def test_an_extra_does_not_hide_a_traceback(logger: logging.Logger, capsys: pytest.CaptureFixture[str]) -> None:
    """Nor is it lost; where there is none it keeps its name."""
    set_log_format(LogFormat.JSON)
    logger.info("one", extra={"exception": "mine"})
    logger.info("two", extra={"exception": "mine"}, exc_info=ValueError("amiss"))
    one, two = map(json.loads, capsys.readouterr().err.splitlines())
    assert one["exception"] == two["extra_exception"] == "mine"
    assert two["exception"] == "ValueError: amiss"


@pytest.mark.parametrize("log_format", LogFormat)
def test_a_traceback_has_no_passwords(
    logger: logging.Logger, capsys: pytest.CaptureFixture[str], log_format: LogFormat
) -> None:
    """As text and as JSON."""
    set_log_format(log_format)
    try:
        raise RuntimeError(DSN)
    except RuntimeError:
        logger.exception("failed")
    said = capsys.readouterr().err
    assert f"RuntimeError: {MASKED}" in said
    assert "hunter2" not in said


@pytest.mark.usefixtures("logger")
def test_what_cannot_be_written_is_said_without_passwords(capsys: pytest.CaptureFixture[str]) -> None:
    """As `logging` says it: where it was logged, and what is wrong with it."""
    (handler,) = (one for one in logging.getLogger().handlers if type(one).__module__ == set_up_logging.__module__)
    # To this handler alone: pytest's own would raise.
    handler.handle(logging.LogRecord("shop", logging.INFO, "shop.py", 7, "%d jobs", (DSN,), None))
    said = capsys.readouterr().err
    assert "TypeError: %d format: a real number is required, not str" in said
    assert f"shop.py, line 7: '%d jobs', arguments ('{MASKED}',)" in said
    assert "hunter2" not in said


HOSTILE = "no order\n12:00:00 INFO    all is well\x1b[2J\x9b31m"
HARMLESS = "no order 12:00:00 INFO all is well\\x1b[2J\\x9b31m"


def _fail() -> None:
    raise LookupError(HOSTILE)


@pytest.mark.parametrize("log_format", LogFormat)
def test_one_record_is_one_line_without_control_characters(
    logger: logging.Logger, capsys: pytest.CaptureFixture[str], log_format: LogFormat
) -> None:
    """No message and no traceback forges a line, or commands a terminal."""
    set_log_format(log_format)
    logger.warning("task %s", HOSTILE, extra={"task": HOSTILE})
    try:
        _fail()
    except LookupError:
        logger.exception("it failed")
    plain, traced = capsys.readouterr().err.removesuffix("\n").split("\n")
    assert plain.isprintable()
    assert traced.isprintable()
    if log_format is LogFormat.TEXT:
        assert plain.endswith(f"WARNING task {HARMLESS}")
        assert f"ERROR   it failed: LookupError: {HARMLESS} (tests/unit/test_logs.py, line " in traced
        assert traced.endswith(", in _fail)")
    else:
        assert json.loads(plain)["task"] == HOSTILE
        assert "in _fail" in json.loads(traced)["exception"]


def test_the_place_of_an_error_is_not_in_a_compiled_library(
    logger: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    """Cython's frames have a relative file name: lib/sqlalchemy/engine/_result_cy.py, wherever that is installed."""
    library = {"__name__": "lib._result", "__file__": "/venv/site-packages/lib/_result.so"}
    exec(compile("def one():\n    raise LookupError('none')", "lib/_result.py", "exec"), library)
    try:
        library["one"]()  # type: ignore[operator]
    except LookupError:
        logger.exception("it failed")
    said = capsys.readouterr().err
    assert ", in test_the_place_of_an_error" in said
    assert "lib/_result.py" not in said


def test_an_exception_that_the_message_names_is_not_said_again(
    logger: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    """A job's failure names it with its module or, where the handler asked for a retry, without."""
    for named in ("sa_jobqueue.rules.outcomes.Retry: the card was declined", "Retry: the card was declined"):
        logger.error("shop.charge[7] failed: %s", named, exc_info=Retry(reason="the card was declined"))
    assert capsys.readouterr().err.count("declined") == 2


@pytest.mark.usefixtures("logger")
def test_at_debug_a_traceback_follows_in_lines_that_no_record_has(capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever stands in the exception's text."""
    set_up_logging(LogLevel.DEBUG)
    try:
        _fail()
    except LookupError:
        logging.getLogger("shop").exception("it failed")
    said, *below = capsys.readouterr().err.removesuffix("\n").split("\n")
    assert f"it failed: LookupError: {HARMLESS}" in said
    assert "    | Traceback (most recent call last):" in below
    assert all(line.startswith("    | ") and line.isprintable() for line in below)


def test_our_own_messages_are_one_line_whatever_handlers_there_are(caplog: pytest.LogCaptureFixture) -> None:
    """An application's own set-up of logging has no formatter of ours. The template stays, because error trackers group by it."""
    ours = get_logger("sa_jobqueue.of_a_test")
    ours.warning("job %d: %s, %r", 7, LookupError(HOSTILE), LookupError(HOSTILE))
    ours.warning("job %d: %s", 7, "plain")
    hostile, plain = caplog.records
    assert hostile.getMessage() == f"job 7: {HARMLESS}, LookupError({HOSTILE!r})"
    assert hostile.msg == "job %d: %s, %r"
    assert plain.args == (7, "plain")


def test_what_is_said_beside_a_hostile_text_stays_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    """A message of several lines does not swallow the space before the place that follows it."""
    get_logger("sa_jobqueue.of_a_test").warning("%s%s", "no answer\nfrom the bank", " (shop.py, line 5, in charge)")
    assert caplog.messages == ["no answer from the bank (shop.py, line 5, in charge)"]


def test_an_exception_that_cannot_be_said_raises_nothing_where_it_is_logged() -> None:
    """It is the handler that says so, as `logging` does."""

    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    ours = get_logger("sa_jobqueue.of_a_test")
    record = ours.makeRecord(ours.name, logging.ERROR, __file__, 1, "it failed: %s", (Mute(),), None)
    assert ours.filter(record)


def test_to_log_raises_nothing_whatever_a_filter_raises(capsys: pytest.CaptureFixture[str]) -> None:
    """It would break off what the message is about; what it was is said on stderr, as of a handler that raises."""

    def wrong(record: logging.LogRecord) -> bool:
        raise SystemExit("a filter that is wrong")

    ours = get_logger("sa_jobqueue.of_a_test")
    ours.addFilter(wrong)
    try:
        ours.warning("the sale has begun")
    finally:
        ours.removeFilter(wrong)
    said = capsys.readouterr().err
    assert "a filter that is wrong" in said
    assert "the sale has begun" in said


def test_every_module_of_ours_logs_on_one_line() -> None:
    """None takes a logger past `get_logger`."""
    modules = list(Path(sa_jobqueue.__file__).parent.rglob("*.py"))
    assert len(modules) > 50
    assert [one.name for one in modules if "logging.getLogger(__name__)" in one.read_text("utf-8")] == []


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (None, "some time"),
        (0.000_02, "0.02 ms"),
        (0.004_2, "4.2 ms"),
        (0.099_4, "99 ms"),
        (0.099_6, "0.1 s"),
        (0.12, "0.12 s"),
        (9.96, "10 s"),
        (15.4, "15 s"),
        (119.0, "119 s"),
        (120.0, "2 min"),
        (5_400.0, "90 min"),
        (200_000.0, "2.3 d"),
    ],
)
def test_a_duration_is_shown_as_people_write_it(seconds: float | None, shown: str) -> None:
    assert lasting(seconds) == shown


def test_loggers_that_an_application_disables_as_it_sets_up_its_log_are_heard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`logging.config.dictConfig` disables those that it does not name, unless it is told otherwise."""
    ours = get_logger("sa_jobqueue.worker.of_a_test")
    (tmp_path / "silencing_shop.py").write_text(
        "import logging\nlogging.getLogger('sa_jobqueue.worker.of_a_test').disabled = True\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])
    load_app(Config(app=["silencing_shop"]))
    assert not ours.disabled
