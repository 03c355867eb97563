"""The examples in the package's docstrings run, each module's in the names of that module."""

from __future__ import annotations

import doctest
import importlib
import inspect
import re
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from sybil.document import PythonDocStringDocument
from sybil.parsers.rest import DocTestParser

import sa_jobqueue
from sa_jobqueue.tasks.registry import default_registry
from tests.docs.commands import check_commands
from tests.support.failures import noted

PACKAGE = Path(sa_jobqueue.__path__[0])
SOURCES = {
    ".".join((PACKAGE.name, *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}
WITH_EXAMPLES = [name for name, path in SOURCES.items() if ">>>" in path.read_text()]


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_the_examples_of_a_module(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each `>>>` example in a docstring runs as it is written."""
    module = importlib.import_module(name)
    monkeypatch.setattr(default_registry, "_tasks", tasks := {})
    monkeypatch.setattr(default_registry, "get", tasks.get)
    document = PythonDocStringDocument.parse(
        str(SOURCES[name]),
        DocTestParser(doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE),
    )
    document.pop_evaluator(document.import_document)  # imported already, under its own name
    document.namespace.update(
        {one: getattr(module, one) for one in dir(module)}
    )  # those that are loaded on first use, too
    for example in document.examples():
        example.evaluate()


def test_the_other_examples_of_the_modules() -> None:
    """What is indented in a docstring and is not run is at least Python, or a command that is there."""
    failures: list[str] = []
    for name, path in SOURCES.items():
        for _, _, docstring in PythonDocStringDocument.extract_docstrings(path.read_text()):
            for block in indented(inspect.cleandoc(docstring)):
                with noted(failures, name):
                    check(block)
    assert not failures, "\n".join(failures)


def check(block: str) -> None:
    if "sa-jobqueue" in block:
        check_commands(block)
        return
    try:
        tomllib.loads(block) if block.startswith("[") else compile(block, "<docstring>", "exec")
    except (SyntaxError, tomllib.TOMLDecodeError) as error:
        raise AssertionError(f"{error}\n{block}") from None


def indented(text: str) -> Iterator[str]:
    """The indented paragraphs of a docstring that follow an empty line: examples, not Google's sections."""
    for found in re.finditer(r"(?<=\n\n)((?: {4}.*\n|\n)+)", text + "\n"):
        yield textwrap.dedent(found[1])
