"""Writes the tables of metrics and alerts into the page of the reference, from what the package exposes and ships.

python -m tests.support.metrics_page        writes docs/reference/metrics.md again
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path

import yaml

from sa_jobqueue.metrics import names

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "metrics.md"


def tables() -> dict[str, str]:
    """Each table by the name of its place in the page."""
    return {
        "workers": _metrics(names.WORKER),
        "database": _metrics(names.DATABASE),
        "alerts": _alerts(),
    }


def text() -> str:
    """The page with the tables of now."""
    page = PAGE.read_text(encoding="utf-8")
    for name, table in tables().items():
        place = re.compile(rf"(?<=<!-- table: {name} -->\n\n)[\s\S]*?(?=\n<!-- end -->)")
        page = place.sub(lambda found, table=table: table, page)  # type: ignore[misc]
    return page


def _metrics(metrics: Iterable[names.Metric]) -> str:
    rows = [
        f"| `{one.name}` | {one.kind} | {', '.join(f'`{label}`' for label in one.labels) or '–'} | {one.help}. |"
        for one in metrics
    ]
    return "\n".join(["| Metric | Kind | Labels | What it says |", "|---|---|---|---|", *rows, ""])


def _alerts() -> str:
    rules = yaml.safe_load((files("sa_jobqueue") / "metrics" / "rules.yaml").read_text(encoding="utf-8"))
    rows = [
        f"| `{rule['alert']}` | {rule['labels']['severity']} | {_plain(rule['annotations']['summary'])}. |"
        for group in rules["groups"]
        for rule in group["rules"]
    ]
    return "\n".join(["| Alert | Severity | What it says |", "|---|---|---|", *rows, ""])


def _plain(summary: str) -> str:
    """A summary with the names of its labels in the place of their values."""
    return re.sub(r"\{\{ \$labels\.(\w+) \}\}", r"*\1*", summary)


if __name__ == "__main__":
    PAGE.write_text(text(), encoding="utf-8")
