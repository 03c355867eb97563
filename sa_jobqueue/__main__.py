"""`python -m sa_jobqueue` is `sa-jobqueue`."""

from sa_jobqueue.cli import main

if __name__ == "__main__":
    main()
