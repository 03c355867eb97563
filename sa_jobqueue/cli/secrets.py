"""Keys of secret arguments: `secrets new-key` prints one, `secrets rotate` encrypts rows again with the current key."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from itertools import islice
from typing import Annotated, Any

import typer

from ..arguments.secrets import Sealing, SecretKeys, new_key
from ..errors import ConfigurationError, PayloadError
from ..sql.secrets import reseal_rows
from .application import load_registry, own_jobs
from .config import Config, Json
from .output import cleaned, note, print_json, say
from .place import open_engine

#: The most failed rows that are listed.
_LISTED = 10


def new_key_() -> None:
    """Print a new key for SecretKeys: 32 random bytes in base64.

    sa-jobqueue secrets new-key
    """
    say(new_key())


def rotate(
    config: Config,
    *,
    batch: Annotated[int, typer.Option(metavar="N", min=1, max=10_000, help="Rows in a transaction.")] = 200,
    json: Json = False,
) -> None:
    """Encrypt the secret arguments of jobs, schedules and callbacks of workflows with the current key.

    First add the new key in all processes, and make it current. The command also encrypts secret arguments that are still in clear. It does not change archived
    jobs. When it prints 0 for all kinds of rows, remove the old key.

    sa-jobqueue secrets rotate --app shop.tasks
    """
    registry = load_registry(config)
    config, job = own_jobs(config, registry)
    secrets = {name: (task.sealing, task.parameters.encrypted) for task in registry for name in task.sealing.names}
    found = [registry.secrets, *(sealing.keys() for sealing, _ in secrets.values())]
    all_keys = list({id(keys): keys for keys in found if keys is not None}.values())
    if not all_keys:
        raise ConfigurationError("no registry of --app has keys: set default_registry.secrets = SecretKeys(...)")

    def reseal(task: str, args: Mapping[str, Any]) -> Mapping[str, Any]:
        if (known := secrets.get(task)) is not None:
            return known[0].resealed(task, args, known[1])
        # The application no longer has the task. Its keys were those of one of the registries.
        for keys in all_keys[:-1]:
            with suppress(PayloadError):
                return _sealing(task, keys).resealed(task, args, ())
        return _sealing(task, all_keys[-1]).resealed(task, args, ())

    tasks = [name for name, (_, encrypted) in secrets.items() if encrypted]
    done = reseal_rows(open_engine(config), reseal, tasks=tasks, batch=batch, job=job)
    if json:
        print_json(done.count | {"left": done.left})
    else:
        say(f"encrypted again: {', '.join(f'{number:,} {name}' for name, number in done.count.items())}")
        for line in islice(done.left, _LISTED):
            note(cleaned(f"left: {line}"))
        if len(done.left) > _LISTED:
            note(f"left: {len(done.left) - _LISTED:,} more")
    if done.left:
        raise typer.Exit(1)


def _sealing(task: str, keys: SecretKeys) -> Sealing:
    return Sealing((task,), lambda: keys)
