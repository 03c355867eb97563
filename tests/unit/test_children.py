"""What a worker and its child processes say to each other, and which tasks may run there."""

from __future__ import annotations

import logging
import socket
from contextlib import suppress
from enum import StrEnum
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sa_jobqueue import Registry, WorkerSettings, task
from sa_jobqueue.arguments.context import ClaimedJob
from sa_jobqueue.errors import ConfigurationError, TaskError
from sa_jobqueue.rules.lifecycle import Change, Claim, Rules, decide
from sa_jobqueue.rules.outcomes import Completed, Crashed, Outcome, Retry
from sa_jobqueue.worker.children.loading import ChildSetup, Maker, main_module
from sa_jobqueue.worker.children.messages import (
    Channel,
    Message,
    from_line,
    message_of_job,
    message_of_progress,
    message_of_record,
    record_of,
    to_line,
)
from sa_jobqueue.worker.children.runner import ChildRunner
from sa_jobqueue.worker.running.attempt_end import LOST, InDoubt, MaybeWritten, ToWrite, Written
from sa_jobqueue.worker.running.run import Run
from tests.support import heavy
from tests.support.outcomes import all_rules, run_outcomes


def sent(message: Message) -> Message:
    """The message as it comes out at the other end."""
    return from_line(to_line(message).removesuffix(b"\n"))


# ---- the socket


def test_messages_come_whole_and_in_order_however_they_are_cut() -> None:
    """Byte by byte, two at once, and with line ends and odd characters in them."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        channel = Channel(ours)
        messages = [{"a": "line\nline"}, {"b": "\ud800é\x00"}, {}, {"c": "x" * 1_000}]
        stream = b"".join(to_line(message) for message in messages)
        found: list[Message] = []
        for byte in stream[:-40]:
            theirs.sendall(bytes([byte]))
            found += channel.receive()
        theirs.sendall(stream[-40:] + stream)
        found += channel.receive()
        assert found == messages * 2


def test_a_large_message_goes_through_and_the_end_is_told() -> None:
    """Larger than the buffers between them; an incomplete one is none."""
    ours, theirs = socket.socketpair()
    channel, other = Channel(ours), Channel(theirs)
    large = {"large": "x" * 3_000_000}
    theirs.setblocking(False)
    found: list[Message] = []
    text = to_line(large)
    while not found:
        with suppress(BlockingIOError):  # the buffers are full
            text = text[theirs.send(text) :]
        found += channel.receive()
    assert found == [large]
    theirs.sendall(to_line({"half": 1})[:-2])
    other.close()
    assert channel.receive() == []
    with pytest.raises(EOFError):
        channel.receive()
    channel.close()


@pytest.mark.parametrize("line", [b"", b"garbage", b"a line of a handler", to_line({"cut": 1})[:-9]])
def test_a_line_that_is_no_message_is_an_error(line: bytes) -> None:
    """A handler's code may write to any descriptor. The next message is not taken for the rest of it."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        channel = Channel(ours)
        theirs.sendall(line + b"\n")
        with pytest.raises(ValueError, match="not a message"):
            channel.receive()
        theirs.sendall(to_line({"next": 2}))
        assert channel.receive() == [{"next": 2}]


# ---- messages


@given(run_outcomes, all_rules, st.booleans())
def test_an_ending_comes_back_as_it_was(outcome: Outcome, rules: Any, written: bool) -> None:
    """Every change that can come of a run."""
    change: Change = decide(Claim(1, 7, 2, 3, 1), outcome, rules, random=0.5)
    ending = Written(change) if written else ToWrite(change)
    back = sent({"ended": ending})["ended"]
    assert type(back) is type(ending)
    assert not isinstance(back, type(LOST))
    assert back.change == change
    assert [type(value) for value in back.change] == [type(value) for value in change]


def test_an_ending_in_doubt_comes_back_as_one() -> None:
    """The answer to the child's commit was lost: the worker has to find out what was written."""
    completed, failed = (
        decide(Claim(1, 7, 2, 3, 1), outcome, Rules(), random=0.5) for outcome in (Completed(), Retry(60))
    )
    doubted = sent({"ended": InDoubt(failed, completed)})["ended"]
    asked = sent({"ended": MaybeWritten(completed)})["ended"]
    assert isinstance(doubted, InDoubt)
    assert (doubted.change, doubted.committed) == (failed, completed)
    assert isinstance(asked, MaybeWritten)
    assert asked.change == completed


def test_a_lost_claim_comes_back_as_one() -> None:
    """There is nothing to write."""
    assert sent({"ended": LOST})["ended"] is LOST


def test_a_job_comes_back_as_it_was() -> None:
    """With the place of its task: the module and name of the handler."""
    job = ClaimedJob(1, 2, "default", "t", 4, 1.5, 1, 10, 0, '{"a": "é"}', None, 0.25, None)
    message = sent(message_of_job(job, heavy.add, 1.25))
    assert message["job"] == job
    assert message["task"] == ["tests.support.heavy.add", "tests.support.heavy", "add"]
    assert message["elapsed"] == 1.25


class Stage(StrEnum):
    """A text of the application's own class."""

    LOADING = "loading"


class Real(float):
    """A number of such a class."""


def test_texts_and_numbers_of_the_applications_classes_come_as_plain_ones() -> None:
    """In a child, a class of the worker's script is in another module than in the worker."""
    job = ClaimedJob(1, 2, "default", "t", 4, 1.5, 1, 10, 0, "{}", None, 0.25, None)
    fraction, text = sent(message_of_progress(job, Real(0.5), Stage.LOADING))["progress"]
    assert (fraction, text, type(fraction), type(text)) == (0.5, "loading", float, str)


class Odd:
    """JSON has no form for it."""

    def __str__(self) -> str:
        return "odd"


@pytest.mark.parametrize(
    ("msg", "args", "template"),
    [
        ("%s is %d", ("a", 1), "%s is %d"),
        ("%s is", (Odd(),), "odd is"),
        ("100 %", (), "100 %"),
        ("%(a)s", ({"a": 1},), "1"),
        (Odd(), (), "odd"),
    ],
)
def test_a_record_comes_back_with_its_text_and_fields(msg: Any, args: Any, template: str) -> None:
    """Its template stays where its arguments are plain, because error trackers group by it."""
    record = logging.LogRecord("shop", logging.INFO, "shop.py", 7, msg, args, None)
    record.order, record.odd = 7, Odd()
    back: Any = record_of(sent(message_of_record(record)))
    assert (back.getMessage(), back.msg) == (record.getMessage(), template)
    assert (back.name, back.levelno, back.lineno, back.order, back.odd) == ("shop", logging.INFO, 7, 7, "odd")


def test_the_setup_comes_back_as_it_was_and_hides_the_password() -> None:
    """It is sent over the socket, because other users may read a command line. The URL is not in its repr either."""
    setup = ChildSetup(
        url="postgresql://me:secret@localhost/shop", maker=Maker.REGISTRY, translate=((None, "a"), ("b", None)), pooled=True,
        idle=1.5, lease=30.0, max_rescues=5, log_jobs=False, job=("sa_jobqueue.models.job", "Job"), app=("shop",),
    )  # fmt: skip
    back = sent({"setup": setup.now([heavy.add])})["setup"]
    assert (back.url, back.maker, dict(back.translate)) == (setup.url, Maker.REGISTRY, {None: "a", "b": None})
    assert (back.main, [tuple(place) for place in back.tasks]) == (
        None,
        [("tests.support.heavy.add", "tests.support.heavy", "add")],
    )
    assert "secret" not in repr(setup)


def test_a_script_is_imported_by_its_name_or_by_its_file() -> None:
    """As multiprocessing does; a prompt has neither."""

    class Main:
        __spec__: Any = None
        __file__ = "/srv/shop.py"

    class Named:
        class __spec__:
            name = "shop.jobs"

    assert main_module(Main) == ("path", "/srv/shop.py")
    assert main_module(Named) == ("name", "shop.jobs")
    assert main_module(object()) is None


# ---- a child that is gone


class Gone:
    """A child that turns out to be dead when something is sent to it. `words`: what it had said before."""

    pid, jobs, killed = 7, 0, False

    def __init__(self, words: list[Message]) -> None:
        self.words = words

    def resident(self) -> None: ...

    def wake(self) -> None: ...

    def kill(self) -> None:
        self.killed = True

    def send(self, message: Message) -> None:
        raise BrokenPipeError

    def last_words(self) -> list[Message]:
        return self.words


ENDED: Message = {"ended": LOST}


@pytest.mark.parametrize(
    ("words", "taken", "outcome"),
    [
        ([[], []], [False, True], Crashed),
        ([[], [ENDED]], [False, True], None),
        ([[{"begun": True}]], [False], Crashed),
        ([[{"begun": True}, ENDED]], [False], None),
    ],
    ids=["twice not begun", "ended by the second", "begun", "ended"],
)
def test_what_a_child_said_before_it_died_decides_about_its_job(
    words: list[list[Message]], taken: list[bool], outcome: type[Outcome] | None
) -> None:
    """If it had begun the job, the job is rescued; else another runs it, once; and an end that it told holds."""
    gone = [Gone(said) for said in words]
    children = Mock(**{"take.side_effect": gone, "drop.return_value": "ended with exit code 9"})
    executor = Mock()
    runner = ChildRunner(children, executor, grace=1, engine=Mock(), pause=Mock(), notes=Mock())
    job = ClaimedJob(1, 2, "default", "t", 4, 1.5, 1, 10, 0, "{}", None, 0.25, None)
    runner.run(Run(job, heavy.add, 0.0, 0.0, set()))
    assert [call.kwargs["new"] for call in children.take.call_args_list] == taken
    assert {call.args for call in children.drop.call_args_list} == {(child,) for child in gone}
    given_up = [type(call.args[1]) for call in executor.give_up.call_args_list]
    adopted = [call.args[1] for call in executor.adopt.call_args_list]
    assert (given_up, adopted) == (([], [LOST]) if outcome is None else ([outcome], []))


class Talking(Gone):
    """A child whose job has ended. It says all at once, and then something more."""

    def send(self, message: Message) -> None:
        """It takes the job."""

    def receive(self, seconds: float | None) -> list[Message]:
        return self.words


def test_what_a_child_says_at_the_end_of_its_job_is_heard_to_the_last_word(caplog: pytest.LogCaptureFixture) -> None:
    """A thread that a handler has left logs in the same moment."""
    record = logging.makeLogRecord({"name": "heavy", "levelno": logging.WARNING, "levelname": "WARNING", "msg": "late"})
    children, executor = Mock(**{"take.return_value": Talking([ENDED, message_of_record(record)])}), Mock()
    runner = ChildRunner(children, executor, grace=1, engine=Mock(), pause=Mock(), notes=Mock())
    job = ClaimedJob(1, 2, "default", "t", 4, 1.5, 1, 10, 0, "{}", None, 0.25, None)
    runner.run(Run(job, heavy.add, 0.0, 0.0, set()))
    assert [call.args[1] for call in executor.adopt.call_args_list] == [LOST]
    assert caplog.messages == ["late"]


# ---- tasks


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"executor": "thread"}, "executor must be \"process\", or None for a thread or the event loop, not 'thread'"),
        ({"memory_limit": 2**30}, 'give executor="process" with it'),
        (
            {"executor": "process", "memory_limit": 512},
            "memory_limit must be a number of bytes, at least 16,777,216 (16 MiB), not 512: 2 GiB are 2 * 2**30",
        ),
        ({"executor": "process", "memory_limit": "2G"}, "memory_limit must be a number of bytes, at least 16,777,216"),
        ({"executor": "process", "memory_limit": True}, "memory_limit must be a number of bytes"),
    ],
)
def test_a_declaration_that_cannot_work_is_refused(options: dict[str, Any], said: str) -> None:
    """With what to write instead."""
    with pytest.raises(TaskError) as refused:
        task(registry=Registry(), **options)(lambda: None)
    assert said in str(refused.value)


def test_an_async_handler_is_refused() -> None:
    """A child runs one job at a time, so there is nothing to await beside it."""

    async def handler() -> None: ...

    with pytest.raises(TaskError, match=r"is an `async def`.* write a `def` that calls asyncio\.run\(\)"):
        task(registry=Registry(), executor="process")(handler)


@pytest.mark.parametrize("options", [{"max_child_jobs": 0}, {"max_child_jobs": 1.5}, {"child_grace": -1}])
def test_a_setting_that_cannot_work_is_refused(options: dict[str, Any]) -> None:
    """And named."""
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        WorkerSettings(**options)
