"""Opening wake-up gates."""

from __future__ import annotations

from sqlalchemy import Connection, text

from sa_jobqueue.sql.waking import open_gates


def test_the_gates_of_the_queues_open_and_the_latest_of_all(connection: Connection, other: Connection) -> None:
    """For as long as was asked, or a part of a second more; for others at once, and for no other queue's gate."""
    with connection.begin():
        connection.execute(open_gates(queues=["mail", "images", "mail"], seconds=30))
        opened = {gate_of(other, "mail"), gate_of(other, "images"), "gate_any"}
        left = seconds_left(other)
    assert left.keys() == opened
    assert all(20 < seconds <= 31 for seconds in left.values())


def test_a_shorter_request_shortens_no_gate(connection: Connection, other: Connection) -> None:
    """What another worker asked for stays; a longer wish, for another queue too, is the latest of all."""
    for seconds, queue in ((300, "mail"), (1, "mail"), (100, "images"), (600, "letters")):
        with connection.begin():
            connection.execute(open_gates(queues=[queue], seconds=seconds))
    left = seconds_left(other)
    mail, images, letters = (left[gate_of(other, queue)] for queue in ("mail", "images", "letters"))
    assert 290 < mail <= 301
    assert 90 < images <= 101
    assert 590 < letters == left["gate_any"] <= 601


def gate_of(connection: Connection, queue: str) -> str:
    return str(connection.scalar(text("SELECT 'gate_' || (hashtext(:queue) & 15)"), {"queue": queue}))


def seconds_left(connection: Connection) -> dict[str, float]:
    """How long each gate is open from now on; without those that never were."""
    found = connection.execute(
        text(
            "SELECT sequencename, last_value - extract(epoch FROM statement_timestamp()) AS left FROM pg_sequences"
            " WHERE schemaname = 'sa_jobqueue' AND sequencename LIKE 'gate%' AND last_value IS NOT NULL"
        )
    )
    return {row.sequencename: float(row.left) for row in found}
