"""Writes the results into the page, between its two markers; nothing else of it is touched."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import Any

from tests.benchmarks.peers.results import OURS, Row, figures, processes
from tests.support.pages import put_between

BEGIN = "<!-- figures of peers: written by `python -m tests.benchmarks.peers --write` -->"
END = "<!-- end of the figures of peers -->"


def write(page: Path, results: dict[str, Any]) -> None:
    """Put the results between the markers; a page without them is refused."""
    put_between(page, BEGIN, END, section(results))


def section(results: dict[str, Any]) -> str:
    """All that stands between the markers, as Markdown."""
    rows = [Row(**row) for row in results["rows"]]
    parts = [
        measured(results),
        table(
            ["measure", "ours, jobs/s", "reference, jobs/s", "ratio", "target", "met"],
            [
                [
                    figure.measure, f"{figure.ours:,.0f}", f"{figure.reference:,.0f}", f"{figure.ratio:.2f}",
                    f"≥ {figure.target:g}", "yes" if figure.met else "**no**",
                ]
                for figure in figures(rows)
            ],
        ),
        *(drains(rows, handler) for handler in ("async", "sync")),
        steps(rows),
        enqueueing(rows),
        "### Where another queue is faster\n\n" + "\n".join(f"- {line}" for line in losses(rows) or ["In none of these rows."]) + "\n",
        settings(rows),
    ]  # fmt: skip
    return "\n".join(parts)


def measured(results: dict[str, Any]) -> str:
    """When, and on what."""
    machine, brokers = results["machine"], results["brokers"]
    said = [
        f"Measured on {results['date']}: {machine['cores']} cores"
        + (f" ({machine['processor']})" if "processor" in machine else "")
        + (f", {machine['memory']} of memory" if "memory" in machine else "")
        + f", {machine['system']}, Python {machine['python']}."
    ]
    for name, title in (("postgresql", "PostgreSQL"), ("redis", "Redis")):
        if about := dict(brokers.get(name, {})):
            version = about.pop("version")
            said.append(f"{title} {version}: " + ", ".join(f"`{key}` {value}" for key, value in about.items()) + ".")
    if results["small"]:
        said.append("**A small run, only to see that everything runs: its figures mean nothing.**")
    return "\n".join(said) + "\n"


def drains(rows: Iterable[Row], handler: str) -> str:
    """Jobs per second of one kind of handler, the fastest first."""
    lines = []
    chosen = sorted((row for row in rows if row.handler == handler), key=lambda row: (row.peer, row.way, row.processes))
    for title, group in groupby(chosen, key=lambda row: row.title):
        of = {row.processes: row for row in group}
        cells = [
            f"{of[n].rate:,.0f} ({min(of[n].rates):,.0f} – {max(of[n].rates):,.0f})" if n in of else "" for n in (1, 2)
        ]
        lines.append(
            (max(row.rate for row in of.values()), [title, *cells, f"{max(row.jobs for row in of.values()):,}"])
        )
    lines.sort(key=lambda line: -line[0])
    head = ["", "1 process, jobs/s (lowest – highest)", "2 processes", "jobs in a drain"]
    return f"### Drain, {handler} no-op\n\n" + table(head, [cells for _, cells in lines])


def steps(rows: Iterable[Row]) -> str:
    """Jobs of ten durable steps per second, and their write-ahead log. Empty if no peer was measured."""
    lines = [
        [row.peer, processes(row.processes), f"{row.rate:,.0f} ({min(row.rates):,.0f} – {max(row.rates):,.0f})", f"{row.wal_a_job:,.0f}"]
        for row in sorted(rows, key=lambda row: (row.processes, -row.rate))
        if row.handler == "steps"
    ]  # fmt: skip
    head = ["", "processes", "jobs/s (lowest – highest)", "WAL of a job, bytes"]
    return "### Drain, jobs of ten durable steps\n\n" + table(head, lines) if lines else ""


def enqueueing(rows: Iterable[Row]) -> str:
    """Jobs per second of the bulk call, all drains of a peer together."""
    lines = []
    for peer, group in groupby(sorted(rows, key=lambda row: row.peer), key=lambda row: row.peer):
        of = list(group)
        lines.append((enqueue_rate(of), [peer, f"{enqueue_rate(of):,.0f}", of[0].bulk]))
    lines.sort(key=lambda line: -line[0])
    return "### Enqueueing in bulk, one client\n\n" + table(["", "jobs/s", "how"], [cells for _, cells in lines])


def losses(rows: list[Row]) -> list[str]:
    """Every row in which a peer is faster than ours, and every target that is missed."""
    found = [
        f"{figure.measure}: {figure.ratio:.2f} times, where we want {figure.target:g}."
        for figure in figures(rows)
        if not figure.met
    ]
    for row in rows:
        ours = [
            other
            for other in rows
            if other.peer == OURS and (other.handler, other.processes) == (row.handler, row.processes)
        ]
        if row.peer != OURS and ours and row.rate > max(other.rate for other in ours):
            found.append(f"{row.title} drains faster: {row.handler} no-op, {processes(row.processes)}.")
    own = [row for row in rows if row.peer == OURS]
    for peer in sorted({row.peer for row in rows} - {OURS}):
        of = [row for row in rows if row.peer == peer]
        if own and enqueue_rate(of) > enqueue_rate(own):
            found.append(f"{peer} enqueues faster in bulk.")
    return found


def enqueue_rate(rows: list[Row]) -> float:
    """The best median of a peer's rows."""
    return max(row.enqueue_rate for row in rows)


def settings(rows: Iterable[Row]) -> str:
    """Versions and settings of every way."""
    ways = {(row.peer, row.way): row for row in rows}
    body = [
        [f"{peer}, {way}", ", ".join(f"{package} {version}" for package, version in row.versions.items()), row.settings]
        for (peer, way), row in ways.items()
    ]
    return "### Versions and settings\n\n" + table(["", "versions", "settings"], body)


def table(head: list[str], body: Iterable[list[str]]) -> str:
    """A table in Markdown; a bar in a cell is kept a bar."""
    lines = [head, ["---"] * len(head), *body]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n" for cells in lines)
