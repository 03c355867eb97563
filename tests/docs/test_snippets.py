"""Every snippet in README and docs does what the text says, and every command in them is there."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from sqlalchemy import Engine, inspect
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.orm import Session

from sa_jobqueue import enqueue
from sa_jobqueue.tasks.middleware import installed
from sa_jobqueue.tasks.registry import default_registry
from tests.docs.commands import check_commands
from tests.docs.snippets import Reader, documents, file_in, language, parse, tabs
from tests.support.commands import ROOT
from tests.support.failures import noted

DOCUMENTS = documents()
#: Each page that has blocks, once for each of its tabs: a reader chooses one. Each change is tested with the first.
READINGS = [
    pytest.param(
        path,
        tab,
        id="-".join(filter(None, [str(path.relative_to(ROOT)), tab])),
        marks=[pytest.mark.nightly] if number or path.name == "measure.md" else [],  # that one measures
    )
    for path in DOCUMENTS
    if any((page := parse(path)).examples())
    for number, tab in enumerate(tabs(page) or [None])
]

TUTORIAL = ROOT / "docs" / "tutorial"
#: Pages that begin with an empty database: they migrate it themselves.
FROM_NOTHING = {"README.md", "tutorial", "migrations.md", "schema.md"}


@pytest.fixture
def reader(
    path: Path, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Reader]:
    """A reader in an empty folder with a database of their own; beyond the tutorial they have its shop."""
    from_nothing = bool(FROM_NOTHING.intersection(path.parts))
    url: str = request.getfixturevalue("empty_database_url" if from_nothing else "database_url")
    monkeypatch.setenv("SA_JOBQUEUE_DATABASE_URL", url)
    monkeypatch.setenv("HOOKS_KEYS", "a-key-of-the-shop")
    monkeypatch.setenv("JOB_KEY_2026", "NqvRyJHMzJXFDVvGTb8dTpzGTVnxWWxmkhGWJbMbtcs=")
    monkeypatch.setattr(default_registry, "_tasks", tasks := {})
    monkeypatch.setattr(default_registry, "get", tasks.get)
    monkeypatch.setattr(default_registry, "_queues", {})
    kept = "max_payload", "sessionmaker", "async_sessionmaker", "callbacks", "secrets", "start_hooks", "stop_hooks"
    for name in kept:
        monkeypatch.setattr(default_registry, name, getattr(default_registry, name))  # a page may change it
    for name in ("all", "around", "enqueueing"):
        monkeypatch.setattr(installed, name, ())  # it may install middleware, too
    module = ModuleType("shop")
    monkeypatch.setitem(sys.modules, "shop", module)
    with asyncio.Runner() as runner, contextlib.ExitStack() as stack:
        stack.callback(dispose_all, module, runner)
        made = Reader(tmp_path, url, module, runner)
        monkeypatch.chdir(made.cwd)
        monkeypatch.syspath_prepend(made.cwd)
        stack.callback(forget_modules, made.cwd)
        if ROOT / "docs" in path.parents and TUTORIAL not in path.parents:
            source = file_in(TUTORIAL / "script.md", "shop.py")
            (made.cwd / "shop.py").write_text(source)
            exec(compile(source, "shop.py", "exec", dont_inherit=True), vars(module))
            stack.callback(module.engine.dispose)
        if not from_nothing and (path.parent.name == "howto" or path == ROOT / "docs" / "index.md"):
            stack.enter_context(an_order_and_its_job(module))
            module.async_engine = create_async_engine(url)
            stack.callback(lambda engine: runner.run(engine.dispose()), module.async_engine)
        module.os = os
        yield made


def forget_modules(folder: Path) -> None:
    """Modules that a page has written and imported are not those of the next, nor are the classes that they map."""
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(f"{folder}/"):
            del sys.modules[name]
            for one in vars(module).values():
                if getattr(one, "__module__", None) == name and (mapper := inspect(one, raiseerr=False)) is not None:
                    mapper.registry.metadata.clear()
                    mapper.registry.dispose()


def dispose_all(module: ModuleType, runner: asyncio.Runner) -> None:
    """Close what a page's own engines have opened."""
    for one in vars(module).values():
        if isinstance(one, Engine):
            one.dispose()
        elif isinstance(one, AsyncEngine):
            runner.run(one.dispose())


@contextlib.contextmanager
def an_order_and_its_job(shop: ModuleType) -> Iterator[None]:
    """What the how-to pages speak of: an open `session`, an `order` and the `job` that is to send its receipt."""
    shop.Base.metadata.create_all(shop.engine)
    with Session(shop.engine, expire_on_commit=False) as session:
        shop.order = shop.Order(total=42)
        session.add(shop.order)
        session.flush()
        shop.job = enqueue(shop.send_receipt, shop.order.id)
        session.add(shop.job)
        session.commit()
        shop.session = session
        yield


@pytest.mark.parametrize(("path", "tab"), READINGS)
def test_a_document_does_what_it_says(path: Path, tab: str | None, reader: Reader) -> None:
    """Its files, commands, Python and SQL work in the order in which a reader meets them."""
    reader.read(parse(path), tab)


def test_every_tab_is_read() -> None:
    """Each names its key, so that a reader who chose it is among the readings above."""
    wrong = [
        path
        for path in DOCUMENTS
        if (text := path.read_text()).count("{tab-item}")
        != len(re.findall(r"\{tab-item\} [^\n]*\n:sync: (?:sync|async)\n", text))
    ]
    assert not wrong


def test_the_commands_in_a_text_are_there() -> None:
    """Also those in the middle of a sentence: each subcommand and option of `sa-jobqueue` exists."""
    failures: list[str] = []
    for path in DOCUMENTS:
        for mention in re.findall(r"`(sa-jobqueue [^`]+)`", path.read_text()):
            with noted(failures, path):
                check_commands(mention.replace("\n", " "))
    assert not failures, "\n".join(failures)


def test_every_block_says_its_language() -> None:
    """No test would run a block without a language, or an indented one."""
    wrong = [
        path
        for path in DOCUMENTS
        if re.search(r"^```\s*\n(?!\s*$)(?=[^`])[\s\S]", _without_closed(path.read_text()), re.MULTILINE)
        or not all(language(example) for example in parse(path).examples())
    ]
    assert not wrong


def _without_closed(text: str) -> str:
    """The text without its blocks that name a language or directive."""
    return re.sub(r"^```+[^\s`][^\n]*\n.*?^```+\s*$", "", text, flags=re.MULTILINE | re.DOTALL)
