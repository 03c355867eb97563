"""The limit: a bare psycopg loop on our own table, that claims, and finishes what it claimed before in the same commit.

`drain` sends two statements for that, `drain_fused` a single statement.

One queue, the claim of sa_jobqueue/sql/claims.py without its resume points; finishing is fenced and locks its ids
in order first. Prepared statements, the worker's planner settings, no handler, no Python object per job beyond what the
driver makes of a row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .schema import SCHEMA, service_connection

_PICKED = f"""
picked AS MATERIALIZED (
    SELECT due.id FROM unnest('{{9,8,7,6,5,4,3,2,1,0}}'::smallint[]) AS slot(level)
    CROSS JOIN LATERAL (
        SELECT id FROM {SCHEMA}.job
        WHERE queue = 'default' AND priority = slot.level AND status = 'queued' AND concurrency_key IS NULL
            AND run_at <= now()
        ORDER BY run_at, id LIMIT %(free)s FOR NO KEY UPDATE SKIP LOCKED
    ) AS due
    LIMIT %(free)s
)
"""
_CLAIMED = f"""
UPDATE {SCHEMA}.job
SET status = 'running', claims = claims + 1, attempt = attempt + 1, worker = %(worker)s, claimed_at = now(),
    lease_expires_at = now() + interval '60 s'
WHERE id = ANY (ARRAY (SELECT id FROM picked))
RETURNING id::text, claims::text, task, args::text
"""
CLAIM = f"WITH {_PICKED} {_CLAIMED}"

# Without SKIP LOCKED, which the worker needs only where operators lock rows: another loop's claim, whose snapshot is a little
# older, may have locked rows of ours that it then did not take, and this loop has no second try.
_LOCKED = f"""
WITH locked AS MATERIALIZED (
    SELECT id FROM {SCHEMA}.job WHERE id = ANY (%(ids)s::bigint[]) AND status = 'running'
    ORDER BY id FOR NO KEY UPDATE
)
"""
_FENCE = """
change(id, claims)
WHERE job.id = change.id AND job.claims = change.claims AND job.status = 'running'
    AND job.id = ANY (ARRAY (SELECT id FROM locked))
"""

_COMPLETED = f"""
UPDATE {SCHEMA}.job
SET status = 'completed', finished_at = now(), purge_at = now() + interval '7 days', lease_expires_at = NULL
FROM unnest(%(ids)s::bigint[], %(claims)s::integer[]) AS
"""
COMPLETE = f"{_LOCKED} {_COMPLETED} {_FENCE}"

# Not locked in order: each loop completes its own jobs. And not by their state: the planner takes the index of running jobs, which
# was empty when it looked, for the outer side of the join, and reads all parameters once for each job.
FUSED = f"""
WITH completed AS (
    {_COMPLETED} change(id, claims)
    WHERE job.id = change.id AND job.claims = change.claims
), {_PICKED} {_CLAIMED}
"""
#: Jobs per statement of the fused loop. It is the fastest with some 700.
FUSED_BATCH = 730

DELETE = f"""{_LOCKED}
DELETE FROM {SCHEMA}.job
USING unnest(%(ids)s::bigint[], %(claims)s::integer[]) AS {_FENCE}
"""


def drain(ready: Callable[[], Any], address: str, batch: int, deleted: bool) -> int:
    """Drain until nothing is due. Returns how many jobs it finished. `deleted`: they are deleted, not kept as completed."""
    sqlalchemy_connection, connection = service_connection(address)
    finish = DELETE if deleted else COMPLETE
    cursor = connection.cursor()
    done = 0
    ids = claims = ""
    ready()
    while True:
        if ids:
            cursor.execute(finish, {"ids": ids, "claims": claims}, prepare=True)
            done += cursor.rowcount
        cursor.execute(CLAIM, {"free": batch, "worker": "raw"}, prepare=True)
        rows = cursor.fetchall()
        connection.commit()
        if not rows:
            break
        # As text: the driver would look at each element of a list.
        ids = "{" + ",".join([row[0] for row in rows]) + "}"
        claims = "{" + ",".join([row[1] for row in rows]) + "}"
    sqlalchemy_connection.close()
    return done


def drain_fused(ready: Callable[[], Any], address: str) -> int:
    """As `drain`, with a single statement. Its plan is pinned: after ANALYZE the planner may choose a hash join, which takes twice the time."""
    sqlalchemy_connection, connection = service_connection(address)
    cursor = connection.cursor()
    cursor.execute(
        "SET enable_nestloop = on; SET enable_hashjoin = off; SET enable_mergejoin = off; SET enable_seqscan = off"
    )
    connection.commit()
    done = 0
    ids = claims = "{}"
    ready()
    while True:
        cursor.execute(FUSED, {"ids": ids, "claims": claims, "free": FUSED_BATCH, "worker": "raw"}, prepare=True)
        rows = cursor.fetchall()
        connection.commit()
        if not rows and ids == "{}":
            break
        done += len(rows)
        ids = "{" + ",".join([row[0] for row in rows]) + "}"
        claims = "{" + ",".join([row[1] for row in rows]) + "}"
    sqlalchemy_connection.close()
    return done
