"""Running claimed jobs: slots, runners, the executor, the handler's transaction, and the outcomes on their way to the database."""
