"""Versions of a task's arguments: upcasters, functions of the application, turn old stored arguments into the current arguments.

>>> upcasts = Upcasts("shop.send", 2, Sealing(("shop.send",), lambda: None))
>>> upcasts.add(1, lambda args: {"order_id": args["order"]})
>>> upcasts.current('{"order": 7}', 1)
'{"order_id":7}'
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from pydantic_core import to_json

from ..arguments.secrets import Sealing
from ..arguments.storable import encode_plain, load, shown
from ..errors import PayloadError, TaskError
from ..rules.lifecycle import Claimed, extra
from .options import MAX_VERSION

#: Turns the stored arguments of a version into the arguments of the next version, both as plain JSON.
Upcaster: TypeAlias = Callable[[dict[str, Any]], Mapping[str, Any]]


def version_of(attributes: Mapping[str, Any] | None) -> Any:
    """The version in the `extras` of a row or of a claim, where it is a text. An invalid version is returned unchanged."""
    found = (attributes or {}).get("version", 1)
    return int(found) if isinstance(found, str) and found.isdecimal() else found


class Upcasts:
    """The upcasters of a task, by the version that they read. `version`: the current version.

    An upcaster gets secret arguments in clear, so that it can rename them.
    """

    __slots__ = ("_by_version", "_sealing", "_task", "version")

    def __init__(self, task: str, version: int, sealing: Sealing) -> None:
        self._task, self.version, self._sealing = task, version, sealing
        self._by_version: dict[int, Upcaster] = {}

    def add(self, version: object, function: Upcaster) -> None:
        """Add the upcaster of a version. Raises TaskError for an invalid function or version."""
        of = f"task {self._task!r}: upcast({shown(version)})"
        if type(version) is not int or version < 1:
            raise TaskError(f"{of}: the version must be an integer from 1 on")
        if version >= self.version:
            mend = f"write @task(version={version + 1})" if version < MAX_VERSION else "take a lower version"
            raise TaskError(f"{of}: the task has version {self.version}, which is not newer: {mend}")
        if (before := self._by_version.get(version)) is not None:
            raise TaskError(f"{of}: {_named(before)} reads this version already: remove one of the two")
        if not callable(function):
            raise TaskError(f"{of} decorates a function of the old arguments, not {shown(function)}")
        if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
            raise TaskError(f"{of}: {_named(function)} must be a plain `def` that returns the new arguments")
        self._by_version[version] = function

    def check(self) -> None:
        """Raise TaskError if a version has no upcaster."""
        if missing := [version for version in range(1, self.version) if version not in self._by_version]:
            versions = f"version{'' if len(missing) == 1 else 's'} {', '.join(map(str, missing[:10]))}"
            raise TaskError(
                f"task {self._task!r} has version {self.version}, and no upcaster for {versions}: decorate a function of the old "
                f"arguments with @{self._task.rpartition('.')[2]}.upcast({missing[0]})"
            )

    def current(self, text: str, version: object) -> str:
        """Stored arguments of this version, JSON text, as arguments of the current version.

        Raises PayloadError for an unknown version or if an upcaster fails, TaskError if an upcaster is missing.
        """
        if version == self.version and type(version) is int:
            return text
        if type(version) is not int or not 1 <= version < self.version:
            raise PayloadError(
                f"task {self._task!r}: the stored arguments have version {shown(version)}, and this code reads versions 1 to {self.version}"
            )
        self.check()
        args = load(text)
        try:
            clear = self._sealing.opened(args) if isinstance(args, dict) else args
        except PayloadError as error:
            raise PayloadError(f"task {self._task!r}: {error}") from None
        has_secrets = clear != args
        for number in range(version, self.version):
            text = self._next(
                text if number > version or not has_secrets else to_json(clear).decode(), number, has_secrets
            )
        return text

    def _next(self, text: str, version: int, has_secrets: bool) -> str:
        function = self._by_version[version]
        what = f"task {self._task!r}: the upcaster of version {version}, {_named(function)},"
        try:
            made: Any = function(load(text))
            if isinstance(made, Mapping):
                return encode_plain(made, what=what)
        except Exception as error:
            if has_secrets:  # the message may contain a secret
                raise PayloadError(f"{what} failed with {type(error).__name__}") from None
            if isinstance(error, PayloadError):
                raise
            raise PayloadError(f"{what} raised {type(error).__name__}: {error}") from error
        raise PayloadError(
            f"{what} must return the new arguments by name, not {type(made).__name__ if has_secrets else shown(made)}"
        )


def _named(function: Any) -> str:
    return f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', repr(function))}"


def is_newer(job: Claimed, known: int) -> bool:
    """Whether the arguments of a claimed job have a newer version than the `known` one."""
    return newer(version_of(extra(job)), known)


def newer(version: object, known: int) -> bool:
    """Whether a row's version, a text or a number, is newer than the `known` version. An invalid version is not newer."""
    return version is not None and str(version).isdecimal() and int(str(version)) > known
