"""A live view of the queues, the tasks, the workers and the failed jobs: `top`.

    sa-jobqueue top
    sa-jobqueue top --once

`read` asks the database for a picture, `reader` does so again and again on a thread of its own, `frame` draws the picture,
`controls` says what a key does, `terminal` reads keys, and `screen` puts them together.
"""
