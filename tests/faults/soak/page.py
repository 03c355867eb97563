"""What the docs say of a soak: a picture of what grew and what did not, the figures, and the verdicts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.benchmarks.pictures import OTHER, OURS, STYLE, place, save
from tests.faults.soak.tasks import KINDS
from tests.support.pages import put_between

BEGIN = "<!-- soak: written by `python -m tests.faults.soak --write` -->"
END = "<!-- end of the soak -->"

#: A shorter run has not shown what the page says.
_LONG = 30.0
_MIB = 2**20


def write(page: Path, result: dict[str, Any]) -> None:
    """Draw the picture beside the page, and put the section between the page's markers."""
    picture = draw(result, page.parent / "pictures")
    put_between(page, BEGIN, END, section(result, f"{picture.parent.name}/{picture.name}"))


def draw(result: dict[str, Any], folder: Path) -> Path:
    """Sizes above, the workers' memory below, over the minutes."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    folder.mkdir(parents=True, exist_ok=True)
    samples = result["samples"]
    minutes = [sample["at"] / 60 for sample in samples]
    with mpl.rc_context(STYLE | {"lines.markersize": 3}):
        figure = Figure(figsize=(6.4, 5.4), layout="constrained")
        sizes, memory = figure.subplots(2, sharex=True)
        for what, style in (("heap", "-"), ("toast", "--"), ("indexes", ":")):
            title = {"heap": "table", "toast": "large arguments (TOAST)", "indexes": "indexes"}[what]
            values = [sample[what] / _MIB for sample in samples]
            sizes.plot(minutes, values, style, color=OTHER if what == "toast" else OURS, label=title)
        sizes.set_ylabel("MiB on disk")
        pids = list(samples[0]["memory"])
        for number, pid in enumerate(pids):
            values = [sample["memory"].get(pid, 0) / _MIB for sample in samples]
            color, style = (OURS, OTHER)[number % 2], ("-", "--", ":", "-.")[number // 2 % 4]
            memory.plot(minutes, values, style, color=color, label=f"worker process {number + 1}")
        memory.set_ylabel("MiB resident")
        memory.set_xlabel("minutes of load")
        for axes in (sizes, memory):
            axes.set_ylim(0, 1.35 * axes.dataLim.ymax)  # the legend above the lines
            axes.set_xlim(left=0)
            axes.legend(loc="upper right", ncols=3)
        return save(figure, folder / "soak.svg")


def section(result: dict[str, Any], picture: str) -> str:
    """What stands between the page's markers, as Markdown."""
    plan, last = result["plan"], result["samples"][-1]
    slowest = max(result["samples"], key=lambda sample: sample["slowness"])
    latest = max(result["samples"], key=lambda sample: sample["flush"])
    alt = "Sizes of the job table and memory of the workers over the minutes of the soak"
    parts = [
        (
            f"Capacity: {result['capacity']:,.0f} jobs/s. Load: {result['rate']:,.0f} jobs/s for {plan['minutes']:g} "
            f"minutes, {result['jobs']:,} jobs in all, with those by which the capacity was measured. "
            f"At the end of the load the table held about {last['rows']:,} rows."
        ),
        f"![{alt}]({picture})",
        _table(
            ["promise", "seen", "kept"],
            [
                [verdict["promise"], verdict["seen"], "yes" if verdict["kept"] else "**no**"]
                for verdict in result["verdicts"]
            ],
        ),
        (
            f"The machine itself: in minute {slowest['at'] / 60:.0f}, its slowest, the same computation took "
            f"{slowest['slowness']:.2f} times as much of the processor as while the capacity was measured. A page that was "
            f"written and flushed once a second was on the disk after {latest['flush'] * 1000:,.0f} ms at the latest, "
            f"in minute {latest['at'] / 60:.0f}."
        ),
        _table(["kind of job", "share"], [[kind.title, f"{kind.weight / _WEIGHTS:.1%}"] for kind in KINDS]),
        (
            f"*Seen on {result['date']}: {place(result)}, {plan['processes']} worker processes, "
            f"`--seed {plan['seed']}`.*"
        ),
    ]
    if plan["minutes"] < _LONG:
        parts.append(f"**A run of {plan['minutes']:g} minutes, only to see that everything runs.**")
    return "\n\n".join(parts)


_WEIGHTS = sum(kind.weight for kind in KINDS)


def _table(head: list[str], body: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *body]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |" for cells in lines)
