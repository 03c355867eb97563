"""`python -m tests.benchmarks`; see measures.py, whose functions a process started anew can import."""

from tests.benchmarks.measures import main

if __name__ == "__main__":
    main()
