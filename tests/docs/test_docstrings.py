"""The examples in the package's docstrings run, each module's in the names of that module."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
import re
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from sybil.document import PythonDocStringDocument
from sybil.parsers.rest import DocTestParser

import sa_jobqueue
from sa_jobqueue.tasks import default_registry
from tests.docs.commands import check_commands

MODULES = ["sa_jobqueue"] + [
    one.name for one in pkgutil.walk_packages(sa_jobqueue.__path__, "sa_jobqueue.") if not one.name.endswith("__main__")
]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each `>>>` example in a docstring runs as it is written."""
    module = importlib.import_module(name)
    monkeypatch.setattr(default_registry, "_tasks", tasks := {})
    monkeypatch.setattr(default_registry, "get", tasks.get)
    assert module.__file__ is not None
    document = PythonDocStringDocument.parse(
        str(Path(module.__file__)),
        DocTestParser(doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE),
    )
    document.pop_evaluator(document.import_document)  # imported already, under its own name
    document.namespace.update(
        {one: getattr(module, one) for one in dir(module)}
    )  # those that are loaded on first use, too
    for example in document.examples():
        example.evaluate()


@pytest.mark.parametrize("name", MODULES)
def test_the_other_examples_of_a_module(name: str) -> None:
    """What is indented in a docstring and is not run is at least Python, or a command that is there."""
    source = Path(str(importlib.import_module(name).__file__)).read_text()
    for _, _, docstring in PythonDocStringDocument.extract_docstrings(source):
        for block in indented(inspect.cleandoc(docstring)):
            if "sa-jobqueue" in block:
                check_commands(block)
            elif block.startswith("["):
                tomllib.loads(block)
            else:
                compile(block, name, "exec")


def indented(text: str) -> Iterator[str]:
    """The indented paragraphs of a docstring that follow an empty line: examples, not Google's sections."""
    for found in re.finditer(r"(?<=\n\n)((?: {4}.*\n|\n)+)", text + "\n"):
        yield textwrap.dedent(found[1])
