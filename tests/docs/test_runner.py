"""What runs the snippets is not fooled: a document that is wrong fails, each kind of wrong in its own way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.docs.snippets import Reader, check, parse, transcript

Read = Callable[[str], None]


@pytest.fixture
def read(tmp_path: Path) -> Iterator[Read]:
    """Reads a text as a document; it needs no database."""
    with asyncio.Runner() as runner:
        reader = Reader(tmp_path, "postgresql+psycopg://nobody@127.0.0.1:1/nowhere", ModuleType("shop"), runner)

        def read(text: str) -> None:
            page = tmp_path / "page.md"
            page.write_text(text)
            reader.read(parse(page))

        yield read


@pytest.mark.parametrize(
    "block",
    [
        "```python\nassert 1 == 2\n```",
        "```python\nimport asyncio\nawait asyncio.sleep(0)\nassert False\n```",
        "```python\n>>> 1 + 1\n3\n```",
        "```python\n>>> 1 / 0\n0\n```",
        "```console\n$ false\n```",
        "```console\n$ echo yes\nno\n```",
        "```console\n$ echo 1 2 3\n1 ... 4\n```",
        "```console\n$ pip install something\n```",
        "```console\n$ sa-jobqueue no-such-command\n```",
        "```console\n$ sa-jobqueue list --no-such-option\n```",
        "```console\nyes\n```",
        "```console\n^C\n```",
        "```toml\nkey = \n```",
        "```python\n# ../outside.py\n```",
        "```python\n# broken.py\ndef\n```",
        "```basic\n10 GOTO 10\n```",
        "```\nno language\n```",
        "<!-- not run: it needs another world -->\n```console\n$ sa-jobqueue work --no-such-option\n```",
        "<!-- not run: it needs another world -->\n```console\n$ echo 'not closed\n```",
        "<!-- not run: it needs another world -->\n```ini\nExecStart=/bin/sa-jobqueue work --no-such-option\n```",
        '<!-- not run: it needs another world -->\n```dockerfile\nCMD ["sa-jobqueue", "work", "--no-such-option"]\n```',
    ],
)
def test_what_is_wrong_fails(read: Read, block: str) -> None:
    """A block that does not do what the page says fails the page."""
    with pytest.raises(Exception):  # noqa: B017  # each in its own way
        read(f"# A page\n\n{block}\n")


def test_what_is_right_passes(read: Read) -> None:
    """Blocks share one namespace and one folder, in the order of the page."""
    read(
        "```python\n# one.py\nprint('one', 1)\n```\n"
        "```console\n$ mkdir below && cd below\n$ python ../one.py\none ...\n```\n"
        "```python\nfirst = await __import__('asyncio').sleep(0, 7)\n```\n"
        "```python\n>>> first\n7\n```\n"
        "<!-- not run: it is not there -->\n```console\n$ docker run something\n```\n"
    )


def test_a_transcript_is_commands_with_what_they_say() -> None:
    """A backslash continues a command; output may have empty lines."""
    text = "$ one \\\n    two\nsaid\n\nmore\n$ three\n^C\n"
    assert list(transcript(text)) == [("one  two", "said\n\nmore\n"), ("three", ""), ("^C", "")]


def test_a_unit_is_read() -> None:
    """The unit of a systemd service may start other programs than ours."""
    assert check("ini", "[Service]\nExecStart=/bin/true\n") is None
