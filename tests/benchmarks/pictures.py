"""Draws what `tests.benchmarks.curves` measured: three SVG files, and the section of the page that shows them.

    python -m tests.benchmarks.pictures curves.json

Needs matplotlib (`pip install --group bench`). The same JSON makes the same files, byte for byte.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.pages import put_between

DOCS = Path(__file__).parents[2] / "docs" / "explanation"
PAGE, FOLDER = DOCS / "measurements.md", DOCS / "pictures"

BEGIN = "<!-- pictures: written by `python -m tests.benchmarks.pictures` -->"
END = "<!-- end of the pictures -->"

#: The pictures have no background, so these colours must be readable on furo's white and on its near-black.
_TEXT, _GRID, OURS, OTHER = "#767676", "#9a9a9a", "#2f7fd6", "#d9762b"
STYLE: dict[str, Any] = {
    "svg.hashsalt": "sa_jobqueue",
    "svg.fonttype": "none",
    "font.size": 11,
    "text.color": _TEXT,
    "axes.labelcolor": _TEXT,
    "axes.edgecolor": _GRID,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": _TEXT,
    "ytick.color": _TEXT,
    "axes.grid": True,
    "grid.color": _GRID,
    "grid.alpha": 0.3,
    "lines.linewidth": 2,
    "lines.markersize": 5,
    "lines.marker": "o",
    "legend.frameon": False,
}


def throughput(axes: Any, points: list[dict[str, Any]]) -> None:
    """Jobs per second against processes, ours over the bare loop."""
    sizes = [one["processes"] for one in points]
    axes.fill_between(
        sizes, [one["lowest"] for one in points], [one["highest"] for one in points], color=OURS, alpha=0.15, linewidth=0
    )  # fmt: skip
    axes.plot(sizes, [one["jobs_per_second"] for one in points], color=OURS, label="worker, async no-op")
    raw = [one["raw_jobs_per_second"] for one in points]
    axes.plot(sizes, raw, color=OTHER, linestyle="--", label="bare SQL loop")
    axes.set_xlabel("processes")
    axes.set_ylabel("jobs per second")
    axes.set_xticks(sizes)
    axes.set_ylim(bottom=0)
    _thousands(axes.yaxis)


def latency(axes: Any, points: list[dict[str, Any]]) -> None:
    """Milliseconds from commit to start against the rate."""
    from matplotlib.ticker import LogLocator, NullLocator

    rates = [one["jobs_per_second"] for one in points]
    axes.plot(rates, [one["p99"] for one in points], color=OTHER, linestyle="--", label="p99")
    axes.plot(rates, [one["p50"] for one in points], color=OURS, label="p50")
    axes.set_xlabel("load: jobs per second")
    axes.set_ylabel("enqueue to start, ms")
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_xlim(left=0)
    _thousands(axes.xaxis)
    _thousands(axes.yaxis)


def claim(axes: Any, points: list[dict[str, Any]]) -> None:
    """Milliseconds of a claim against the jobs that are queued."""
    depths = [one["queued"] for one in points]
    axes.plot(depths, [one["p90"] for one in points], color=OTHER, linestyle="--", label="p90")
    axes.plot(depths, [one["p50"] for one in points], color=OURS, label="p50")
    axes.set_xlabel("jobs queued")
    axes.set_ylabel(f"claim of {points[0]['batch']} jobs, ms")
    axes.set_xscale("log")
    axes.set_ylim(0, 1.4 * max(one["p90"] for one in points))  # the legend above the lines
    _thousands(axes.xaxis)


DRAWN: dict[str, Callable[[Any, list[dict[str, Any]]], None]] = {
    one.__name__: one for one in (throughput, latency, claim)
}
#: The title of each, which is also its alternative text, and what it shows.
_TEXTS = {
    "throughput": (
        "Throughput against worker processes",
        (
            "A full queue of jobs that do nothing, drained by async handlers; beside it as many bare loops, which claim "
            "and finish with the same kind of SQL and run no handler. Medians; the band is from the lowest to the highest."
        ),
    ),
    "latency": (
        "Latency against load",
        (
            "From the return of the producer's commit to the start of the handler, with one worker process, up to the "
            "rate that one producer on the same machine can keep."
        ),
    ),
    "claim": (
        "Claim time against depth",
        "From the call to the rows in Python, without the commit.",
    ),
}


def _thousands(axis: Any) -> None:
    axis.set_major_formatter(lambda value, position: f"{value:,.10g}")


def draw(curves: dict[str, Any], folder: Path) -> list[Path]:
    """One SVG file for each curve that was measured. Returns their paths."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for name, curve in DRAWN.items():
        if not curves[name]:
            continue
        with mpl.rc_context(STYLE):
            figure = Figure(figsize=(6.4, 3.4), layout="constrained")
            axes = figure.add_subplot()
            curve(axes, curves[name])
            axes.legend()
            made.append(save(figure, folder / f"{name}.svg"))
    return made


def save(figure: Any, path: Path) -> Path:
    """Write an SVG file that is the same, byte for byte, for the same figure."""
    figure.savefig(path, transparent=True, metadata={"Date": None, "Creator": None})
    # matplotlib leaves blanks at the ends of lines.
    path.write_text("\n".join(line.rstrip() for line in path.read_text().splitlines()) + "\n")
    return path


def section(curves: dict[str, Any]) -> str:
    """What stands between the page's markers, as Markdown."""
    shown = [(name, *_TEXTS[name]) for name in DRAWN if curves[name]]
    parts = [f"![{title}](pictures/{name}.svg)\n\n**{title}.** {text}" for name, title, text in shown]
    return "\n\n".join([*parts, caption(curves)])


def caption(curves: dict[str, Any]) -> str:
    """When, and on what."""
    said = f"*Measured on {curves['date']}: {place(curves)}.*"
    if curves["small"]:
        said += "\n\n**A small run, only to see that everything runs: its figures mean nothing.**"
    return said


def place(measured: dict[str, Any]) -> str:
    """The machine, the Python and the server of a measurement."""
    machine = measured["machine"]
    about = [f"{machine['cores']} cores"]
    about += [f"{machine['processor']}"] if "processor" in machine else []
    about += [f"{machine['memory']} of memory"] if "memory" in machine else []
    settings = ", ".join(f"`{name}` {value}" for name, value in measured["settings"].items())
    return (
        f"{', '.join(about)}; {machine['system']}, Python {machine['python']} with {measured['event_loop']}, "
        f"PostgreSQL {measured['postgresql']} on the same machine ({settings})"
    )


def write(page: Path, curves: dict[str, Any]) -> None:
    """Put the section between the page's markers; a page without them is refused."""
    put_between(page, BEGIN, END, section(curves))


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.pictures",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("curves", type=Path, metavar="CURVES.json", help="what tests.benchmarks.curves has written")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the SVG files go")
    parser.add_argument("--page", type=Path, default=PAGE, help="the page that shows them")
    given = parser.parse_args()
    curves = json.loads(given.curves.read_text())
    draw(curves, given.folder)
    write(given.page, curves)


if __name__ == "__main__":
    main()
