"""`python -m sa_jobqueue` is `sa-jobqueue`."""

from .cli.tree import main

if __name__ == "__main__":
    main()
