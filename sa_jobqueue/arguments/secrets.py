"""Secret arguments: `Secret()` encrypts an argument in the row, and `Sensitive()` marks it so that every display masks it.

>>> from typing import Annotated
>>> from sa_jobqueue import Secret, Sensitive
>>> def sync(account_id: int, token: Annotated[str, Secret()], email: Annotated[str, Sensitive()]) -> None: ...

In `Job.args` a secret is `{"$secret": [key id, base64 of the nonce and the ciphertext]}`, and a sensitive value `{"$sensitive": value}`. Readers that do
not know the task mask by these names: see `util.urls.without_secrets`.
"""

from __future__ import annotations

import os
import typing
from base64 import b64decode, b64encode, urlsafe_b64decode
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, cast

from pydantic import GetCoreSchemaHandler, ValidationError
from pydantic_core import core_schema, to_json

from ..errors import ConfigurationError, PayloadError, TaskError
from ..util.urls import SECRET, SENSITIVE
from .ends import Typed, type_name
from .references import refused
from .storable import load, unstorable, unstorable_text

_KEY, _NONCE, _MAX_ID = 32, 12, 100
#: The beginning of the additional authenticated data; the task, the argument and the key follow.
_PLACE = "sa_jobqueue secret 1"


class _Mark:
    """An instruction next to the type of a parameter in an `Annotated`."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        mark, field = type(self).__name__, handler.field_name
        at = f" at {field!r}" if field not in (None, "value") else ""  # a single type is checked as the field "value"
        raise TaskError(
            f"{mark}(){at} protects nothing there: it is for a whole parameter of a task, as in `token: Annotated[str | None, {mark}()]`, and not for a "
            "part of its type, a field of a model, *args, **kwargs, or a result"
        )


class Secret(_Mark):
    """A parameter whose value is encrypted in the row: `token: Annotated[str, Secret()]`. Only the handler gets the value.

    The keys are those of the task's registry: see `SecretKeys`. None stays null, so that readers of the row see that there is no secret.
    Without keys, enqueueing raises PayloadError. A handler's result is not encrypted.
    """


class Sensitive(_Mark):
    """A parameter whose value every display masks: `email: Annotated[str, Sensitive()]`. The row has the value in clear."""


class SecretKeys:
    """The keys of secret arguments: set `default_registry.secrets = SecretKeys({"2026": key}, current="2026")`.

    `keys`: each is 32 bytes, or the base64 of 32 bytes, as `sa-jobqueue secrets new-key` prints it. Its name, 1 to 100 characters, is stored in rows.
    `current`: the name of the key that encrypts. All keys decrypt. The encryption is AES-256-GCM, by the library cryptography (the extra `secrets`).

    Raises ConfigurationError for other keys, and where the library is missing.
    """

    __slots__ = ("_ciphers", "current")

    def __init__(self, keys: Mapping[str, bytes | str], *, current: str) -> None:
        try:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ImportError as error:
            raise ConfigurationError("SecretKeys needs cryptography: pip install 'sa_jobqueue[secrets]'") from error
        if not isinstance(keys, Mapping) or not keys:
            raise ConfigurationError(
                f'SecretKeys takes keys by name, as in {{"2026": key}}, not a {type(keys).__name__}'
            )
        self._ciphers = {_checked_id(name): AESGCM(_key_of(name, key)) for name, key in keys.items()}
        if current not in self._ciphers:
            raise ConfigurationError(
                f"SecretKeys: current must be one of {', '.join(map(repr, keys))}, not {current!r:.80}"
            )
        self.current = current

    def seal(self, data: bytes, place: Place) -> dict[str, Any]:
        """Encrypt `data` with the current key, for this place only. Returns the stored form."""
        nonce = os.urandom(_NONCE)
        sealed = self._ciphers[self.current].encrypt(nonce, data, place.authenticated(self.current))
        return {SECRET: [self.current, b64encode(nonce + sealed).decode()]}

    def open(self, sealed: Any, places: Iterator[Place]) -> bytes:
        """Decrypt a stored value that belongs to one of these places. Raises PayloadError."""
        from cryptography.exceptions import InvalidTag

        key, text = _parts(sealed)
        if key is None:
            raise PayloadError("it is no stored secret: expected the name of a key and a base64 text")
        if (cipher := self._ciphers.get(key)) is None:
            known = ", ".join(map(repr, self._ciphers))
            raise PayloadError(
                f"it was encrypted with the key {key!r:.120}, which is not among the registry's keys ({known}): add the key to SecretKeys, and retry the job"
            )
        try:
            data = b64decode(text, validate=True)
        except ValueError:
            data = b""
        for place in places:
            try:
                return cipher.decrypt(data[:_NONCE], data[_NONCE:], place.authenticated(key))
            except (InvalidTag, ValueError):  # ValueError: the nonce is cut off
                continue
        raise PayloadError(
            f"the key {key!r} does not decrypt it: it was changed, or belongs to another task or argument"
        )

    def __repr__(self) -> str:
        return f"<SecretKeys {', '.join(map(repr, self._ciphers))}, current {self.current!r}>"


def _parts(sealed: Any) -> tuple[str, str] | tuple[None, str]:
    """The name of the key and the ciphertext of a stored secret; no name if the row has another value."""
    match sealed:
        case {"$secret": [str(id), str(text)]}:
            return id, text
        case _:
            return None, ""


def _checked_id(id: object) -> str:
    if not isinstance(id, str) or not 1 <= len(id) <= _MAX_ID or unstorable_text(id):
        raise ConfigurationError(f"SecretKeys: the name of a key must be a text of 1 to {_MAX_ID} characters")
    return id


def _key_of(id: str, key: object) -> bytes:
    found = key
    if isinstance(key, str):
        try:
            found = urlsafe_b64decode(key.strip().replace("+", "-").replace("/", "_"))
        except ValueError:
            found = b""
    if not isinstance(found, bytes) or len(found) != _KEY:
        what = f"{len(key)} bytes" if isinstance(key, bytes) else f"a {type(key).__name__} of another form"
        raise ConfigurationError(
            f"SecretKeys: the key {id!r} must be {_KEY} bytes or their base64, not {what}: `sa-jobqueue secrets new-key` prints a key"
        )
    return found


def new_key() -> str:
    """A new random key, in base64."""
    return b64encode(os.urandom(_KEY)).decode()


@dataclass(frozen=True, slots=True)
class Place:
    """Where a secret belongs: an argument of a task, by its name in the row."""

    task: str
    argument: str

    def authenticated(self, key: str) -> bytes:
        """The additional authenticated data of a ciphertext."""
        return to_json([_PLACE, self.task, self.argument, key])


@dataclass(frozen=True, slots=True)
class Sealing:
    """Encrypts and decrypts a task's secret arguments. `names`: the task's name, then its aliases. `keys`: returns the keys of its registry."""

    names: tuple[str, ...]
    keys: Callable[[], SecretKeys | None]

    def seal(self, data: bytes, argument: str) -> dict[str, Any]:
        """Encrypt the JSON of an argument. Raises PayloadError if there are no keys."""
        return self._keys().seal(data, Place(self.names[0], argument))

    def open(self, sealed: Any, argument: str) -> bytes:
        """Decrypt to the JSON of an argument. Raises PayloadError."""
        return self._keys().open(sealed, (Place(name, argument) for name in self.names))

    def _keys(self) -> SecretKeys:
        if (keys := self.keys()) is None:
            raise PayloadError(
                'it is a secret, and the registry has no keys: set default_registry.secrets = SecretKeys({"2026": key}, current="2026"), or that of '
                "the task's own registry; `sa-jobqueue secrets new-key` prints a key"
            )
        return keys

    def resealed(self, task: str, args: Mapping[str, Any], encrypted: Collection[str]) -> dict[str, Any]:
        """Encrypt stored arguments with the current key. Returns only the entries that change. `encrypted`: the names of the `Secret()` arguments.

        `task`: the task's name in the row, which may be an alias. The entries are encrypted for this name, so that older code can read them.
        Raises PayloadError, which names the argument.
        """
        changes = dict[str, Any]()
        for name, value in args.items():
            try:
                if is_marked(value, SECRET):
                    if _parts(value)[0] != self._keys().current:
                        changes[name] = self._keys().seal(self.open(value, name), Place(task, name))
                elif name in encrypted and value is not None:
                    data = to_json(value[SENSITIVE] if is_marked(value, SENSITIVE) else value)
                    changes[name] = self._keys().seal(data, Place(task, name))
            except PayloadError as error:
                raise PayloadError(f"argument {name}: {error}") from None
        return changes

    def opened(self, args: dict[str, Any]) -> dict[str, Any]:
        """Stored arguments with their secrets and sensitive values in clear. Raises PayloadError, which names the argument."""
        clear = dict(args)
        for name, value in args.items():
            try:
                if is_marked(value, SECRET):
                    clear[name] = load(self.open(value, name))
                elif is_marked(value, SENSITIVE):
                    clear[name] = value[SENSITIVE]
            except PayloadError as error:
                raise PayloadError(f"argument {name}: {error}") from None
        return clear


def is_marked(value: object, mark: str) -> bool:
    """Whether a value of a row is a secret, or a sensitive value."""
    return isinstance(value, dict) and len(cast(dict[str, Any], value)) == 1 and mark in value


class SecretArgument:
    """The pydantic annotation of the secret or sensitive parameter `name`. It turns a value into its stored form, and a stored form into the value.

    A stored value in clear is accepted: the job was enqueued before the parameter was marked, or by a producer that does not know the task.
    Messages do not contain the value. Raises TypeError for a type that pydantic cannot check.
    """

    def __init__(self, hint: Any, name: str, mark: str, sealing: Sealing) -> None:
        self.hint, self.name, self.mark, self._sealing = hint, name, mark, sealing
        self._typed: Typed[Any] = Typed(hint)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.json_or_python_schema(
            json_schema=core_schema.no_info_plain_validator_function(self._read),
            python_schema=core_schema.no_info_plain_validator_function(self._write),
        )

    def __deepcopy__(self, memo: object) -> SecretArgument:
        return self  # pydantic copies some annotations

    def _write(self, given: Any) -> Any:
        try:
            data = self._typed.to_equal_json(given)
        except Exception as error:  # of the application's types, too
            raise refused(self._misfit(error)) from None
        plain = load(data)
        if next(unstorable(plain), None) is not None:
            raise refused("the value, which is not shown, has a part that PostgreSQL's JSON cannot store")
        if plain is None:
            return None
        if self.mark == SENSITIVE:
            return {SENSITIVE: plain}
        try:
            return self._sealing.seal(data, self.name)
        except PayloadError as error:
            raise refused(str(error)) from None

    def _read(self, plain: Any) -> Any:
        try:
            if is_marked(plain, SECRET):
                data = self._sealing.open(plain, self.name)
            else:
                data = to_json(plain[SENSITIVE] if is_marked(plain, SENSITIVE) else plain)
        except PayloadError as error:
            raise refused(str(error)) from None
        try:
            return self._typed.from_json(data.decode())
        except Exception as error:  # of the application's types, too
            raise refused(self._misfit(error)) from None

    def _misfit(self, error: Exception) -> str:
        kind = error.errors()[0]["type"] if isinstance(error, ValidationError) else type(error).__name__
        return f"the value, which is not shown, does not fit {type_name(self.hint)} ({kind})"


def with_secret(hint: Any, name: str, sealing: Sealing) -> Any:
    """`hint` with a `SecretArgument` instead of `Secret()` or `Sensitive()`; `hint` itself if it has neither. Raises TypeError for an invalid mark."""
    if typing.get_origin(hint) is not Annotated:
        return hint
    of, *instructions = typing.get_args(hint)
    marks = [mark for mark in instructions if isinstance(mark, _Mark) or mark in (Secret, Sensitive)]
    if not marks:
        return hint
    if isinstance(marks[0], type):
        raise TypeError(f"it has the class {marks[0].__name__}: write {marks[0].__name__}()")
    rest = tuple(instruction for instruction in instructions if instruction not in marks)
    mark = SECRET if any(isinstance(mark, Secret) for mark in marks) else SENSITIVE
    return Annotated[of, SecretArgument(Annotated[(of, *rest)] if rest else of, name, mark, sealing)]


def secret_in(hint: Any) -> SecretArgument | None:
    """The `SecretArgument` in the annotation of a parameter, if any: see `with_secret`."""
    parts = typing.get_args(hint) if typing.get_origin(hint) is Annotated else ()
    return next((part for part in parts if isinstance(part, SecretArgument)), None)
