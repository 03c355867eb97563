"""What an import loads, and that each public name is there whatever was imported before."""

from __future__ import annotations

import json
import subprocess
import sys
from types import ModuleType
from typing import Any

import pytest

import sa_jobqueue
from sa_jobqueue import statements
from tests.support.nightly import nightly

#: What applications import to enqueue.
PRODUCER = "from sa_jobqueue import JobContext, enqueue, task"

PACKAGES = {"sa_jobqueue": sa_jobqueue, "sa_jobqueue.statements": statements}

#: Imports each given statement in a process of its own, forked from one that has only what the package itself imports.
EACH_ALONE = """
import gc, json, os, sys
gc.disable()
import pydantic, sqlalchemy.dialects.postgresql, sqlalchemy.ext.asyncio, sqlalchemy.orm
for statement in json.load(sys.stdin):
    if (child := os.fork()) == 0:
        try:
            exec(statement)
            os._exit(0)
        except BaseException as error:
            print(f"{statement}: {error!r}", flush=True)
            os._exit(1)
    os.waitpid(child, 0)
"""

#: Imports every module of the package, then says which kind of thing each public name is.
AFTER_ALL_OTHERS = """
import importlib, json, pkgutil, sys
import sa_jobqueue
for module in pkgutil.walk_packages(sa_jobqueue.__path__, "sa_jobqueue."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
print(json.dumps({f"{package}.{name}": type(getattr(importlib.import_module(package), name)).__name__
                  for package, names in json.load(sys.stdin).items() for name in names}))
"""


def python(program: str, given: Any = None) -> str:
    """What `program` prints in a fresh interpreter that gets `given` as JSON."""
    run = subprocess.run(
        [sys.executable, "-c", program], input=json.dumps(given), text=True, capture_output=True, check=True
    )
    return run.stdout


def test_a_program_that_only_enqueues_loads_no_worker() -> None:
    """`from sa_jobqueue import enqueue` loads at most 80 of our modules, and none that only workers and commands need."""
    loaded = json.loads(python(f"import json, sys\n{PRODUCER}\nprint(json.dumps([*sys.modules]))"))
    ours = {name for name in loaded if name.partition(".")[0] == "sa_jobqueue"}
    assert not {name for name in ours if name.split(".")[1:2] in (["worker"], ["migrations"], ["cli"], ["store"])}
    assert len(ours) <= 80
    assert not {"alembic", "typer", "rich", "psycopg"} & {name.partition(".")[0] for name in loaded}


def alone(every: bool) -> list[str]:
    """An import for each public name; without `every` for one name of each module, and of `sa_jobqueue` only."""
    names = {}
    for package, module in PACKAGES.items() if every else [("sa_jobqueue", sa_jobqueue)]:
        for name in module.__all__:
            home = getattr(getattr(module, name), "__module__", name)
            names[f"{package}.{name}" if every else home] = f"from {package} import {name}"
    return [*names.values()]


@pytest.mark.parametrize("every", [False, *nightly(True)], ids=["of_each_module", "every"])
def test_a_public_name_can_be_the_first_import(every: bool) -> None:
    """A public name is there in a process that has imported nothing else of ours."""
    assert python(EACH_ALONE, alone(every)) == ""


def test_a_public_name_is_the_same_whatever_was_imported_before() -> None:
    """A function that shares its name with a module, as `enqueue` once did, would be the module after other imports."""
    names = {package: module.__all__ for package, module in PACKAGES.items()}
    kinds = json.loads(python(AFTER_ALL_OTHERS, names))
    here = {
        f"{package}.{name}": type(getattr(PACKAGES[package], name)).__name__
        for package in names
        for name in names[package]
    }
    assert kinds == here
    assert {name for name, kind in kinds.items() if kind == ModuleType.__name__} == {
        "sa_jobqueue.errors",
        "sa_jobqueue.statements",
    }


@pytest.mark.parametrize("package", PACKAGES)
def test_public_names_are_listed_and_others_refused(package: str) -> None:
    """`dir()` has each public name before its first use, and a misspelt name is an AttributeError that repeats it."""
    assert (
        json.loads(
            python(f"import json, {package} as found; print(json.dumps(sorted(set(found.__all__) - set(dir(found)))))")
        )
        == []
    )
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'enqeue'"):
        PACKAGES[package].enqeue  # noqa: B018
