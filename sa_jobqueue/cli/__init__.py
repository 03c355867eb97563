"""The command `sa-jobqueue`.

    sa-jobqueue migrate
    sa-jobqueue work --app shop.tasks --queue mail=10
    sa-jobqueue list --status failed

Each command has a module of its name, or shares one with its kind. `tree` has the list of them, `loading` loads one when it is
called, `command` makes a command of a function, `options` and `config` have what they are told, `place` the way to the
database.
"""

from .tree import app, main

__all__ = ["app", "main"]
