"""Child processes that run the handlers of `@task(executor="process")`, and the worker's side of them.

`Children` keeps them, `ChildRunner` runs one job in one of them. `child_main` is what a child executes.
"""
