"""Secret arguments without a database: what a row has, what a handler gets, and that no message has a value."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import traceback
from base64 import b64decode, b64encode, urlsafe_b64encode
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, SecretStr
from sqlalchemy import select

from sa_jobqueue import (
    BatchContext,
    Batching,
    Registry,
    Schedule,
    Secret,
    SecretKeys,
    Sensitive,
    TaskName,
    Unique,
    enqueue_select,
    every,
    task,
)
from sa_jobqueue.arguments.secrets import new_key
from sa_jobqueue.errors import ConfigurationError, OptionError, PayloadError, TaskError
from sa_jobqueue.tasks.tasks import AnyTask
from sa_jobqueue.util.urls import without_secrets
from tests.support.orders import Order

OLD, NEW = bytes(range(32)), b"n" * 32
VALUE = "tok-4711"


@pytest.fixture
def registry() -> Registry:
    return Registry(secrets=SecretKeys({"2025": OLD, "2026": NEW}, current="2026"))


@pytest.fixture
def sync(registry: Registry) -> AnyTask:
    """A task with a secret and a sensitive argument."""

    @task(registry=registry, name="sync", aliases=["old_sync"])
    def sync(
        n: int,
        token: Annotated[str | None, Secret()],
        email: Annotated[str, Sensitive()] = "ada@example.org",
        spare: Annotated[Any, Secret()] = "default",
    ) -> None: ...

    return sync


def stored(call: Any) -> dict[str, Any]:
    """The arguments as a row has them."""
    found: dict[str, Any] = json.loads(call.args)
    return found


def refusal(sync: AnyTask, *args: Any, **kwargs: Any) -> str:
    """The message about a call, after a look that its traceback does not have the value."""
    with pytest.raises(PayloadError) as caught:
        sync.call(*args, **kwargs)
    assert VALUE not in "".join(traceback.format_exception_only(caught.value))
    assert VALUE not in str(caught.value.__cause__)
    return str(caught.value)


def test_a_secret_is_stored_as_its_keys_name_and_a_ciphertext(sync: AnyTask) -> None:
    """Each time with another nonce. A sensitive value is stored in clear under its mark, and None stays null."""
    first, second = (stored(sync.call(1, VALUE, email="a@b")) for _ in range(2))
    assert first["token"].keys() == {"$secret"}
    key, text = first["token"]["$secret"]
    assert key == "2026"
    assert VALUE.encode() not in b64decode(text)
    assert first["token"] != second["token"]
    assert first["email"] == {"$sensitive": "a@b"}
    assert sync.decode(json.dumps(first)) == ((), {"n": 1, "token": VALUE, "email": "a@b"})
    assert stored(sync.call(1, None)) == {"n": 1, "token": None}


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
        lambda part: st.lists(part, max_size=3) | st.dictionaries(st.text("ab", max_size=2), part, max_size=3),
        max_leaves=6,
    )
)  # fmt: skip
def test_a_secret_may_be_any_json(value: Any) -> None:
    """It comes back equal."""
    registry = Registry(secrets=SecretKeys({"2026": NEW}, current="2026"))

    @task(registry=registry, name="any")
    def any_json(value: Annotated[Any, Secret()]) -> None: ...

    assert any_json.decode(any_json.call(value).args) == ((), {"value": value})


class Credentials(BaseModel):
    user: str
    password: str


def test_a_secret_may_be_a_model_or_bytes(registry: Registry) -> None:
    """The type of the annotation comes back."""

    @task(registry=registry, name="login")
    def login(by: Annotated[Credentials, Secret()], blob: Annotated[bytes, Secret()], /) -> None: ...

    given = Credentials(user="ada", password=VALUE)
    assert login.decode(login.call(given, b"\xff\0").args) == ((given, b"\xff\0"), {})


def test_no_message_has_a_secret(sync: AnyTask, registry: Registry) -> None:
    """Neither that of a wrong secret, nor that of another wrong argument next to it."""
    hidden = "the value, which is not shown,"
    assert f"argument token: {hidden} does not fit str | None (string_type)" in refusal(sync, 1, [VALUE])
    assert f"argument email: {hidden} does not fit str (string_type)" in refusal(sync, 1, "t", email={VALUE: 1})
    assert f"argument spare: {hidden} does not fit Any (ValueError)" in refusal(sync, 1, "t", spare=SecretStr(VALUE))
    assert "has a part that PostgreSQL's JSON cannot store" in refusal(sync, 1, f"{VALUE}\0")
    # A call with its arguments in a wrong order.
    assert "argument n: input should be a valid integer, got a str, which is not shown" in refusal(sync, VALUE, "x")
    assert "argument n is missing" in refusal(sync, token=VALUE)
    assert "unknown argument tokn" in refusal(sync, 1, None, tokn=VALUE)
    with pytest.raises(PayloadError) as caught:
        sync.decode(json.dumps({"n": 1, "token": [VALUE]}))
    assert VALUE not in str(caught.value)
    call = sync.call(1, VALUE, email=f"{VALUE}@b")
    assert repr(call) == """<Call 'sync' in 'default': {"n": 1, "token": "(hidden)", "email": "(hidden)"}>"""


def test_no_message_of_a_task_with_keywords_has_a_secret(registry: Registry) -> None:
    """The keywords that its handler takes are checked by themselves."""

    @task(registry=registry, name="post")
    def post(token: Annotated[str, Secret()], **counts: int) -> None: ...

    assert "argument counts.tokn: input should be a valid integer" in refusal(post, "t", tokn=VALUE)


def test_a_batch_handler_marks_the_items_of_its_lists(registry: Registry) -> None:
    """Another place is refused, and so is a secret by which batches would be put together."""

    def made(tokens: Any, **options: Any) -> AnyTask:
        def handler(ctx: BatchContext, tokens: Any) -> None: ...

        handler.__annotations__["tokens"] = tokens
        return task(registry=Registry(secrets=registry.secrets), name="batch", batch=Batching(10, **options))(handler)

    tokens = list[Annotated[str, Secret()]]
    assert stored(made(tokens).call(VALUE))["tokens"].keys() == {"$secret"}
    with pytest.raises(
        TaskError, match=r"not .*Secret\(\)\]: each job has an item in it, and marks are of an item, as in list\[Ann"
    ):
        made(Annotated[list[str], Secret()]).resolve()
    with pytest.raises(TaskError, match=r"by='tokens'.*names a secret argument, and no two secrets are equal"):
        made(tokens, by="tokens").resolve()


def test_a_secret_decrypts_only_in_its_own_place(sync: AnyTask, registry: Registry) -> None:
    """A ciphertext of another task, argument or key, and a changed or cut ciphertext, fail by name. An alias is the same task."""

    @task(registry=registry, name="other")
    def other(token: Annotated[str, Secret()]) -> None: ...

    def failure(token: Any, name: str = "token") -> str:
        with pytest.raises(PayloadError) as caught:
            sync.decode(json.dumps({"n": 1, "token": None, name: token}))
        return str(caught.value)

    mine = stored(sync.call(1, VALUE))["token"]
    key, text = mine["$secret"]
    wrong = "does not decrypt it: it was changed, or belongs to another task or argument"
    assert wrong in failure(stored(other.call(VALUE))["token"])
    assert wrong in failure(mine, "spare")
    assert wrong in failure({"$secret": ["2025", text]})
    for changed in (
        b64decode(text)[:-1],
        b64decode(text)[:5],
        b"",
        bytes([b64decode(text)[0] ^ 1]) + b64decode(text)[1:],
    ):
        assert wrong in failure({"$secret": [key, b64encode(changed).decode()]})
    assert wrong in failure({"$secret": [key, "?"]})
    for broken in ("x", [], [key], [key, 7], None):
        assert "it is no stored secret" in failure({"$secret": broken})

    foreign = Registry(secrets=SecretKeys({"elsewhere": OLD}, current="elsewhere"))
    theirs = task(registry=foreign, name="sync")(sync.handler)
    assert "the key 'elsewhere', which is not among the registry's keys ('2025', '2026')" in failure(
        stored(theirs.call(1, VALUE))["token"]
    )
    renamed = Registry(secrets=registry.secrets)
    now = task(registry=renamed, name="renamed", aliases=["sync"])(sync.handler)
    assert now.decode(json.dumps({"n": 1, "token": mine}))[1]["token"] == VALUE


def test_a_row_with_an_alias_is_encrypted_again_for_its_own_name(registry: Registry, sync: AnyTask) -> None:
    """So code from before the rename reads it after a rollback."""
    before = task(registry=Registry(secrets=registry.secrets), name="old_sync")(sync.handler)
    clear = {"n": 1, "token": VALUE}
    row = clear | sync.sealing.resealed("old_sync", clear, sync.parameters.encrypted)
    for known in (before, sync):
        assert known.decode(json.dumps(row))[1]["token"] == VALUE


def test_a_stored_value_in_clear_is_taken(sync: AnyTask) -> None:
    """Jobs that were enqueued before the argument was marked, or by name, run."""
    assert sync.decode('{"n": 1, "token": "plain", "email": "a@b"}')[1] == {"n": 1, "token": "plain", "email": "a@b"}


def test_without_keys_nothing_is_enqueued(registry: Registry, sync: AnyTask) -> None:
    """The message says what to set. Calls without a secret are enqueued, and no worker starts."""
    registry.secrets = None
    assert 'argument token: it is a secret, and the registry has no keys: set default_registry.secrets = SecretKeys({"2026"' in refusal(
        sync, 1, VALUE
    )  # fmt: skip
    assert stored(sync.call(1, None)) == {"n": 1, "token": None}
    with pytest.raises(
        TaskError, match=r"'spare' is secret, and its registry has no keys: .* or that of the task's own registry"
    ):
        registry.resolve()


def test_a_unique_key_is_not_made_of_a_secret(sync: AnyTask) -> None:
    """Its digest could be guessed. Also where the argument is not given and has a default. A key of other arguments is made."""
    for rule in (Unique(), Unique(by=("token",)), Unique(by=("spare",)), Unique(by=("email",))):
        with pytest.raises(OptionError, match=r"cannot be made of '\w+', which is secret or sensitive"):
            sync.options(unique=rule).call(1, VALUE)
    assert sync.options(unique=Unique(by=("n",))).call(1, VALUE).uniqueness is not None


def test_a_select_cannot_fill_a_secret(sync: AnyTask) -> None:
    """The database would store it in clear."""
    with pytest.raises(PayloadError, match="argument token is secret or sensitive"):
        enqueue_select(sync, select(Order.id, Order.note))
    with pytest.raises(PayloadError, match="argument email is secret or sensitive"):
        enqueue_select(sync, select(Order.id, Order.note.label("email"), Order.note.label("token")))


def test_code_cannot_declare_a_schedule_with_a_secret(registry: Registry, sync: AnyTask) -> None:
    """Each process would change it. A schedule that is made at run time keeps its secret encrypted, and any schedule a sensitive value."""
    with pytest.raises(OptionError, match="schedule 'sync': 'token' is secret, and code cannot declare"):
        registry.schedule(every(60), sync, 1, VALUE)
    registry.schedule(every(60), sync, 1, None, "a@b")
    assert Schedule(every(60), sync, 1, VALUE).args["token"].keys() == {"$secret"}


@dataclass
class Held:
    token: Annotated[str, Secret()]


def _list(x: list[Annotated[str, Secret()]]) -> None: ...
def _union(x: Annotated[str, Secret()] | None) -> None: ...
def _field(x: Held) -> None: ...
def _all(*x: Annotated[str, Sensitive()]) -> None: ...
def _keywords(**x: Annotated[str, Secret()]) -> None: ...
def _class(x: Annotated[str, Secret]) -> None: ...
def _row(x: Annotated[Order, Secret()]) -> None: ...
def _result() -> Annotated[str, Secret()]: ...  # type: ignore[empty-body]


@pytest.mark.parametrize("handler", [_list, _union, _field, _all, _keywords, _class, _row, _result])
def test_a_mark_in_another_place_is_refused_by_name(registry: Registry, handler: Any) -> None:
    """In a part of a type, in a field, on many arguments, on a mapped object, on a result, and as the class itself."""
    made = task(registry=registry, name="bad", record=True)(handler)
    with pytest.raises(TaskError, match=r"task 'bad': .*(Secret|Sensitive)\(\)|no secret"):
        made.resolve()


def test_a_model_cannot_have_a_secret_field() -> None:
    """The class itself is refused, by the name of the field."""
    with pytest.raises(TaskError, match=r"Secret\(\) at 'token' protects nothing there"):
        type("Bad", (BaseModel,), {"__annotations__": {"token": Annotated[str, Secret()]}, "__module__": __name__})


def test_keys_are_checked_and_never_shown() -> None:
    """Messages have a key's name. Bytes and both kinds of base64 are keys."""
    key = bytes([251] * 32)
    for form in (key, b64encode(key).decode(), urlsafe_b64encode(key).decode() + "\n"):
        keys = SecretKeys({"a": form}, current="a")
        assert repr(keys) == "<SecretKeys 'a', current 'a'>"
    assert len(b64decode(new_key())) == 32
    for keys, current, message in (
        ({}, "a", "SecretKeys takes keys by name"),
        ({"a": b"short-key"}, "a", "the key 'a' must be 32 bytes or their base64, not 9 bytes"),
        ({"a": "no-key"}, "a", "the key 'a' must be 32 bytes or their base64, not a str of another form"),
        ({"a": key}, "b", "current must be one of 'a', not 'b'"),
        ({"": key}, "", "the name of a key must be a text of 1 to 100 characters"),
    ):
        with pytest.raises(ConfigurationError, match=message) as caught:
            SecretKeys(keys, current=current)  # type: ignore[arg-type]
        assert "short-key" not in str(caught.value)
        assert "no-key" not in str(caught.value)
    with pytest.raises(ConfigurationError, match="secrets is SecretKeys"):
        Registry().secrets = {"a": key}  # type: ignore[assignment]


def test_an_upcaster_gets_secrets_in_clear(registry: Registry, sync: AnyTask, caplog: pytest.LogCaptureFixture) -> None:
    """So it can give them another name. Where it fails, the message has the exception's class alone."""
    old = json.dumps(stored(sync.call(1, VALUE, email="a@b")))
    caplog.set_level(logging.DEBUG)
    newer = Registry(secrets=registry.secrets)

    @task(registry=newer, name="sync", version=2)
    def renamed(n: int, api_token: Annotated[str, Secret()], email: str) -> None: ...

    @renamed.upcast(1)
    def from_1(args: dict[str, Any]) -> dict[str, Any]:
        if args["n"] == 2:
            raise ValueError(args["token"])
        if args["n"] == 3:
            return {"n": {1, args["token"]}}
        return {"n": args["n"], "api_token": args["token"], "email": args["email"]}

    assert renamed.decode(renamed.upcasts.current(old, 1))[1] == {"n": 1, "api_token": VALUE, "email": "a@b"}
    for n, kind in ((2, "ValueError"), (3, "PayloadError")):
        with pytest.raises(PayloadError, match=f"failed with {kind}$"):
            renamed.upcasts.current(json.dumps(stored(sync.call(n, VALUE))), 1)
    newer.secrets = None
    with pytest.raises(PayloadError, match="task 'sync': argument token: it is a secret, and the registry has no keys"):
        renamed.upcasts.current(old, 1)


def test_a_producer_that_knows_only_the_name_writes_in_clear() -> None:
    """It cannot know what is secret; `secrets rotate` encrypts such rows."""
    assert TaskName("sync").call(n=1, token=VALUE).args == '{"n":1,"token":"tok-4711"}'


def test_the_library_is_imported_only_for_keys() -> None:
    """A process without secrets does not load cryptography."""
    code = "import sys, sa_jobqueue; sa_jobqueue.Secret, sa_jobqueue.default_registry; sys.exit('cryptography' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_what_is_nested_too_deep_is_hidden() -> None:
    """A row or an address may have such JSON, and Python 3.13 reads it."""
    deep: list[object] = []
    for _ in range(5_000):
        deep = [deep]
    assert str(without_secrets({"a": deep})).count("[") < 1_000
