"""What belongs to the operating system's process: the supervisor, signals, threads, forks, garbage collection."""
