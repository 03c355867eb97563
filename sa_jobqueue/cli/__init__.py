"""The command `sa-jobqueue`.

    sa-jobqueue migrate
    sa-jobqueue work --app shop.tasks --queue mail=10
    sa-jobqueue list --status failed

A module per group of commands; `common` has what they share.
"""

from .tree import app, main

__all__ = ["app", "main"]
