"""Tasks: what a decorated function is, what is refused at once, and which task is found under which name."""

from __future__ import annotations

import asyncio
import functools
import importlib
import inspect
import logging
import pickle
import re
import runpy
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sa_jobqueue
from sa_jobqueue.arguments.context import AsyncJobContext, JobContext
from sa_jobqueue.arguments.storable import MAX_PAYLOAD, load
from sa_jobqueue.errors import ConfigurationError, OptionError, PayloadError, TaskError, TaskWarning
from sa_jobqueue.rules.lifecycle import Rules
from sa_jobqueue.rules.retry import RetryPolicy
from sa_jobqueue.tasks.calls import Call
from sa_jobqueue.tasks.decorator import task
from sa_jobqueue.tasks.registry import Registry, TaskName
from sa_jobqueue.tasks.tasks import AnyTask

if TYPE_CHECKING:
    from decimal import Decimal as OnlyForTheChecker

registry = Registry()


@task(registry=registry)
def add(one: int, two: int = 2) -> int:
    """Add."""
    return one + two


@task(registry=registry)
def with_context(ctx: JobContext, one: int) -> int:
    return one


@task(registry=registry)
async def coroutine(ctx: AsyncJobContext, one: int) -> int:
    return one


@task(registry=registry)
def later_known(value: Later) -> None: ...


@dataclass
class Later:
    one: int


@task(registry=registry)
def checker_only(value: OnlyForTheChecker) -> None: ...


@task(registry=registry)
def returns_checker_only(value: int) -> OnlyForTheChecker:
    raise NotImplementedError


# ---- what a task is


def test_a_task_can_be_called_as_its_function() -> None:
    """It keeps the name, the docstring and the signature."""
    assert add(1) == 3
    assert add(one=1, two=1) == 2
    assert add.__name__ == "add"
    assert add.__doc__ == "Add."
    assert list(inspect.signature(add).parameters) == ["one", "two"]


def test_a_tasks_name_has_its_module() -> None:
    """So two modules may have functions of one name."""
    assert add.name == f"{__name__}.add"
    assert registry.get(f"{__name__}.add") is add
    assert registry.get("add") is None


def test_the_context_is_no_argument_of_the_job() -> None:
    """The annotation of the first parameter says whether there is one, and which."""
    assert with_context.call(1).args == '{"one":1}'
    assert with_context.context is JobContext
    assert coroutine.call(1).args == '{"one":1}'
    assert coroutine.context is AsyncJobContext
    assert add.context is None


def test_def_and_async_def_handlers_are_told_apart() -> None:
    """By the function itself."""
    assert coroutine.is_async
    assert not add.is_async


def test_frameworks_are_told_whether_to_await_a_task() -> None:
    """Starlette calls what it takes for a plain function on a thread, and would drop the coroutine."""
    asked = inspect.iscoroutinefunction if sys.version_info >= (3, 12) else asyncio.iscoroutinefunction
    assert asked(coroutine)
    assert asked(coroutine.options(priority=9))
    assert not asked(add)


def test_a_task_is_pickled_by_its_name_as_a_function_is() -> None:
    """So a pool of processes takes it."""
    assert pickle.loads(pickle.dumps(add)) is add
    with pytest.raises(pickle.PicklingError):
        pickle.dumps(add.options(priority=9))


def test_annotations_are_resolved_at_the_first_use() -> None:
    """`Later` is declared after the task."""
    assert later_known.call(Later(1)).args == '{"value":{"one":1}}'


def test_a_type_checking_import_is_an_error_at_the_first_use() -> None:
    """Not at the decoration: the name may come later in the module."""
    with pytest.raises(TaskError, match="'OnlyForTheChecker', cannot be resolved"):
        checker_only.call(1)  # type: ignore[arg-type]
    with pytest.raises(TaskError, match="'OnlyForTheChecker', cannot be resolved"):
        checker_only.resolve()


def test_the_return_annotation_need_not_resolve() -> None:
    """Results are encoded by their values."""
    assert returns_checker_only.call(1).args == '{"value":1}'


def test_a_context_imported_under_type_checking_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its name, as linters move such imports."""
    source = """
        from __future__ import annotations
        from typing import TYPE_CHECKING
        from sa_jobqueue import task
        if TYPE_CHECKING:
            import sa_jobqueue.arguments.context
            from sa_jobqueue.arguments.context import JobContext

        @task(name="checker.one")
        def one(ctx: JobContext, value: int) -> None: ...

        @task(name="checker.two")
        def two(ctx: sa_jobqueue.arguments.context.JobContext, value: int) -> None: ...
    """
    module = module_of(tmp_path, monkeypatch, "checker_module", source)

    assert module.one.context is JobContext
    assert module.two.context is JobContext
    assert module.two.call(1).args == '{"value":1}'


def test_the_decorators_rules_are_the_tasks() -> None:
    """Durations may be timedeltas."""
    policy = RetryPolicy(base=1)
    own = Registry()

    @task(
        registry=own, retry=policy, retain=timedelta(days=60), rescue=False, timeout=timedelta(minutes=1), record=True
    )
    def strict() -> None: ...

    @task(registry=own, retain=None)
    def kept() -> None: ...

    @task(registry=own, retain=0)
    def gone() -> None: ...

    assert add.rules == Rules()
    assert strict.rules == Rules(policy, retain=60 * 86_400.0, retain_failed=60 * 86_400.0, rescue=False)
    assert (strict.timeout, strict.record) == (60.0, True)
    assert (kept.rules.retain, kept.rules.retain_failed) == (None, None)
    assert (gone.rules.retain, gone.rules.retain_failed) == (0.0, Rules().retain_failed)


# ---- what is refused at once


def generator() -> Iterator[int]:
    yield 1


async def async_generator() -> Any:
    yield 1


class Handlers:
    def method(self, one: int) -> None: ...

    @staticmethod
    def static(one: int) -> None: ...


@pytest.mark.parametrize(
    ("handler", "said"),
    [
        (generator, "is a generator"),
        (async_generator, "is a generator"),
        (Handlers, "a task is a function"),
        (Handlers.method, "is a method"),
        (Handlers().method, "a task is a function"),
        (print, "a task is a function"),
        (add, "a task is a function"),
        (5, "a task is a function"),
        (lambda: None, "a lambda has no name"),
    ],
    ids=lambda one: type(one).__name__,
)
def test_what_cannot_be_a_handler_is_refused(handler: Any, said: str) -> None:
    """At the decoration, with the reason."""
    with pytest.raises(TaskError, match=said):
        task(registry=Registry())(handler)


def test_static_methods_and_named_lambdas_can_be_tasks() -> None:
    """A lambda has no name of its own, so it needs one."""
    own = Registry()

    assert task(registry=own)(Handlers.static).call(1).args == '{"one":1}'
    assert task(name="mine", registry=own)(lambda: None).name == "mine"


class Doubles:
    def __call__(self, one: int, two: int = 2) -> int:
        return one * two


@pytest.mark.parametrize("wrapped", [functools.partial(add.handler, two=5), Doubles()], ids=["partial", "object"])
def test_what_a_decorator_wraps_need_not_be_a_function(wrapped: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A function around a partial or an object is a handler, with the arguments of what is in it."""
    own = Registry()

    @functools.wraps(wrapped)
    def decorated(*args: Any, **kwargs: Any) -> Any:
        return wrapped(*args, **kwargs)

    task(name="mine", registry=own)(decorated)
    again = task(name="mine", registry=own)(decorated)

    assert again(2) == wrapped(2)
    assert again.call(one=2).args == '{"one":2}'
    assert list(own) == [again]
    assert caplog.records == []


def test_attributes_of_a_function_take_the_place_of_nothing() -> None:
    """Other decorators mark functions; `functools.singledispatch` puts a `registry` on them. The marks come along."""

    @functools.singledispatch
    def send(order_id: int) -> str:
        return "sent"

    for name in ("timeout", "handler", "is_async", "call", "options", "decode", "limits"):
        setattr(send, name, "a mark")
    send.marked = True  # type: ignore[attr-defined]

    made = task(name="mine", registry=(own := Registry()), timeout=20)(send)

    assert (made.registry, made.timeout, made.handler, made.is_async, made.limits) == (own, 20, send, False, None)
    assert made.options(queue="mail").call(7).args == '{"order_id":7}'
    assert made.decode('{"order_id":7}') == ((), {"order_id": 7})
    assert made.marked


@pytest.mark.parametrize(
    "options",
    [
        {"name": ""},
        {"name": "x" * 201},
        {"name": "a\x00b"},
        {"name": "a\ud800"},
        {"name": 5},
        {"aliases": "name"},
        {"aliases": [""]},
        {"queue": ""},
        {"queue": "x" * 201},
        {"queue": None},
        {"priority": 10},
        {"priority": -1},
        {"priority": True},
        {"priority": 4.0},
        {"max_attempts": 0},
        {"max_attempts": 32_768},
        {"max_attempts": "3"},
        {"timeout": 0},
        {"timeout": -1},
        {"timeout": float("nan")},
        {"timeout": "1"},
        {"retain": -1},
        {"retain": timedelta(days=-1)},
        {"retry": 3},
        {"rescue": "no"},
        {"record": 1},
        {"registry": "mine"},
    ],
    ids=lambda options: str(options)[:40],
)
def test_bad_options_are_refused_at_the_decoration(options: dict[str, Any]) -> None:
    """When the module is imported, not when a job runs."""
    with pytest.raises(TaskError):
        task(**{"registry": Registry(), **options})(len_of)


def len_of(text: str) -> int:
    return len(text)


def test_a_context_in_the_wrong_place_is_refused() -> None:
    """It must be the first positional parameter, and of the kind of the handler."""
    own = Registry()

    @task(registry=own)
    def second(one: int, ctx: JobContext) -> None: ...

    @task(registry=own)
    def keyword(*, ctx: JobContext) -> None: ...

    @task(registry=own)
    def sync(ctx: AsyncJobContext) -> None: ...

    @task(registry=own)
    async def coroutine(ctx: JobContext) -> None: ...

    @task(registry=own)
    def optional(ctx: JobContext | None) -> None: ...

    async def behind(ctx: AsyncJobContext) -> None: ...

    @task(registry=own)
    @functools.wraps(behind)
    def decorated(*args: Any) -> Any:
        return behind(*args)

    @task(registry=own)
    def bare(ctx, order_id: int = 1) -> None: ...  # type: ignore[no-untyped-def]

    @task(registry=own)
    async def async_bare(ctx, order_id: int = 1) -> None: ...  # type: ignore[no-untyped-def]

    @task(registry=own)
    def argument(ctx=None, order_id: int = 1) -> None: ...  # type: ignore[no-untyped-def]

    assert argument.call(order_id=2).args == '{"order_id":2}'

    wrong: list[tuple[AnyTask, str]] = [
        (bare, "annotate 'ctx' with JobContext$"),
        (async_bare, "annotate 'ctx' with AsyncJobContext$"),
        (optional, "annotate 'ctx' with the context's class alone"),
        (decorated, "a decorator turns an `async def` into a `def`"),
        (second, "must be the first parameter"),
        (keyword, "is given by position"),
        (sync, "a `def` handler gets a JobContext: annotate 'ctx' with JobContext"),
        (coroutine, "an `async def` handler gets an AsyncJobContext: annotate 'ctx' with AsyncJobContext"),
    ]
    for one, said in wrong:
        with pytest.raises(TaskError, match=said):
            one.resolve()
    with pytest.raises(TaskError):
        own.resolve()


# ---- options


@pytest.mark.parametrize("limit", ["expires_in", "deadline"])
def test_a_task_has_no_limit_that_is_a_time(limit: str) -> None:
    """It would be the same for each of its jobs, and over for all of them one day."""
    limits: dict[str, Any] = {limit: datetime(2030, 1, 1, tzinfo=UTC)}
    with pytest.raises(
        TaskError, match=rf"{limit} of a task must be seconds or a timedelta, not .*2030.*by task.options\(\)"
    ):
        task(registry=Registry(), **limits)(lambda: None)


def test_a_name_may_be_a_member_of_an_enum_of_texts() -> None:
    """Its value is the name, on every Python: `str()` of it would be "Name.MAIL"."""

    class Name(str, Enum):  # noqa: UP042  # of a StrEnum str() is the value
        MAIL = "mail"

    made = task(name=Name.MAIL, queue=Name.MAIL, registry=Registry())(len_of)
    assert (made.name, made.call("x").queue, TaskName(Name.MAIL).name) == ("mail", "mail", "mail")
    call = made.options(queue=Name.MAIL, tags=[Name.MAIL]).call("x")
    assert (call.queue, call.meta) == ("mail", '{"tags":["mail"]}')


def test_options_make_a_changed_copy() -> None:
    """The task itself stays as it is."""
    moment = datetime(2030, 1, 1, tzinfo=timezone(timedelta(hours=2)))
    changed = add.options(queue="mail", priority=0, max_attempts=1).options(run_at=moment)

    assert changed.call(1) == Call(add.name, '{"one":1}', "mail", 0, 1, moment, "{}")
    assert add.call(1) == Call(add.name, '{"one":1}', "default", 4, 10, timedelta(0), "{}")
    assert changed(1) == 3
    assert registry.get(add.name) is add


def test_the_last_of_delay_and_run_at_counts() -> None:
    """They are two ways to say one thing."""
    moment = datetime(2030, 1, 1, tzinfo=UTC)

    assert add.options(run_at=moment).options(delay=90).call(1).run_at == timedelta(seconds=90)
    assert add.options(delay=timedelta(hours=1)).options(run_at=moment).call(1).run_at == moment


def test_tags_are_kept_in_meta() -> None:
    """Beside what else is there; new tags replace the old."""
    both = add.options(tags=["a", "b"], meta={"trace": {"id": 1}})

    assert load(both.call(1).meta) == {"trace": {"id": 1}, "tags": ["a", "b"]}
    assert load(both.options(tags=["c"]).call(1).meta) == {"trace": {"id": 1}, "tags": ["c"]}
    assert load(both.options(meta={"x": 1}).call(1).meta) == {"x": 1, "tags": ["a", "b"]}
    assert load(both.options(tags=[], meta={}).call(1).meta) == {}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"run_at": datetime(2030, 1, 1)}, "must have a time zone, not the naive"),  # noqa: DTZ001
        ({"run_at": timedelta(1)}, "for a duration there is delay="),
        ({"run_at": datetime.min.replace(tzinfo=timezone(timedelta(hours=14)))}, "outside of the calendar"),
        ({"run_at": datetime.now(UTC), "delay": 1}, "give one of them"),
        ({"delay": -1}, "between 0 seconds and 100 years"),
        ({"delay": float("nan")}, "between 0 seconds and 100 years"),
        ({"delay": True}, "seconds or a timedelta"),
        ({"delay": timedelta.max}, "between 0 seconds and 100 years"),
        ({"delay": 10**400}, "between 0 seconds and 100 years"),
        ({"priority": 10}, "priority must be an integer from 0 to 9, not 10"),
        ({"priority": True}, "priority must be an integer"),
        ({"priority": 4.0}, "priority must be an integer"),
        ({"max_attempts": 0}, "max_attempts must be an integer from 1 to 32,767, not 0"),
        ({"max_attempts": 40_000}, "max_attempts"),
        ({"queue": ""}, "queue must have 1 to 200 characters, not 0"),
        ({"queue": "x" * 201}, "queue must have 1 to 200 characters, not 201"),
        ({"queue": "*"}, "queue .* is refused: among a worker's queues it stands for all the others"),
        ({"queue": "\x00"}, "queue '\\\\x00' holds a NUL"),
        ({"queue": "\udfff"}, "queue .* holds a lone surrogate"),
        ({"tags": "ab"}, "tags must be a list of strings"),
        ({"tags": [1]}, "a tag must be a string"),
        ({"tags": [""]}, "a tag must have 1 to 200"),
        ({"tags": ["\x00"]}, "a tag .* holds a NUL"),
        ({"meta": []}, "meta must be a dict"),
        ({"meta": {"tags": ["a"]}}, "is where tags are stored"),
        ({"meta": {1: 2}}, "meta: the key 1 is not a string"),
        ({"meta": {"a": (1,)}}, "meta: a: .* is not plain JSON"),
        ({"meta": {"a": [float("nan")]}}, r"meta: a\[0\]: nan cannot be a number in JSON"),
        ({"meta": {"a": {"b": "\x00"}}}, "meta: a.b: .* holds a NUL"),
        ({"meta": {"a": "x" * 2_000_000}}, "meta: 2,000,008 bytes"),
    ],
    ids=lambda one: "" if isinstance(one, dict) else None,
)
def test_bad_options_are_refused_before_any_sql(options: dict[str, Any], said: str) -> None:
    """Of tasks and of names."""
    for one in (add, TaskName("by.name")):
        with pytest.raises(OptionError, match=said):
            one.options(**options)


@given(st.text(min_size=1, max_size=200))
def test_any_storable_name_works_as_a_queue(name: str) -> None:
    """All but "*", which stands for all queues, and NUL and surrogates, which PostgreSQL cannot store."""
    if name == "*" or "\x00" in name or re.search("[\ud800-\udfff]", name):
        with pytest.raises(OptionError):
            add.options(queue=name)
    else:
        assert add.options(queue=name).call(1).queue == name


# ---- by name


def test_a_task_name_takes_keywords_of_plain_json() -> None:
    """It has no handler that could place or convert them."""
    name = TaskName("shop.mail")

    assert name.options(queue="mail").call(order_id=1) == Call(
        "shop.mail", '{"order_id":1}', "mail", 4, 10, timedelta(0), "{}"
    )
    with pytest.raises(PayloadError, match="by name, a task takes keyword arguments only"):
        name.call(1)
    with pytest.raises(PayloadError, match=r"argument order_id: .* is not plain JSON"):
        name.call(order_id=(1, 2))


@pytest.mark.parametrize("name", ["", "x" * 201, "\x00", "\ud800", 5, None])
def test_a_bad_task_name_is_refused(name: Any) -> None:
    """Empty, too long, or not text."""
    with pytest.raises(OptionError, match="task name"):
        TaskName(name)


# ---- registries


def test_aliases_find_the_task() -> None:
    """They are other names of one task, which the registry lists once."""
    own = Registry()
    made = task(name="new", aliases=["old", "older"], registry=own)(len_of)

    assert own.get("new") is own.get("old") is own.get("older") is made
    assert own.get("oldest") is None
    assert list(own) == [made]


def test_a_taken_name_is_refused_with_both_places() -> None:
    """Aliases are names, too."""
    own = Registry()
    first = task(name="name", aliases=["alias"], registry=own)(len_of)

    for options in ({"name": "name"}, {"name": "alias"}, {"name": "x", "aliases": ["name"]}):
        with pytest.raises(TaskError, match=r"is taken by len_of \(.*test_tasks.py:\d+\); generator_free .* needs"):
            task(registry=own, **options)(generator_free)
    assert list(own) == [first]
    assert own.get("x") is None


def test_each_attribute_of_a_registry_is_included_in_another_or_stays_with_its_tasks() -> None:
    """A new attribute must be in one of these sets, so that `--app` with several registries loses nothing."""
    included = {"_tasks", "_schedules", "_queues", "start_hooks", "stop_hooks"}
    of_a_worker = {"max_payload", "sessionmaker", "async_sessionmaker", "job"}
    of_its_tasks = {"archive", "callbacks", "secrets", "overrides"}
    assert vars(Registry()).keys() - {"get"} == included | of_a_worker | of_its_tasks


def generator_free() -> None: ...


def module_of(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, source: str) -> Any:
    (folder / f"{name}.py").write_text(textwrap.dedent(source))
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return importlib.import_module(name)


SHOP = """
    from sa_jobqueue import Registry, task
    import sa_jobqueue.tasks
    registry = sa_jobqueue.tasks.shop_registry

    @task(registry=registry, aliases=["old"])
    def send(order_id: int) -> None: ...
"""


def test_a_reloaded_function_replaces_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As notebooks and development servers reload modules."""
    own = Registry()
    monkeypatch.setattr("sa_jobqueue.tasks.shop_registry", own, raising=False)
    module = module_of(tmp_path, monkeypatch, "reloaded_shop", SHOP)
    first = module.send
    importlib.reload(module)

    assert first is not module.send
    assert list(own) == [module.send]
    assert own.get("old") is module.send
    assert caplog.records == []


def test_a_function_declared_twice_is_said(caplog: pytest.LogCaptureFixture) -> None:
    """Not refused, because a reload of an edited module looks the same."""
    own = Registry()

    def declare() -> list[AnyTask]:
        @task(registry=own)
        def one() -> None: ...

        first = one

        @task(registry=own)  # type: ignore[no-redef]
        def one() -> None: ...

        return [first, one]

    with caplog.at_level(logging.WARNING):
        _, second = declare()

    assert list(own) == [second]
    assert "is declared again" in caplog.text


def test_two_closures_of_one_function_under_one_name_are_said(caplog: pytest.LogCaptureFixture) -> None:
    """They may do different things, and jobs of both would run the second. Names of their own keep them apart."""
    own = Registry()

    def make(kind: str, name: str | None) -> AnyTask:
        @task(name=name, registry=own)
        def sync_rows() -> str:
            return kind

        return sync_rows

    assert [one.name for one in (make("orders", "orders"), make("users", "users"))] == ["orders", "users"]
    assert caplog.records == []

    make("orders", None)
    second = make("users", None)
    assert own.get(second.name) is second
    assert len(caplog.records) == 1
    assert "make.<locals>.sync_rows' is declared again" in caplog.text


def test_the_same_function_again_is_not_said(caplog: pytest.LogCaptureFixture) -> None:
    """With other options, say."""
    own = Registry()
    task(name="mine", registry=own)(len_of)
    second = task(name="mine", queue="other", registry=own)(len_of)

    assert list(own) == [second]
    assert caplog.records == []


def test_a_script_is_named_by_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`python shop.py` enqueues what `--app shop` runs; the script may be imported under its name as well."""
    own = Registry()
    monkeypatch.setattr("sa_jobqueue.tasks.shop_registry", own, raising=False)
    script = tmp_path / "my_shop.py"
    script.write_text(textwrap.dedent(SHOP))

    for run_name in ("__main__", "__mp_main__"):
        assert runpy.run_path(str(script), run_name=run_name)["send"].name == "my_shop.send"
    monkeypatch.syspath_prepend(str(tmp_path))
    assert runpy.run_module("my_shop", run_name="__main__")["send"].name == "my_shop.send"
    imported = module_of(tmp_path, monkeypatch, "my_shop", SHOP)
    assert list(own) == [imported.send]
    assert (
        runpy.run_path(str(script), {"__file__": None, "__spec__": None}, "elsewhere")["send"].name == "elsewhere.send"
    )


def test_a_registrys_max_payload_bounds_arguments_and_results() -> None:
    """Each says how large it was."""
    small = task(name="small", registry=Registry(max_payload=20))(len_of)

    assert small.call("x" * 5)
    with pytest.raises(PayloadError, match="more than the 20 that are accepted"):
        small.call("x" * 20)
    with pytest.raises(PayloadError, match="its result: 21 bytes"):
        small.encode_result(10**20)
    assert small.encode_result(7) == "7"


def test_the_limit_of_the_default_registry_holds_for_jobs_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says where it is set; there it can be set."""
    with pytest.raises(PayloadError, match=r"store the data elsewhere .*, or raise max_payload .*default_registry"):
        TaskName("by.name").call(data="x" * MAX_PAYLOAD)
    monkeypatch.setattr(sa_jobqueue.default_registry, "max_payload", 2 * MAX_PAYLOAD)

    assert len(TaskName("by.name").call(data="x" * MAX_PAYLOAD).args) > MAX_PAYLOAD


def test_the_limit_of_meta_is_not_to_be_changed() -> None:
    """No registry counts, and the message names none."""
    large = task(name="large", registry=Registry(max_payload=2 * MAX_PAYLOAD))(len_of)

    with pytest.raises(OptionError) as caught:
        large.options(meta={"a": "x" * MAX_PAYLOAD})
    assert str(caught.value) == (
        "meta: 1,048,584 bytes of JSON, more than the 1,048,576 that are accepted: "
        "store the data elsewhere and pass its key"
    )


@pytest.mark.parametrize("limit", ["1", 0, -1, None, True, 1.5, 2**28])
def test_a_limit_is_a_number_of_bytes(limit: Any) -> None:
    """Refused in the constructor, and when it is set."""
    registry = Registry()
    with pytest.raises(ConfigurationError, match="max_payload must be an integer from 1 to 268,435,455, not"):
        Registry(max_payload=limit)
    with pytest.raises(ConfigurationError, match="max_payload must be"):
        registry.max_payload = limit
    assert registry.max_payload == MAX_PAYLOAD


def test_a_task_that_workers_may_not_find_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """A local function with the name that comes by itself; a name or a registry says that it is meant."""
    monkeypatch.setattr("sa_jobqueue.tasks.decorator.default_registry", Registry())

    def inner() -> None: ...

    with pytest.warns(TaskWarning, match=r"<locals>\.inner' only after a call of .*warned_of\(\): ") as said:
        task(inner)
    assert (said[0].filename, said[0].lineno) == (__file__, inner.__code__.co_firstlineno)
    task(name="inner")(inner)
    task(registry=registry)(inner)
    task(len_of)


def test_a_task_on_stdin_is_warned_of() -> None:
    """As in a notebook: no worker can import it. A script it can."""
    script = (
        "from sa_jobqueue import task\n@task\ndef send() -> None: ...\n@task(name='said')\ndef other() -> None: ...\n"
    )
    said = subprocess.run([sys.executable, "-"], input=script, capture_output=True, text=True, check=True).stderr
    assert said.count("TaskWarning") == 1
    assert ".send' from a notebook, stdin or -c" in said


def test_bad_versions_and_upcasters_are_refused_where_they_stand() -> None:
    """A missing upcaster when the task is resolved, as a worker does at its start: other modules may declare it."""
    registry = Registry()
    with pytest.raises(TaskError, match="version must be an integer from 1 to 32,767, not 0"):
        task(registry=registry, version=0)
    with pytest.raises(OptionError, match="version must be an integer from 1 to 32,767, not True"):
        TaskName("shop.send", version=True)

    @task(registry=registry, name="shop.send", version=3)
    def send(n: int) -> None: ...

    for version, why in (
        ("1", "the version must be an integer from 1 on"),
        (3, "the task has version 3, which is not newer: write @task(version=4)"),
    ):
        with pytest.raises(TaskError, match=re.escape(f"task 'shop.send': upcast({version!r}): {why}")):
            send.upcast(version)(dict)  # type: ignore[arg-type]
    send.upcast(1)(dict)
    with pytest.raises(TaskError, match=r"builtins\.dict reads this version already: remove one of the two"):
        send.upcast(1)(dict)
    with pytest.raises(TaskError, match=r"no upcaster for version 2: decorate .* with @send.upcast\(2\)"):
        registry.resolve()
    send.upcast(2)(lambda args: None)  # type: ignore[arg-type,return-value]
    with pytest.raises(
        PayloadError, match=r"the upcaster of version 2, .*, must return the new arguments by name, not None"
    ):
        send.upcasts.current("{}", 2)
