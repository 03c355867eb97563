"""Statements in files of SQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


class SqlFiles:
    """The statements in the files `names`, next to the module `module_file`. An empty line ends a statement. Files are read on use."""

    def __init__(self, module_file: str, *names: str) -> None:
        self._paths = [Path(module_file).with_name(f"{name}.sql") for name in names]

    def __iter__(self) -> Iterator[str]:
        for path in self._paths:
            yield from path.read_text(encoding="utf-8").strip().removesuffix(";").split(";\n\n")
