"""The measures as tables of a page: one per server that they were measured on.

python -m tests.benchmarks.page figures-18.json figures-15.json
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tests.support.pages import put_between

from .report import Figure, number

BEGIN = "<!-- measures: written by `python -m tests.benchmarks.page` -->"
END = "<!-- end of the measures -->"
PAGE = Path("docs/explanation/measurements.md")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.page", description="Write measures into a page.")
    parser.add_argument(
        "files", nargs="+", type=Path, metavar="FILE", help="from `python -m tests.benchmarks --json FILE`"
    )
    parser.add_argument("--write", type=Path, default=PAGE, metavar="PAGE", help=f"the page ({PAGE})")
    given = parser.parse_args()
    put_between(given.write, BEGIN, END, section([json.loads(file.read_text()) for file in given.files]))


def section(runs: Sequence[dict[str, Any]]) -> str:
    """What stands between the page's markers, as Markdown: a table per run."""
    return "\n\n".join(_table(run) for run in runs)


def _table(run: dict[str, Any]) -> str:
    about = dict(run["about"])
    when, version = about.pop("date", ""), about.pop("postgresql")
    settings = ", ".join(f"{name} {value}" for name, value in about.items())
    lines = [
        f"**PostgreSQL {version}**, measured on {when}: {settings}.",
        "",
        "| measure | ours | against | ratio | target | met |",
        "|---|---:|---:|---:|---:|---|",
        *_rows(run["figures"]),
    ]
    return "\n".join(lines)


def _rows(figures: Iterable[dict[str, Any]]) -> Iterable[str]:
    for found in figures:
        figure = Figure(**{name: found[name] for name in Figure.__dataclass_fields__})
        reference = "" if figure.reference is None else f"{number(figure.reference)} ({figure.against})"
        ratio = "" if figure.ratio is None else f"{figure.ratio:.2f}"
        met = {True: "yes", False: "**no**", None: ""}[figure.met]
        cells = [figure.measure, f"{number(figure.ours)} {figure.unit}", reference, ratio, figure.target, met]
        yield f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
