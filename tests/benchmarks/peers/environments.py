"""A virtual environment for each peer, with the newest releases of what its runner's first lines ask for (PEP 723)."""

from __future__ import annotations

import platform
import re
import subprocess
import sys
import tomllib
import venv
from pathlib import Path
from typing import Any

from packaging.specifiers import SpecifierSet

RUNNERS = Path(__file__).parent / "runners"

_BLOCK = re.compile(r"^# /// script\n(?P<lines>(?:#.*\n)+?)# ///$", re.MULTILINE)


def requirements(runner: str) -> list[str]:
    """The packages in the runner's block of inline metadata; empty for ours, which has none."""
    return list(_metadata(runner).get("dependencies", []))


def too_old(runner: str, python: str = platform.python_version()) -> str:
    """The `requires-python` of the runner's block if this Python does not meet it, else an empty string."""
    wanted = str(_metadata(runner).get("requires-python", ""))
    return "" if SpecifierSet(wanted).contains(python, prereleases=True) else wanted


def _metadata(runner: str) -> dict[str, Any]:
    found = _BLOCK.search((RUNNERS / f"{runner}.py").read_text())
    if found is None:
        return {}
    return tomllib.loads("\n".join(line.removeprefix("#").removeprefix(" ") for line in found["lines"].splitlines()))


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
