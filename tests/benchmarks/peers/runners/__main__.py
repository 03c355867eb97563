"""Runs one runner, in its own virtual environment; the driver starts it: python runners COMMAND RUNNER …

describe RUNNER            say as JSON what it is, and its packages' versions
fill RUNNER WAY JOBS       make its tables, enqueue JOBS jobs in bulk, and say how many seconds the enqueueing took
work RUNNER WAY            import all, say "ready", wait for a line, then work until SIGTERM
"""

from __future__ import annotations

import importlib
import json
import sys
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version


def main() -> None:
    command, name, *rest = sys.argv[1:]
    runner = importlib.import_module(name)
    match command, rest:
        case "describe", []:
            versions = {package: installed(package) for package in runner.PEER.packages}
            print(json.dumps(asdict(runner.PEER) | {"versions": versions}))
        case "fill", [way, jobs]:
            print(json.dumps({"seconds": runner.fill(way, int(jobs))}))
        case "work", [way]:
            print("ready", flush=True)
            if sys.stdin.readline():  # the driver is still there
                runner.work(way)
        case _:
            sys.exit(__doc__)


def installed(package: str) -> str:
    """The version of a package; a working copy says its own."""
    try:
        return version(package)
    except PackageNotFoundError:
        return str(importlib.import_module(package).__version__)


if __name__ == "__main__":
    main()
