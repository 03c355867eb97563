"""What a child finds in the application that it imports: tasks by the place of their handlers, and what makes sessions."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import make_url

from sa_jobqueue.errors import SessionUnavailable, TaskError
from sa_jobqueue.models import Job
from sa_jobqueue.worker.children.loading import ChildSetup, Loaded, Maker

URL = "postgresql+psycopg://127.0.0.1:1/shop"
SHOP = f"""
from sqlalchemy.orm import Session, sessionmaker
from sa_jobqueue import Registry, Worker, task

class Own(Session):
    pass

registry = Registry(sessionmaker=sessionmaker(class_=Own))

@task(name="send", registry=registry)
def send() -> None: ...

@task(name="other", registry=registry)
def _hidden() -> None: ...

hidden = _hidden
del _hidden

plain = Registry()
task(name="plain", registry=plain)(lambda: None)

def make_worker() -> Worker:
    return Worker({URL!r}, {{"default": 1}}, registry=registry)
"""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The application, a module that can be imported."""
    (tmp_path / "loaded_shop.py").write_text(SHOP)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "argv", ["sa-jobqueue"])
    yield
    del sys.modules["loaded_shop"]


def loaded(maker: Maker = Maker.NONE, app: str = "loaded_shop", **options: Any) -> Loaded:
    values = {
        "url": URL,
        "translate": (),
        "pooled": False,
        "idle": None,
        "lease": 30.0,
        "max_rescues": 5,
        "log_jobs": False,
    }
    return Loaded(ChildSetup(maker=maker, job=ChildSetup.job_class(Job), app=(app,), **(values | options)))


@pytest.mark.usefixtures("shop")
@pytest.mark.parametrize("name", ["send", "other", "plain"])
def test_a_task_is_found_where_its_handler_is_declared(name: str) -> None:
    """By its name in the module, or else in any registry there: a decorator may have hidden it, and a lambda has no name."""
    place = {"send": "send", "other": "_hidden", "plain": "<lambda>"}[name]
    assert loaded().task(name, "loaded_shop", place).name == name


@pytest.mark.usefixtures("shop")
def test_a_task_that_is_not_there_is_named_with_what_to_do() -> None:
    """As of a handler that is declared within a function."""
    with pytest.raises(
        TaskError, match=r"'gone' is not known there after importing 'loaded_shop'; declare its handler at"
    ):
        loaded().task("gone", "loaded_shop", "make.<locals>.gone")


@pytest.mark.usefixtures("shop")
def test_sessions_are_made_as_the_worker_makes_them() -> None:
    """On an engine for its URL, or by the sessionmaker of the task's registry."""
    ours = loaded()
    task = ours.task("send", "loaded_shop", "send")
    engine = ours.sessions(task).engine
    assert engine is not None
    assert engine.url == make_url(URL)
    assert ours.sessions(task) is ours.sessions(task)
    theirs = loaded(Maker.REGISTRY, url=None)
    session, _ = theirs.sessions(theirs.task("send", "loaded_shop", "send")).open()
    assert type(session).__name__ == "Own"


@pytest.mark.usefixtures("shop")
@pytest.mark.parametrize(("maker", "url"), [(Maker.OWN, URL), (Maker.NONE, None)])
def test_sessions_that_cannot_be_made_here_are_refused(maker: Maker, url: str | None) -> None:
    """When a handler asks for one; others run."""
    there = loaded(maker, url=url)
    sessions = there.sessions(there.task("send", "loaded_shop", "send"))
    with pytest.raises(SessionUnavailable, match="give it a URL, or set Registry"):
        sessions.open()


@pytest.mark.usefixtures("shop")
def test_a_worker_of_the_applications_makes_the_sessions() -> None:
    """`--app` names the function that makes it. It is called once, whatever the setup says of URLs."""
    there = loaded(app="loaded_shop:make_worker", url=None)
    task = there.task("send", "loaded_shop", "send")
    session, _ = there.sessions(task).open()
    assert type(session).__name__ == "Own"
    assert there.sessions(task) is there.sessions(there.task("other", "loaded_shop", "_hidden"))
