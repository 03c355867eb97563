"""Runs a Markdown document as its reader would: its files written, its commands typed, its Python executed, in order.

What a block is, is seen by its language:

- `python`: executed in one namespace per document, which is the module `shop`; `await` may stand at the top level. A
  block of `>>>` lines is compared with what it shows, `...` standing for anything.
- A block of any language whose first line is a comment with a file's name (`# shop/tasks.py`) is that file: written,
  not executed.
- `console`: what follows `$ ` is run in the document's folder (a command of ours that needs no application, in this process); what follows a command is what it says, line for line,
  `...` standing for anything; the database is called "shop on localhost". A server (`sa-jobqueue work`, `uvicorn`) stays in the background until a line `^C`.
- `sql`: executed. `toml`, `ini`, `yaml`, `dockerfile`: read. `text`: for the eye.

Where a page has tabs (`:sync: sync` and `:sync: async`), its reader has chosen one: the blocks of the other are not read.

`<!-- not run: the reason -->` before a block says that it is only checked: that it can be parsed, and that the
commands and options of ours in it are there.
"""

from __future__ import annotations

import ast
import asyncio
import configparser
import contextlib
import doctest
import inspect
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
import tomllib
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from sqlalchemy import create_engine, text
from sybil import Document, Example, Region
from sybil.evaluators.doctest import DocTestRunner
from sybil.evaluators.python import pad
from sybil.parsers.markdown.lexers import FencedCodeBlockLexer
from typer.testing import CliRunner

from sa_jobqueue.cli.tree import app
from sa_jobqueue.util.urls import database_url
from tests.docs.commands import check_commands
from tests.support.commands import CLI, ROOT, environment
from tests.support.folders import server_folder
from tests.support.waiting import PATIENCE, wait_until

LANGUAGES = ("python", "console", "sql", "toml", "ini", "yaml", "dockerfile", "text")
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE

#: What would leave the document's folder: it needs a marker.
OUTSIDE = {"apt", "apt-get", "docker", "git", "nox", "pip", "sudo", "systemctl", "kubectl", "journalctl"}
EXPORT = "export SA_JOBQUEUE_DATABASE_URL="
#: What only looks, so that it may be asked again until a job has run.
LOOKING = re.compile(r"^(sa-jobqueue (list|show|stats|workers|check)\b|curl )")
#: What imports no application does the same in the test's process, and takes a tenth of the time.
ALONE = re.compile(
    r"^sa-jobqueue (migrate|list|show|why|workers|check|grants|retry|cancel|discard|prune|limits|pause|resume|stats|top|drain|doctor|embedded"
    r"|bench (drain|steady|enqueue)|workflow (list|show|cancel|retry|pause|resume)|schedule (list|next|pause|resume|run|backfill|remove))\b(?!.*--watch)[^|&;<>$`\\~*?]*$"
)
#: What stays in the background, and what it says when it is ready.
SERVERS = {"sa-jobqueue work": "serves", "uvicorn": "Uvicorn running on"}

#: The reader's database, where a command names it; the documents show the output of a reader whose database has that name.
_DATABASE = re.compile(r"^database: [^\s,]+ on [^\s,]+", re.MULTILINE)
_MARKER = re.compile(r"<!--\s*not run: (?P<reason>[^>]+?)\s*-->\s*\Z")
_TAB = re.compile(
    r"^(?P<fence>:{3,})\{tab-item\} [^\n]*\n:sync: (?P<key>\w+)\n.*?^(?P=fence)$", re.MULTILINE | re.DOTALL
)
_FILE = re.compile(r"(?:#|--|;) (?P<name>[\w./@-]+\.\w+)\n")


def parse(path: Path) -> Document:
    """The document, with an example for each of its blocks; the evaluators come from `Reader`."""
    return Document.parse(str(path), _blocks)


def _blocks(document: Document) -> Iterator[Region]:
    for region in FencedCodeBlockLexer(r"[^{\n]*")(document):
        region.parsed = region.lexemes["source"]
        region.evaluator = _unread
        yield region


def _unread(example: Example) -> None:
    raise AssertionError(f"{example.path}:{example.line}: no `Reader` was given this document")


def language(example: Example) -> str:
    return str(example.region.lexemes["language"]).strip()


def tabs(document: Document) -> list[str]:
    """The keys of the tabs that the page has, in the order in which they first stand there."""
    return list(dict.fromkeys(found["key"] for found in _TAB.finditer(document.text)))


def tab_of(example: Example) -> str | None:
    """The key of the tab in which the block stands, if it stands in one."""
    inside = (
        found["key"] for found in _TAB.finditer(example.document.text) if found.start() < example.start < found.end()
    )
    return next(inside, None)


def not_run(example: Example) -> str | None:
    """The reason why the block is not run, where a marker gives one."""
    found = _MARKER.search(example.document.text[: example.start])
    return found["reason"] if found else None


class _Unbuffered(CliRunner):
    """What a command writes on stdout and on stderr is in the order in which it was written."""

    @contextlib.contextmanager
    def isolation(self, *args: Any, **options: Any) -> Iterator[Any]:
        with super().isolation(*args, **options) as streams:
            for stream in (sys.stdout, sys.stderr):
                stream.reconfigure(write_through=True)  # type: ignore[union-attr]
            yield streams


@dataclass
class Background:
    """A server that the document has started."""

    process: subprocess.Popen[bytes]
    log: Path

    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)
        code = self.process.wait(PATIENCE)
        assert code in (0, 130, -signal.SIGINT), f"ended with {code}:\n{self.output()}"


@dataclass
class Reader:
    """Reads one document in `folder`, on the database at `url`; `shop` is the module in which its Python runs."""

    folder: Path
    url: str
    shop: ModuleType
    runner: asyncio.Runner
    port: int = 0
    background: list[Background] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.cwd = self.folder / "reader"
        self.cwd.mkdir()
        programs = self.folder / "programs"
        programs.mkdir()
        shim = programs / "sa-jobqueue"
        shim.write_text(f'#!/bin/sh\nexec {shlex.join(CLI)} "$@"\n')
        shim.chmod(0o755)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        path = os.pathsep.join([str(programs), str(Path(sys.executable).parent), os.environ["PATH"]])
        extra = {"PATH": path, "UVICORN_PORT": str(self.port), "PYTHONDONTWRITEBYTECODE": "1"}
        self.environment = environment(self.url, extra)

    def read(self, document: Document, tab: str | None = None) -> None:
        """Read it to its end; of its tabs, only those with this key."""
        document.namespace = self.shop.__dict__
        try:
            for example in document.examples():
                if tab_of(example) not in (None, tab):
                    continue
                example.region.evaluator = self._evaluate
                example.evaluate()
        finally:
            self.close()

    def close(self) -> None:
        """Stop the servers that the document has left running."""
        try:
            while self.background:
                self.background.pop().interrupt()
        finally:
            for left in self.background:
                left.process.kill()

    # ---- blocks

    def _evaluate(self, example: Example) -> str | None:
        kind, source = language(example), str(example.parsed)
        if kind not in LANGUAGES:
            return f"a block of {kind!r}: not one of {LANGUAGES}"
        check_commands(source)
        if not_run(example) is not None:
            return check(kind, source)
        if (found := _FILE.match(source)) is not None:
            return self._write(kind, found["name"], source)
        match kind:
            case "python" if source.startswith(">>>"):
                return self._compare(example, source)
            case "python":
                self._execute(pad(source, example.line + example.parsed.line_offset), example)
            case "console":
                self._type(source)
            case "sql":
                engine = create_engine(self.url)
                with engine.begin() as connection:
                    connection.execute(text(source.replace(":", r"\:")))
                engine.dispose()
            case _:
                return check(kind, source)
        return None

    def _write(self, kind: str, name: str, source: str) -> str | None:
        file = self.cwd / name
        assert self.folder / "reader" in file.resolve().parents, f"{name} would be outside of the reader's folder"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(source)
        return check(kind, source)

    def _execute(self, source: str, example: Example) -> None:
        code = compile(source, example.path, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        result = eval(code, example.namespace)
        if inspect.iscoroutine(result):
            self.runner.run(result)

    def _compare(self, example: Example, source: str) -> str | None:
        said: list[str] = []
        found = doctest.DocTestParser().get_doctest(source, {}, example.path, example.path, example.line)
        found.globs = example.namespace
        DocTestRunner(FLAGS).run(found, clear_globs=False, out=said.append)
        return "".join(said) or None

    # ---- commands

    def _type(self, source: str) -> None:
        """Run a `console` block."""
        for command, expected in transcript(source):
            if command == "^C":
                assert self.background, "^C, but nothing runs"
                stopped = self.background.pop()
                stopped.interrupt()
                self._expect(stopped, expected)
            elif (
                server := next((name for name in SERVERS if f"{command} ".startswith(f"{name} ")), None)
            ) and "--drain" not in command:
                started = self._start(command)
                self.background.append(started)
                ready = "worker process 1 started" if "--reload" in command else SERVERS[server]
                wait_until(partial(self._says, started, ready), message=f"{command} to be ready")
                self._expect(started, expected)
            elif command.startswith(EXPORT):
                self._export(command)
            elif expected and LOOKING.match(command):
                wait_until(partial(self._same, command, expected))
            else:
                self._same(command, expected)

    def _export(self, command: str) -> None:
        """The test's database takes the place of the reader's; where the line starts a server, one is started."""
        value = command.removeprefix(EXPORT)
        if "$(" in value:
            value = self._url_of_embedded_server(value)
        assert database_url(value).database == "shop"

    def _url_of_embedded_server(self, value: str) -> str:
        with server_folder() as folder:
            self.environment["SA_JOBQUEUE_EMBEDDED_DIR"] = str(folder)
            try:
                said, code = self._run(f"url={value} && echo $url")
                assert code == 0, said
                engine = create_engine(url := said.strip())
                with engine.connect() as connection:
                    assert connection.scalar(text("SELECT 1")) == 1
                engine.dispose()
            finally:
                self._same("sa-jobqueue embedded stop", "stopped\n")
                del self.environment["SA_JOBQUEUE_EMBEDDED_DIR"]
        return url

    def _start(self, command: str) -> Background:
        log = self.folder / f"background-{time.monotonic_ns()}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                ["bash", "-c", f"exec {command}"], cwd=self.cwd, env=self.environment,
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        return Background(process, log)

    @staticmethod
    def _says(started: Background, what: str) -> bool:
        if what in started.output():
            return True
        if (code := started.process.poll()) is not None:
            raise RuntimeError(f"ended with {code} and had not said {what!r}:\n{started.output()}")
        return False

    @staticmethod
    def _expect(server: Background, expected: str) -> None:
        """Each line that the document shows is said, in this order, sooner or later."""
        pattern = re.compile(".*".join(_as_pattern(line) for line in expected.splitlines()), re.DOTALL)

        def said() -> bool:
            assert pattern.search(server.output()), f"expected:\n{expected}\nsaid:\n{server.output()}"
            return True

        wait_until(said)

    def _same(self, command: str, expected: str) -> bool:
        """Whether the command says what the document shows; AssertionError if not, or if it fails."""
        said, code = self._curl(command) if command.startswith("curl ") else self._run(command)
        shown = f"$ {command}\nexit code {code}, said:\n{said}\nexpected:\n{expected}"
        assert code == 0 or "# exit code" in command, shown
        same = doctest.OutputChecker().check_output(expected, said, FLAGS)
        assert same or not expected, shown
        return True

    def _run(self, command: str) -> tuple[str, int]:
        said, code = self._invoke(command) if ALONE.match(command) else self._run_in_shell(command)
        return _DATABASE.sub("database: shop on localhost", said), code

    def _invoke(self, command: str) -> tuple[str, int]:
        """A command in this process, with the reader's environment and nothing else."""
        env: dict[str, str | None] = dict.fromkeys(os.environ)
        with contextlib.chdir(self.cwd):
            runner = _Unbuffered(env=env | self.environment)
            done = runner.invoke(app, shlex.split(command, comments=True)[1:], prog_name="sa-jobqueue")
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return done.output, done.exit_code

    def _run_in_shell(self, command: str) -> tuple[str, int]:
        words = [word for word in re.split(r"[\s;&|()$\"']+", command) if word]
        if found := OUTSIDE.intersection(words):
            raise AssertionError(f"{command!r} uses {found}: mark the block with <!-- not run: why -->")
        place = self.folder / "cwd"
        done = subprocess.run(
            ["bash", "-c", f"{command}\ncode=$?; pwd > {shlex.quote(str(place))}; exit $code"],
            cwd=self.cwd, env=self.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=120, check=False,
        )  # fmt: skip
        self.cwd = Path(place.read_text().strip())
        return done.stdout, done.returncode

    def _curl(self, command: str) -> tuple[str, int]:
        """`curl [-X METHOD] URL`, without curl, and at the port where the document's server is."""
        words = shlex.split(command)
        method = words[words.index("-X") + 1] if "-X" in words else "GET"
        url = words[-1].replace(":8000", f":{self.port}")
        with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=30) as answer:
            return answer.read().decode(), 0


def transcript(source: str) -> Iterator[tuple[str, str]]:
    """The commands of a `console` block, each with the output that is shown below it."""
    command: str | None = None
    shown: list[str] = []
    continues = False
    for line in source.splitlines():
        if continues and command is not None:
            command, continues = f"{command[:-1]} {line.strip()}", line.endswith("\\")
        elif line.startswith("$ ") or line == "^C":
            if command is not None:
                yield command, "".join(f"{one}\n" for one in shown)
            command, shown = line.removeprefix("$ "), []
            continues = line.endswith("\\")
        else:
            assert command is not None, f"a console block begins with '$ ', not {line!r}"
            shown.append(line)
    if command is not None:
        yield command, "".join(f"{one}\n" for one in shown)


def check(kind: str, source: str) -> str | None:
    """What is wrong with a block that is not run, or that is data."""
    match kind:
        case "python":
            compile(source, "<snippet>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        case "console":
            for command, _ in transcript(source):
                if command != "^C":
                    subprocess.run(["bash", "-n", "-c", command], check=True)
        case "toml":
            tomllib.loads(source)
        case "ini":
            configparser.RawConfigParser(strict=False).read_string(source)
        case "dockerfile":
            for line in source.splitlines():
                if line.startswith(("CMD", "ENTRYPOINT")):
                    json.loads(line.partition(" ")[2])
        case _:
            pass
    return None


def _as_pattern(line: str) -> str:
    return ".*".join(re.escape(part) for part in line.strip().split("..."))


def documents() -> list[Path]:
    """README, CONTRIBUTING and every page below docs/, as far as they are here."""
    top = [ROOT / name for name in ("README.md", "CONTRIBUTING.md")]
    pages = sorted(path for path in (ROOT / "docs").rglob("*.md") if "_build" not in path.parts)
    return [path for path in [*top, *pages] if path.exists()]


def file_in(path: Path, name: str) -> str:
    """The file `name` as the document shows it."""
    for example in parse(path).examples():
        found = _FILE.match(source := str(example.parsed))
        if found is not None and found["name"] == name:
            return source
    raise LookupError(f"{path} shows no file {name}")
