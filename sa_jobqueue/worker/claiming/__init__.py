"""Claiming: one thread writes outcomes and claims jobs. Begin with `claimer`, which has its loop and its round.

The main road: `demand`, `throttle` and `polling` (how many jobs, from which queue, when), `resume` (where a claim begins), `fetch` (handing
jobs over), `gates` (asking to be woken), `drain` (when to leave). Queues with limits or keys: `limited`, and
`shares` (the time that keys have used). After a failure: `recovery` (how the next round goes about it), `connection`, `broken_commits`. Jobs that cannot be claimed:
`bisection` finds them, `skipped` keeps them, `overlooked` notices those that no error tells of. `isolate` keeps jobs apart whose workers
died twice.
"""
