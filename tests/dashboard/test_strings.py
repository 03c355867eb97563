"""The texts of the pages: each key that is asked for is there, and each that is there is asked for."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from string import Formatter
from typing import Any, get_args

import pytest
from jinja2 import nodes

import sa_jobqueue.dashboard
from sa_jobqueue.dashboard.app import DEEDS
from sa_jobqueue.dashboard.pages import PAGES
from sa_jobqueue.dashboard.refusals import What
from sa_jobqueue.dashboard.render import environment
from sa_jobqueue.dashboard.strings import TEXTS
from sa_jobqueue.models import Overlap
from sa_jobqueue.rules.schedules import Missed, ScheduleState

PACKAGE = Path(sa_jobqueue.dashboard.__path__[0])

#: What stands behind the beginning of a key that is put together, where the page does not say it itself.
ENDS: Mapping[str, tuple[str, ...]] = {
    "act.": tuple(DEEDS),
    "done.": (*DEEDS, *(f"{name}.{end}" for name, deed in DEEDS.items() for end in deed.apart)),
    "confirm.": tuple(name for name, deed in DEEDS.items() if deed.count is not None),
    "refusal.": get_args(What),
    "forbidden.": ("closed", "page", "action"),
    "schedules.state.": get_args(ScheduleState),
    "schedules.missed.": get_args(Missed),
    "schedules.overlap.": get_args(Overlap),
    "schedules.paused_by.": ("operator", "failures", "undeclared"),
    "workflow.on.": ("success", "failure", "end"),
}
#: Texts about a number that is never 1.
OF_MANY = frozenset((
    "audit.partly", "backfill.would", "errors.most", "overview.of_newest", "queues.cut", "queues.explained", "workflow.partly",
    "workflow.undrawn", "workflows.more", "workflows.partly",
))  # fmt: skip


class Asked:
    """The keys that the package asks for: whole ones, and the beginnings of those that are put together."""

    def __init__(self) -> None:
        self.keys, self.beginnings = set[str](), set[str]()
        for path in (PACKAGE / "templates").rglob("*.html"):
            for call, values in _calls(environment().parse(path.read_text()), {}):
                self._note(list(_keys(call.args[0], values)))
        for path in PACKAGE.rglob("*.py"):
            for call, within in _calls_of_code(ast.parse(path.read_text())):
                self._note(list(_keys_of_code(call.args[0], within)))

    def _note(self, found: list[tuple[str, bool]]) -> None:
        for key, is_whole in found:
            (self.keys if is_whole else self.beginnings).add(key)


def _calls(node: nodes.Node, values: Mapping[str, tuple[str, ...]]) -> Iterator[tuple[Any, Mapping[str, Any]]]:
    """The calls of t() below this node, with the values that the loops around give to names."""
    if isinstance(node, nodes.For) and isinstance(node.target, nodes.Name) and isinstance(node.iter, nodes.Tuple):
        values = {**values, node.target.name: tuple(str(one.as_const()) for one in node.iter.items)}
    if isinstance(node, nodes.Call) and isinstance(node.node, nodes.Name) and node.node.name == "t":
        yield node, values
    for child in node.iter_child_nodes():
        yield from _calls(child, values)


def _keys(node: nodes.Node, values: Mapping[str, tuple[str, ...]]) -> Iterator[tuple[str, bool]]:
    if isinstance(node, nodes.Const):
        yield str(node.value), True
    elif isinstance(node, nodes.CondExpr):
        yield from _keys(node.expr1, values)
        if node.expr2 is not None:
            yield from _keys(node.expr2, values)
    elif isinstance(node, nodes.Concat) and isinstance(node.nodes[0], nodes.Const):
        begin, rest = str(node.nodes[0].value), node.nodes[1:]
        if len(rest) == 1 and isinstance(rest[0], nodes.Name) and rest[0].name in values:
            yield from ((begin + one, True) for one in values[rest[0].name])
        else:
            yield begin, False
    else:
        raise AssertionError(f"the key of a text is put together in a way that this test cannot follow: {node}")


def _calls_of_code(node: ast.AST, within: ast.AST | None = None) -> Iterator[tuple[ast.Call, ast.AST | None]]:
    """The calls of text() below this node, with the function that each is in."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        within = node
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "text" and node.args:
        yield node, within
    for child in ast.iter_child_nodes(node):
        yield from _calls_of_code(child, within)


def _keys_of_code(node: ast.expr, within: ast.AST | None) -> Iterator[tuple[str, bool]]:
    if isinstance(node, ast.Constant):
        yield str(node.value), True
    elif isinstance(node, ast.IfExp):
        yield from _keys_of_code(node.body, within)
        yield from _keys_of_code(node.orelse, within)
    elif isinstance(node, ast.JoinedStr) and isinstance(node.values[0], ast.Constant):
        yield str(node.values[0].value), False
    elif isinstance(node, ast.Name) and within is not None:
        # A table in the same function says which.
        said = [one.value for one in ast.walk(within) if isinstance(one, ast.Constant) and isinstance(one.value, str)]
        keys = [one for one in said if re.fullmatch(r"[a-z_]+(\.[a-z_]+)+", one)]
        assert keys, ast.dump(node)
        yield from ((one, True) for one in keys)
    else:
        raise AssertionError(
            f"the key of a text is put together in a way that this test cannot follow: {ast.dump(node)}"
        )


@pytest.fixture(scope="module")
def asked() -> Asked:
    return Asked()


def test_each_text_that_is_asked_for_is_there(asked: Asked) -> None:
    """Also those whose key is put together."""
    wanted = asked.keys | {begin + end for begin in asked.beginnings for end in ENDS.get(begin, ())}
    assert sorted(wanted - TEXTS.keys()) == []
    assert [begin for begin in asked.beginnings if not any(key.startswith(begin) for key in TEXTS)] == []


def test_each_page_has_a_name() -> None:
    assert [page.name for page in PAGES if not TEXTS.get(f"nav.{page.name}")] == []


def test_each_text_that_is_there_is_asked_for(asked: Asked) -> None:
    def is_asked(key: str) -> bool:
        return key in asked.keys or any(
            key.startswith(begin) and (begin not in ENDS or key.removeprefix(begin) in ENDS[begin])
            for begin in asked.beginnings
        )

    assert [key for key in TEXTS if not is_asked(key)] == []


def test_a_text_is_one_that_can_be_filled_in() -> None:
    """With values by name, and without what a browser would take for markup."""
    wrong = {key: text for key, text in TEXTS.items() if not can_be_filled_in(text) or "<" in text}
    assert wrong == {}


def test_a_text_is_good_english_of_one_thing_too() -> None:
    """`{n} jobs` and `{n} jobs that wait` are not, if there may be one."""
    plural = re.compile(r"\{(n|groups)\} ([a-z]+ )?[a-z]+s\b|\{n\} of its|\{unit\} that (?!failed)")
    assert [key for key, text in TEXTS.items() if key not in OF_MANY and plural.search(text)] == []


def can_be_filled_in(text: str) -> bool:
    try:
        fields = [name for _, name, _, _ in Formatter().parse(text) if name is not None]
        filled = text.format(**dict.fromkeys(fields, "7"))
    except (ValueError, LookupError):
        return False
    return bool(filled.strip()) and all(re.fullmatch(r"[a-z_]+", name) for name in fields)
