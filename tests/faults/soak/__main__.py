"""The soak: half an hour of mixed load, at two thirds of what this machine can do; what grows, what waits, what is lost.

python -m tests.faults.soak --json soak.json                                     # about 37 minutes
python -m tests.faults.soak --from soak.json --write docs/explanation/faults.md
"""

from __future__ import annotations

import argparse
import json
import secrets
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.faults.soak.page import write
from tests.faults.soak.run import Plan, Soak, table
from tests.faults.soak.verdicts import Verdict


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, say what was seen, and return 1 if a promise was broken."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults.soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--minutes", type=float, default=30, help="how long the load lasts (30; below 10 sizes still grow)"
    )
    parser.add_argument("--processes", type=int, default=2, help="worker processes (2)")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6), help="of everything that is random")
    parser.add_argument("--every", type=float, default=60, metavar="SECONDS", help="between two samples (60)")
    parser.add_argument("--capacity-seconds", type=float, default=75, help="how long the capacity is measured (75)")
    parser.add_argument(
        "--archive", action="store_true", help="move finished jobs to the archive, instead of deleting them"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was seen")
    parser.add_argument("--from", type=Path, metavar="FILE", dest="source", help="run nothing, read what was seen")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="draw the picture, and put it into this page")
    given = parser.parse_args(arguments)
    if given.source is not None:
        result = json.loads(given.source.read_text())
    else:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))  # the server and the workers end too
        print(f"seed {given.seed}", flush=True)
        plan = Plan(
            minutes=given.minutes, processes=given.processes, seed=given.seed, every=given.every,
            measured=given.capacity_seconds, archive=given.archive,
        )  # fmt: skip
        result = Soak(plan).run()
    verdicts = [Verdict(**verdict) for verdict in result["verdicts"]]
    if given.json is not None:
        given.json.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    if given.write is not None:
        write(given.write, result)
    print(table(verdicts))
    for found in [*result["miscounts"], *result["complaints"]][:20]:
        print(found)
    return 0 if all(verdict.kept for verdict in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
