"""Jobs with keys that only limit, for workers that are real processes: each run of a handler leaves a line at its start and one at its end.

`most_at_once(lines, killed)` says how many runs of each provider overlapped, from these lines. A handler notes its start after the claim and its
end before the end of its job is written, so no run has a permit for a shorter time than the lines say.
"""

from __future__ import annotations

import os
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from pathlib import Path

from sa_jobqueue import KeyLimits, Limits, Registry, task
from tests.support.killed import FOLDER, note

registry = Registry()
registry.queue("default", limits=Limits(per={"provider": KeyLimits(running=2), "region": KeyLimits(running=3)}))


@task(registry=registry, name="ask")
def ask(provider: str) -> None:
    """Hold the permit until the file "answers" is there."""
    note(f"start {provider} {os.getpid()}")
    while not (Path(os.environ[FOLDER]) / "answers").exists():
        time.sleep(0.01)
    note(f"end {provider} {os.getpid()}")


def most_at_once(lines: Iterable[str], killed: Collection[int] = ()) -> Counter[str]:
    """The largest number of runs at once by provider. Runs in the `killed` processes do not count: their ends have no lines."""
    now: defaultdict[str, int] = defaultdict(int)
    most: Counter[str] = Counter()
    for line in lines:
        what, provider, pid = line.split()
        if int(pid) not in killed:
            now[provider] += 1 if what == "start" else -1
            most[provider] = max(most[provider], now[provider])
    return most
