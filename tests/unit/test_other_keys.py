"""Keys that only limit: in limits, in the options of a job, and in what refuses them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Integer, column, func, select, table

from sa_jobqueue import KeyLimits, Limits, Rate, Registry, TaskName, enqueue_select, task
from sa_jobqueue.errors import OptionError
from sa_jobqueue.rules.limits import keys_said, per_said
from sa_jobqueue.statements import remove_limit, set_limit


@task(registry=Registry(), name="ask")
def ask(order_id: int) -> None: ...


#: The name and the value of another key.
OPENAI = {"provider": "openai"}


def keyed(**options: Any) -> Any:
    """The other keys of a job with these options."""
    return json.loads(ask.options(key="acme", **options).call(7).extras or "{}").get("keys")


def test_a_job_has_the_other_keys_that_its_options_say() -> None:
    """They replace earlier ones, and stand beside named units; the key may come before or after them."""
    both = ask.options(keys=OPENAI, units={"tokens": 9}).options(key="acme")
    call = both.call(7)

    assert (call.key, json.loads(call.extras or "")) == ("acme", {"keys": OPENAI, "units": {"tokens": 9}})
    assert json.loads(both.options(keys={"region": "eu"}).call(7).extras or "")["keys"] == {"region": "eu"}
    assert json.loads(both.options(keys={}).call(7).extras or "") == {"units": {"tokens": 9}}
    assert ask.options(keys=OPENAI).options(keys={}).call(7).extras is None
    assert TaskName("ask").options(key="acme", keys=OPENAI).call().extras == '{"keys":{"provider":"openai"}}'


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ("openai", r'keys must be a dict of up to 10 keys, as \{"provider": "openai"\}, not'),
        ({f"k{n}": "v" for n in range(11)}, "keys must be a dict of up to 10 keys"),
        ({"": "v"}, "the name of another key must be 1 to 50 letters, digits"),
        ({"a" * 51: "v"}, "the name of another key must be 1 to 50 letters, digits"),
        ({"a b": "v"}, "begin with a letter, as \"provider\", not 'a b'"),
        ({"a:b": "v"}, "the name of another key"),
        ({7: "v"}, "not 7"),
        ({"key": "v"}, 'the name of another key must not be "key": that is the key by which jobs are ordered'),
        ({"provider": ""}, "keys: provider must have 1 to 200 characters, not 0"),
        ({"provider": "v" * 201}, "keys: provider must have 1 to 200 characters, not 201"),
        ({"provider": 7}, "keys: provider must be a string, not 7"),
        ({"provider": None}, "keys: provider must be a string, not None"),
        ({"provider": "\0"}, "keys: provider"),
        ({"provider": "\x01v"}, "keys: provider .* must not begin with"),
    ],
)
def test_keys_that_cannot_be_are_refused(keys: Any, said: str) -> None:
    """Before any SQL, by the name of the key."""
    with pytest.raises(OptionError, match=said):
        keyed(keys=keys)


@pytest.mark.parametrize(
    "made",
    [
        lambda: ask.options(keys=OPENAI).call(7),
        lambda: ask.options(key="acme", keys=OPENAI).options(key=False).call(7),
        lambda: TaskName("ask").options(keys=OPENAI).call(order_id=7),
        lambda: Registry().schedule("0 3 * * *", TaskName("ask").options(keys=OPENAI)),
        lambda: enqueue_select(
            ask.options(keys=OPENAI), select(column("id", Integer)).select_from(table("orders")), key=func.now()
        ),
    ],
)
def test_other_keys_need_a_key(made: Callable[[], Any]) -> None:
    """It has the job's turn. A key that `enqueue_select` has row by row may be NULL, so its task needs one, too."""
    with pytest.raises(
        OptionError,
        match=r"keys=\{'provider': 'openai'\} only limit, and need a key .* write .options\(key=..., keys=...\)",
    ):
        made()


def test_a_follow_up_has_its_own_keys() -> None:
    """And needs a key of its own for them."""

    @task(registry=Registry(), name="notify")
    def notify(job_id: int) -> None: ...

    call = ask.options(on_failure=notify.options(key="acme", keys=OPENAI)).call(7)
    follow_up = json.loads(call.extras or "")["on_failure"]
    assert (follow_up["key"], follow_up["extras"]) == ("acme", {"keys": OPENAI})
    with pytest.raises(OptionError, match=r"on_failure: 'notify': keys=.* need a key"):
        ask.options(on_failure=notify.options(keys=OPENAI))


def test_limits_of_other_keys_are_one_column() -> None:
    """By the name of the key, without what is no limit."""
    limits = Limits(per={"provider": KeyLimits(running=8, rates=[Rate(500, per=60), Rate(9, unit="tokens")])})
    columns = limits.columns()["per"]

    assert columns == {
        "provider": {
            "running": 8, "rate_count": 500, "rate_seconds": 60.0, "rate_burst": 1,
            "rates": [{"unit": "tokens", "count": 9, "seconds": 1.0, "burst": 1}],
        }
    }  # fmt: skip
    assert per_said(columns) == ["each provider: 8 running, 500/1m; 9/1s tokens"]
    assert Limits(per={}).columns() == Limits().columns()


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: Limits(per={"provider": 8}), r"limits: per must be a dict as \{\"provider\": KeyLimits"),  # type: ignore[dict-item]
        (lambda: Limits(per=KeyLimits(running=8)), "limits: per must be a dict"),  # type: ignore[arg-type]
        (lambda: Limits(per={"key": KeyLimits(running=8)}), 'must not be "key"'),
        (lambda: set_limit("llm", of="provider", running=8), "of='provider' is the name of another key: give its value"),
        (lambda: set_limit("llm", key="openai", of="a b", running=8), "the name of another key must be"),
        (lambda: set_limit("llm", key="openai", of="key", running=8), 'must not be "key"'),
        (lambda: set_limit("llm", key="openai", of="provider", weight=3), "a weight is that of the key by which jobs take turns, and provider only limits"),
        (lambda: set_limit("llm", key="openai", of="provider", strict=True), "strict is for all keys of the queue"),
        (lambda: set_limit("llm", key="acme", per={"provider": KeyLimits()}), "per is for all keys of the queue"),
        (lambda: remove_limit("llm", of="provider"), "give its value with it"),
    ],
)  # fmt: skip
def test_limits_that_cannot_be_are_refused(made: Callable[[], Any], said: str) -> None:
    """Where they are written, before any SQL."""
    with pytest.raises(OptionError, match=said):
        made()


@pytest.mark.parametrize("extras", [None, 7, [], {}, {"keys": None}, {"keys": [1]}, {"keys": {}}])
def test_what_was_written_by_hand_says_no_keys(extras: Any) -> None:
    """Whatever JSON it is."""
    assert keys_said(extras) is None
    assert keys_said({"keys": {"region": "eu", **OPENAI}}) == "provider=openai, region=eu"
