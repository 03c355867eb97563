"""How commands write logs: a line per event, without passwords."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from sa_jobqueue.cli.config import LogLevel
from sa_jobqueue.cli.logs import LogFormat, set_log_format
from sa_jobqueue.cli.messages import set_up_logging

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
