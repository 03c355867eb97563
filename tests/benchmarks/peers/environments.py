"""A virtual environment for each peer, with the newest releases of what its runner's first lines ask for (PEP 723)."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

RUNNERS = Path(__file__).parent / "runners"

_BLOCK = re.compile(r"^# /// script\n(?P<lines>(?:#.*\n)+?)# ///$", re.MULTILINE)


def requirements(runner: str) -> list[str]:
    """What the runner's block of inline metadata asks for; empty for ours, which has none."""
    found = _BLOCK.search((RUNNERS / f"{runner}.py").read_text())
    if found is None:
        return []
    text = "\n".join(line.removeprefix("#").removeprefix(" ") for line in found["lines"].splitlines())
    return list(tomllib.loads(text)["dependencies"])


def interpreter(runner: str, environments: Path, *, install: bool = True) -> str:
    """The Python that runs it: this one for ours, else the one of its environment, made or brought up to date first."""
    wanted = requirements(runner)
    if not wanted:
        return sys.executable
    folder = environments / runner
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True, clear=True)
        install = True
    if install:
        pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        subprocess.run([*pip, "--upgrade", "--upgrade-strategy=eager", *wanted], check=True)
    return str(python)
