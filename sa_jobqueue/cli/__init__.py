"""The command `sa-jobqueue`.

    sa-jobqueue migrate
    sa-jobqueue work --app shop.tasks --queue mail=10
    sa-jobqueue list --status failed

Each command has a module of its name, or shares one with its kind. `tree` puts them together, `command` makes a command of
a function, `options` and `config` have what they are told, `place` the way to the database.
"""

import gc
import sys

from sa_jobqueue.errors import ConfigurationError
from sa_jobqueue.urls import check_psycopg

try:
    check_psycopg()  # without it there is no command, nor its help
except ConfigurationError as error:
    sys.stderr.write(f"error: {error}\n")
    sys.exit(2)

# What is imported stays; to search it for garbage meanwhile took a tenth of the time (November 2026).
_collects = gc.isenabled()
gc.disable()
try:
    from .tree import app, main
finally:
    if _collects:
        gc.enable()

__all__ = ["app", "main"]
