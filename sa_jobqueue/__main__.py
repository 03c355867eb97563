"""`python -m sa_jobqueue` is `sa-jobqueue`."""

from .cli import main

if __name__ == "__main__":
    main()
