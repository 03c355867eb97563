"""A measure's result: one line of ours, a reference, their ratio, and whether the target is met."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Figure:
    """One line. `reference` and `ratio` are None where the target is an absolute one."""

    measure: str
    ours: float
    unit: str
    reference: float | None = None
    against: str = ""
    ratio: float | None = None
    at_least: float | None = None
    at_most: float | None = None

    @property
    def judged(self) -> float:
        return self.ours if self.ratio is None else self.ratio

    @property
    def target(self) -> str:
        bounds = [(self.at_least, "≥"), (self.at_most, "≤")]
        unit = f" {self.unit}" if self.ratio is None else ""
        return " and ".join(f"{sign} {bound:g}{unit}" for bound, sign in bounds if bound is not None)

    @property
    def met(self) -> bool | None:
        """None: there is no target."""
        if self.at_least is None and self.at_most is None:
            return None
        return (self.at_least is None or self.judged >= self.at_least) and (
            self.at_most is None or self.judged <= self.at_most
        )


def compared(
    measure: str, pairs: Iterable[tuple[float, ...]], unit: str, against: str, *,
    at_least: float | None = None, at_most: float | None = None,
) -> Figure:  # fmt: skip
    """A figure of pairs (ours, reference), each of one repetition: medians of both, and the median of the ratios."""
    both = list(pairs)
    return Figure(
        measure,
        statistics.median(ours for ours, _ in both),
        unit,
        statistics.median(reference for _, reference in both),
        against,
        statistics.median(ours / reference for ours, reference in both),
        at_least,
        at_most,
    )


def interleaved(repeat: int, *runs: Callable[[], float]) -> list[tuple[float, ...]]:
    """Measure in turn, A B, B A, A B …, so that drift and the second place affect all equally. A tuple per repetition."""
    found = []
    for number in range(repeat):
        if number % 2 == 0:
            found.append(tuple(run() for run in runs))
        else:
            found.append(tuple(run() for run in reversed(runs))[::-1])
    return found


def print_figures(figures: Iterable[Figure], title: str) -> None:
    """A table of all."""
    table = Table("measure", title=title)
    for name in ("ours", "reference", "ratio", "target", "met"):
        table.add_column(name, justify="right")
    for one in figures:
        reference = "" if one.reference is None else f"{number(one.reference)} {one.unit} ({one.against})"
        table.add_row(
            one.measure,
            f"{number(one.ours)} {one.unit}",
            reference,
            "" if one.ratio is None else f"{one.ratio:.3f}",
            one.target,
            {True: "yes", False: "no", None: ""}[one.met],
        )
    Console(width=None if Console().is_terminal else 200).print(table)


def line(one: Figure) -> str:
    """One figure as it comes."""
    reference = "" if one.reference is None else f" : {number(one.reference)} ({one.against}) = {one.ratio:.3f}"
    met = {True: ", met", False: ", NOT met", None: ""}[one.met]
    return f"{one.measure}: {number(one.ours)} {one.unit}{reference}; target {one.target or 'none'}{met}"


def write_json(figures: Iterable[Figure], path: Path, about: dict[str, str]) -> None:
    """All figures, with what they were measured on."""
    rows = [{**asdict(one), "target": one.target, "met": one.met} for one in figures]
    path.write_text(json.dumps({"about": about, "figures": rows}, indent=2, ensure_ascii=False) + "\n")


def number(value: float) -> str:
    """With three digits that say something."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:,.2f}" if abs(value) >= 1 else f"{value:.3f}"
