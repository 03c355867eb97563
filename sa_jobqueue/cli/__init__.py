"""The command `sa-jobqueue`.

    sa-jobqueue migrate
    sa-jobqueue work --app shop.tasks --queue mail=10
    sa-jobqueue list --status failed

A module per group of commands; `common` has what they share.
"""

import sys

from sa_jobqueue.errors import ConfigurationError
from sa_jobqueue.urls import check_psycopg

try:
    check_psycopg()  # without it there is no command, nor its help
except ConfigurationError as error:
    sys.stderr.write(f"error: {error}\n")
    sys.exit(2)

from .tree import app, main

__all__ = ["app", "main"]
