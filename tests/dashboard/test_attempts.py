"""The password of a dashboard alone: the right one passes, and wrong ones are counted by address."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient

from sa_jobqueue.dashboard.security import AT_ONCE, EVERY, Attempts, place_of, with_password


class Clock:
    """A clock that a test moves."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def client(app: Any, host: str = "192.0.2.1") -> TestClient:
    async def from_host(scope: Any, receive: Any, send: Any) -> None:
        await app({**scope, "client": (host, 1234)}, receive, send)

    return TestClient(from_host)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr("sa_jobqueue.dashboard.security.Attempts", lambda: Attempts(made))
    return made


@pytest.fixture
def app(clock: Clock) -> Any:
    return with_password(PlainTextResponse("in"), "right")


def test_the_right_password_always_passes_and_after_ten_wrong_ones_more_are_answered_429(
    app: Any, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """A guesser cannot lock out others of its address, as all have behind a proxy. The operator is told once."""
    guesser = client(app)
    with caplog.at_level(logging.WARNING, "sa_jobqueue"):
        assert [guesser.get("/", auth=("ada", str(one))).status_code for one in range(AT_ONCE + 3)] == [
            401
        ] * AT_ONCE + [429] * 3
    assert [one.getMessage() for one in caplog.records] == ["192.0.2.1 gave 10 wrong passwords"]
    assert guesser.get("/", auth=("ada", "wrong")).headers["retry-after"] == "6"
    assert guesser.get("/", auth=("ada", "right")).status_code == 200
    clock.now += EVERY
    assert [guesser.get("/", auth=("ada", "wrong")).status_code for _ in range(2)] == [401, 429]


def test_a_browser_that_has_not_asked_its_person_yet_does_not_guess(app: Any) -> None:
    viewer = client(app)
    assert {viewer.get("/").status_code for _ in range(3 * AT_ONCE)} == {401}
    assert viewer.get("/", auth=("ada", "right")).status_code == 200


@pytest.mark.parametrize("header", ["Basic", "Basic !!", "Bearer right", "Basic " + "QQ" * 9])
def test_what_is_no_password_counts_as_a_wrong_one(app: Any, header: str) -> None:
    guesser = client(app)
    answers = [guesser.get("/", headers={"authorization": header}).status_code for _ in range(AT_ONCE + 1)]
    assert answers == [401] * AT_ONCE + [429]


@pytest.mark.parametrize(
    ("host", "place"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
        ("testclient", "testclient"),
    ],
)
def test_one_guesser_is_one_address(host: str, place: str) -> None:
    assert place_of(host) == place


def test_of_very_many_addresses_those_that_guess_most_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory does not grow, and a guesser is not forgotten because others come."""
    monkeypatch.setattr("sa_jobqueue.dashboard.security._MOST_ADDRESSES", 50)
    clock = Clock()
    attempts = Attempts(clock)
    for _ in range(AT_ONCE):
        attempts.failed("bad")
    for number in range(200):
        attempts.failed(f"other {number}")
    assert attempts.wait("bad") == EVERY
    assert len(attempts._until) == 50
    clock.now = 1_000.0
    attempts.failed("one more")
    assert list(attempts._until) == ["one more"]
