"""Whether the upcasters of a task read the arguments that rows may still have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic_core import to_json

from ..errors import PayloadError
from ..tasks.tasks import AnyTask


def check_upcasts(task: AnyTask, samples: Mapping[int, Iterable[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Run the upcasters of `task` over arguments of older versions, and check that the handler takes the results.

    `samples`: stored arguments as plain JSON, by version; each older version has at least one sample. Take them from rows: `Job.args`. The
    first parameters of a job that takes results of other jobs are no arguments, so such a row is no sample.

    Returns the arguments by name that the handler would get, one dict for each sample, in the order of `samples`. Mapped objects are references.
    Raises AssertionError where a sample cannot be read or a version has no sample, TaskError where an upcaster is missing.
    """
    __tracebackhide__ = True  # so that pytest shows the line of the test
    task.resolve()
    read = list[dict[str, Any]]()
    for version, rows in samples.items():
        for number, row in enumerate(list(rows)):
            try:
                args, kwargs = task.decode(task.upcasts.current(to_json(row).decode(), version))
            except PayloadError as error:
                raise AssertionError(f"sample {number} of version {version}: {error}") from error
            names = [*task.parameters.positional][: len(args)]
            read.append(dict(zip(names, args, strict=False)) | kwargs)
    older = range(1, task.version)
    if missing := [version for version in older if not list(samples.get(version, ()))]:
        raise AssertionError(
            f"task {task.name!r} has version {task.version}, and no sample of version {', '.join(map(str, missing))}"
        )
    return read
