"""Injected values: their declaration, and the graph of their providers.

>>> from typing import Annotated
>>> def get_client() -> Client: ...
>>> def sync_stock(shop: int, client: Annotated[Client, Inject(get_client, scope="worker")] = INJECTED) -> None: ...
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, Literal, NoReturn, TypeAlias, get_args, get_origin

from typing_extensions import TypeAliasType

from ..errors import TaskError
from .context import AsyncJobContext, JobContext
from .resolving import hints_of, signature

Provider: TypeAlias = Callable[..., Any]
Scope: TypeAlias = Literal["attempt", "worker"]


class Inject:
    """Marks a parameter whose value the worker provides: `client: Annotated[Client, Inject(get_client)] = INJECTED`.

    `provider`: a function that returns the value, or yields it once and closes it afterwards. `async def` providers are for `async def`
    handlers. `scope`: "attempt" makes a value for each attempt of a job, and closes it when the handler has ended. "worker" makes one value
    for all jobs of the process when the first job needs it, and closes it when the worker stops.

    A provider's parameters need an `Inject` or a default. With the scope "attempt", one parameter may be the context of the job.

    Raises TaskError if the provider cannot be called, or for an unknown scope.
    """

    __slots__ = ("provider", "scope")

    def __init__(self, provider: Provider, *, scope: Scope = "attempt") -> None:
        if not callable(provider):
            raise TaskError(f"Inject() takes a provider, a function that returns the value, not {provider!r}")
        if scope not in get_args(Scope):
            raise TaskError(f'Inject({_name(provider)}): scope must be "attempt" or "worker", not {scope!r}')
        self.provider = provider
        self.scope: Scope = scope

    def __get_pydantic_core_schema__(self, *_: Any) -> NoReturn:
        raise TypeError(f"Inject({_name(self.provider)}) belongs in the Annotated[...] of the whole parameter")


class _Injected:
    """The type of `INJECTED`."""

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            f"the worker did not provide this injected value (attribute .{name}): in a direct call of the handler, pass the value by name"
        )

    def __repr__(self) -> str:
        return "INJECTED"


INJECTED: Any = _Injected()
"""The default of an injected parameter. It tells type checkers that `enqueue` takes no such argument."""


@dataclass(frozen=True, slots=True)
class Provided:
    """A value to inject: its provider, and the values that the provider takes. Equal instances make the same value."""

    provider: Provider
    scope: Scope
    takes: tuple[tuple[str, Provided], ...]
    context: str | None
    """The provider's parameter for the context of the job."""
    awaits: bool
    """Whether the provider itself is async."""
    is_async: bool
    """Whether the provider, or a provider that it needs, is async."""
    manager: Callable[..., Any] | None = field(compare=False)
    """Returns the context manager that makes and closes the value; None: the provider returns the value."""

    @property
    def name(self) -> str:
        """The name of the provider, for people."""
        return _name(self.provider)


@dataclass(frozen=True, slots=True, eq=False)
class Injected:
    """The injected values of a handler, by parameter."""

    values: tuple[tuple[str, Provided], ...]

    @property
    def names(self) -> frozenset[str]:
        """The names of these parameters."""
        return frozenset(name for name, _ in self.values)

    def overridden(self, overrides: Mapping[Provider, Provider], *, what: str, is_async: bool) -> Injected:
        """These values with the providers in `overrides` replaced."""
        graph = _Graph(what, is_async, overrides)
        return Injected(tuple((name, graph.provided(value.provider, value.scope)) for name, value in self.values))


def takes_context(value: Provided) -> bool:
    """Whether the provider of a value, or a provider that it needs, takes the context of a job."""
    return value.context is not None or any(takes_context(taken) for _, taken in value.takes)


def injected_by(
    handler: Callable[..., Any], parameters: Sequence[inspect.Parameter], hints: Mapping[str, Any], what: str
) -> Injected | None:
    """The injected values of a handler's parameters; None if there are none. Raises TaskError for an invalid declaration."""
    graph, found = _Graph(what, inspect.iscoroutinefunction(handler), {}), list[tuple[str, Provided]]()
    has_rest = any(parameter.kind is inspect.Parameter.VAR_POSITIONAL for parameter in parameters)
    for parameter in parameters:
        name, kind = parameter.name, parameter.kind
        inject = _marker(hints.get(name), f"{what}: {name!r}")
        if inject is None:
            if parameter.default is INJECTED:
                raise TaskError(f"{what}: {name!r} has the default INJECTED, but its annotation has no Inject(...)")
            continue
        by_name = parameter.KEYWORD_ONLY if has_rest else parameter.POSITIONAL_OR_KEYWORD
        if kind not in {parameter.KEYWORD_ONLY, by_name}:
            raise TaskError(f"{what}: the worker passes {name!r} by name: write the parameter after `*` or `*args`")
        found.append((name, graph.provided(inject.provider, inject.scope)))
    return Injected(tuple(found)) if found else None


def check_early(handler: Callable[..., Any], what: str) -> None:
    """Check the injected parameters whose annotations can already be resolved. Raises TaskError."""
    for parameter in signature(handler).parameters.values():
        annotation = parameter.annotation
        if get_origin(annotation) is Annotated or (isinstance(annotation, str) and "Inject(" in annotation):
            try:
                injected_by(handler, [parameter], hints_of(handler, [parameter], what), what)
            except TaskError as error:
                if not isinstance(error.__cause__, NameError):  # a name that the module declares further down
                    raise


class _Graph:
    """Finds the values that providers need. `overrides`: the replacement of each overridden provider."""

    def __init__(self, what: str, is_async: bool, overrides: Mapping[Provider, Provider]) -> None:
        self._what, self._is_async, self._overrides = what, is_async, overrides
        self._path: list[tuple[Provider, Scope]] = []

    def provided(self, provider: Provider, scope: Scope) -> Provided:
        """The value of this provider. Raises TaskError for a circle, or for an attempt's value in a worker's value."""
        path, name = self._path, _name(provider)
        if any(known is provider for known, _ in path):
            circle = " -> ".join(_name(known) for known, _ in [*path, (provider, scope)])
            raise TaskError(f"{self._what}: providers need each other in a circle: {circle}")
        if path and path[-1][1] == "worker" and scope == "attempt":
            raise TaskError(
                f'{self._what}: {_name(path[-1][0])} has the scope "worker", but needs {name}, which has the scope "attempt" and '
                f"is closed earlier: give both the same scope"
            )
        path.append((provider, scope))
        try:
            return self._found(self._overrides.get(provider, provider), scope)
        finally:
            path.pop()

    def _found(self, provider: Provider, scope: Scope) -> Provided:
        what = f"{self._what}: its provider {_name(provider)}"
        function = _function(provider)
        inner = inspect.unwrap(function)
        yields_async = inspect.isasyncgenfunction(inner)
        awaits = yields_async or inspect.iscoroutinefunction(inner)
        if awaits and not self._is_async:
            raise TaskError(
                f"{what} is async, but a `def` handler cannot await: make the handler `async def`, or the provider `def`"
            )
        takes, context = list[tuple[str, Provided]](), None
        for parameter in _parameters(provider):
            name, hint = parameter.name, self._hint(function, parameter, what)
            if hint in (JobContext, AsyncJobContext):
                self._check_context(hint, scope, what)
                context = name
            elif (inject := _marker(hint, f"{what}: {name!r}")) is not None:
                takes.append((name, self.provided(inject.provider, inject.scope)))
            elif _is_required(parameter):
                raise TaskError(f"{what} needs {name!r}: give it Inject(...), a default, or the job's context")
        manager = None
        if yields_async or inspect.isgeneratorfunction(inner):
            make = asynccontextmanager if yields_async else contextmanager
            manager = make(provider) if inner is function else provider  # the application has decorated it by either
        is_async = awaits or any(value.is_async for _, value in takes)
        return Provided(provider, scope, tuple(takes), context, awaits, is_async, manager)

    def _hint(self, function: Any, parameter: inspect.Parameter, what: str) -> Any:
        try:
            return hints_of(function, [parameter], what).get(parameter.name)
        except TaskError:
            if _is_required(parameter):
                raise
            return None

    def _check_context(self, context: Any, scope: Scope, what: str) -> None:
        if scope == "worker":
            raise TaskError(f'{what} takes the context of a job, but the scope "worker" is for all jobs: use "attempt"')
        needed = AsyncJobContext if self._is_async else JobContext
        if context is not needed:
            handler = "an `async def`" if self._is_async else "a `def`"
            raise TaskError(f"{what} takes {context.__name__}, but {handler} handler has {needed.__name__}")


def _is_required(parameter: inspect.Parameter) -> bool:
    variable = parameter.kind in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}
    return parameter.default in (parameter.empty, INJECTED) and not variable


def _parameters(provider: Provider) -> list[inspect.Parameter]:
    try:
        return list(signature(provider).parameters.values())
    except ValueError:  # a class or function that is written in C
        return []


def _function(provider: Any) -> Any:
    """The function that a call of the provider runs: its annotations, and whether it is async, are the provider's."""
    if isinstance(provider, type):
        return getattr(provider, "__init__")  # noqa: B009  # mypy would have it that this is an instance's
    if isinstance(provider, partial):
        return _function(provider.func)
    return provider if inspect.isroutine(provider) else type(provider).__call__


def _marker(hint: Any, what: str) -> Inject | None:
    """The `Inject(...)` in an annotation."""
    hint = hint.__value__ if isinstance(hint, TypeAliasType) else hint
    if get_origin(hint) is not Annotated:
        return None
    for found in get_args(hint)[1:]:
        if isinstance(found, Inject):
            return found
        if found is Inject or type(found).__name__ == "Depends":
            raise TaskError(f"{what} has {found!r} in its annotation: write Inject(provider)")
    return None


def _name(provider: Provider) -> str:
    return getattr(provider, "__qualname__", None) or repr(provider)
