"""The long runs: each fault alone, then all of them at random.

python -m tests.faults --seed 7 --faults-seconds 600 --json seen.json --write docs/explanation/faults.md
python -m tests.faults --from seen.json --write docs/explanation/faults.md
"""

from __future__ import annotations

import argparse
import json
import secrets
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.faults.faults import FAULTS, PROMISE, Fault, at_random, at_random_under_a_snapshot
from tests.faults.scene import LEASE, PROCESSES, Observed, Scene
from tests.support.pages import put_between

MEMORY = 256 * 2**20
"""Bytes that no worker may have resident."""
#: The mixes, after each fault alone: by what they are called.
MIXES: dict[str, Callable[..., None]] = {
    "all at random": at_random,
    "all at random under one snapshot": at_random_under_a_snapshot,
}
BEGIN, END = "<!-- faults: written by `python -m tests.faults --write` -->", "<!-- end of the faults -->"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, say what was seen, and return 1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--faults-seconds", type=float, default=600, help="how long faults come at random, in each mix")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6), help="of everything that is random")
    parser.add_argument("--pg", type=int, help="the server's version, if it is not to be the newest embedded one")
    parser.add_argument("--only", default="", help="the faults and mixes whose name has this in it")
    parser.add_argument("--short", action="store_true", help="let each fault alone last as long as in CI")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was seen")
    parser.add_argument("--from", type=Path, metavar="FILE", dest="source", help="run nothing, read what was seen")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the table into this page")
    given = parser.parse_args(arguments)
    if given.source is not None:
        seen = json.loads(given.source.read_text())
    else:
        print(f"seed {given.seed}", flush=True)
        seen = run(given.seed, given.faults_seconds, only=given.only, short=given.short, pg=given.pg)
    if given.json is not None:
        given.json.write_text(json.dumps(seen, indent=1))
    print(markdown(seen))
    print("\n".join(seen["broken"]) or "no promise was broken")
    if given.write is not None:
        put_between(given.write, BEGIN, END, markdown(seen))
    return 1 if seen["broken"] else 0


def run(seed: int, seconds: float, *, only: str = "", short: bool = False, pg: int | None = None) -> dict[str, Any]:
    """Let everything happen in one scene."""
    seen: list[Observed] = []
    begun = time.monotonic()
    with Scene(seed=seed, pg=pg) as scene:

        def note(observed: Observed) -> None:
            seen.append(observed)
            print(f"{time.monotonic() - begun:6.1f} s  {line(asdict(observed))}", flush=True)
            print("".join(f"          {finding}\n" for finding in observed.findings), end="", flush=True)

        for fault in FAULTS.values():
            if only not in fault.name:
                continue
            if missing := fault.needs():
                print(f"not run: {fault.name}: {missing}")
                continue
            note(scene.suffer(fault.name, lambda fault=fault: _act(scene, fault, short)))  # type: ignore[misc]
        for name, mix in MIXES.items():
            if only not in name:
                continue
            note(scene.suffer(name, lambda mix=mix: mix(scene, seconds, say=print), patience=120))  # type: ignore[misc]
        left = scene.finish()
        print(f"{len(scene.producer.plans)} workflows", flush=True)
        version = scene.version
    broken = [f"{observed.fault}: {what}" for observed in seen for what in promises_broken(observed)]
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "seed": seed,
        "seconds": seconds,
        "server": version,
        "lease": LEASE,
        "seen": [asdict(observed) for observed in seen],
        "broken": broken + left,
    }


def _act(scene: Scene, fault: Fault, short: bool) -> float | None:
    return fault.act(scene, fault.short if short else fault.long)


def promises_broken(seen: Observed) -> list[str]:
    """What was not as promised."""
    fault = FAULTS.get(seen.fault)
    back_within, rescued_within = (fault.back_within, fault.rescued_within) if fault else (PROMISE, None)
    overdue_within = fault.overdue_within if fault else None
    broken = list(seen.findings)
    if seen.finished != seen.committed:
        broken.append(f"{seen.committed - seen.finished} of {seen.committed} jobs came to no end")
    if seen.back is None or seen.back > back_within:
        broken.append(f"the throughput was back after {seen.back} s, not {back_within} s")
    if seen.ticking is None or seen.ticking > back_within:
        broken.append(f"ticks of schedules were late for {seen.ticking} s, not {back_within} s")
    if len(seen.workers) != PROCESSES:
        broken.append(f"not whole: {len(seen.workers)} of {PROCESSES} workers were there")
    for worker in seen.workers:
        within = back_within + (LEASE if worker.new else 0)
        if worker.after is None or worker.after > within:
            broken.append(f"silent worker {worker.pid}: it claimed after {worker.after} s, not {within} s")
    if rescued_within is not None and seen.rescued_in is not None and seen.rescued_in > rescued_within:
        broken.append(f"jobs of a dead worker were back after {seen.rescued_in} s, not {rescued_within} s")
    if overdue_within is not None and seen.overdue > overdue_within:
        broken.append(f"a job was rescued {seen.overdue} s after its lease had run out, not {overdue_within} s")
    if seen.memory > MEMORY:
        broken.append(f"a worker had {seen.memory:,} bytes resident")
    return broken


def line(seen: dict[str, Any]) -> str:
    """One fault in one line."""
    back = "never" if seen["back"] is None else f"{seen['back']:.1f} s"
    return (
        f"{seen['fault']}: {seen['finished']} of {seen['committed']} jobs, lasted {seen['lasted']:.1f} s, back after {back}, "
        f"longest gap {seen['gap']:.1f} s, {seen['rescued']} rescued, {seen['duplicates']} duplicates, "
        f"{seen['memory'] / 2**20:.0f} MiB"
    )


def markdown(run: dict[str, Any]) -> str:
    """What the docs say of a run."""
    rows = [
        f"| {seen['fault']} | {seen['lasted']:.1f} s | {seen['finished']:,} of {seen['committed']:,} "
        f"| {'never' if seen['back'] is None else format(seen['back'], '.1f') + ' s'} | {seen['gap']:.1f} s "
        f"| {seen['rescued']:,} | {seen['duplicates']:,} |"
        for seen in run["seen"]
    ]
    asked = f"--seed {run['seed']} --faults-seconds {run['seconds']:g}"
    verdict = "and no promise was broken" if not run["broken"] else "and not as promised:"
    head = [
        f"Seen on {run['date']}, PostgreSQL {run['server']}, `{asked}`, {verdict}",
        *[f"- {what}" for what in run["broken"]],
        "",
        "| fault | lasted | jobs ended | back after | longest gap | rescued | done again |",
        "|---|---|---|---|---|---|---|",
    ]
    return "\n".join([*head, *rows])


if __name__ == "__main__":
    sys.exit(main())
