"""The metrics of the database: backlog and age by queue, cleanup, sizes, vacuum, snapshots, locks, connections, blocks.

They are read when Prometheus scrapes, in one READ ONLY transaction, and kept for some seconds.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta
from time import monotonic

import sqlalchemy as sa
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector
from sqlalchemy.exc import DBAPIError

from ..doctor import reading
from ..errors import ConfigurationError
from ..sql.store import Store, default_store
from ..util.log import get_logger, one_line
from ..util.schema import SCHEMA
from ..util.urls import mask_passwords
from . import names
from .parts import PARTS, Families, Findings, Part

logger = get_logger(__name__)

#: Seconds that a statement may take, and all of them together: a scrape waits for 10 s, unless it is told otherwise.
_PATIENCE, _ALL = timedelta(seconds=2), timedelta(seconds=6)
#: Seconds that a scrape waits for the reading of another scrape.
_TURN = 8.0
#: Seconds for which it is kept that the database was away.
_AWAY = 1.0


class QueueCollector(Collector):
    """What the database says, for any registry: `REGISTRY.register(QueueCollector(engine))`.

    `schema`: where the tables are, if the engine's `schema_translate_map` does not say it. `keep`: seconds for which values are
    kept, however often they are asked for. `findings`: also the doctor's, looked for once a minute on a thread of its own.
    A scrape raises nothing: while the database is away, `sa_jobqueue_database_up` is 0 and all else is missing.

    Raises ConfigurationError where `engine` is no `Engine`.
    """

    def __init__(
        self,
        engine: sa.Engine,
        *,
        schema: str | None = None,
        keep: float = 5.0,
        findings: bool = True,
        store: Store = default_store,
    ) -> None:
        if not isinstance(engine, sa.Engine):
            raise ConfigurationError(
                f"expected an Engine, not {engine!r}; for an application that has an AsyncEngine alone, make one by create_engine()"
            )
        if schema is not None:
            engine = engine.execution_options(schema_translate_map={SCHEMA: schema})
        self._engine, self._keep, self._store = engine, keep, store
        self._findings = Findings(engine, store) if findings else None
        self._turn = threading.Lock()
        """Held while a scrape reads the database: only one reads at a time."""
        self._families: list[Family] = []
        self._until = 0.0
        """When the families are too old. Written by the thread that has the turn; the families and `is_up` also by a thread that waited for it
        in vain."""
        self.is_up = True
        """Whether the database answered at the last reading."""

    def collect(self) -> Iterator[Family]:
        """The families; reads the database if the last reading is too old."""
        self.refresh()
        yield from self._families
        if self._findings is not None and self.is_up:
            yield from self._findings.collect()

    def describe(self) -> Iterator[Family]:
        """Nothing, because registration must not read the database."""
        return iter(())

    def refresh(self) -> None:
        """Read the database if the last reading is too old, or wait for the reading in progress."""
        if not self._turn.acquire(timeout=_TURN):
            self._families, self.is_up = _down(), False
            return
        try:
            if monotonic() >= self._until:
                self._families = self._look()
                self._until = monotonic() + (self._keep if self.is_up else min(self._keep, _AWAY))
        finally:
            self._turn.release()

    def _look(self) -> list[Family]:
        families, read = Families(), Families()
        until = monotonic() + _ALL.total_seconds()
        try:
            found: list[Family] = []
            with reading(self._engine, statement=_PATIENCE, idle=2 * _ALL) as connection:
                for name, part in PARTS.items():
                    values = _values(connection, self._store, part) if monotonic() < until else None
                    read.add(names.READ, values is not None, name)
                    found += values or ()
        except Exception as error:  # of the driver, of a pool, of a function that connects
            if self.is_up:
                logger.warning("no metrics of the database: %s", one_line(mask_passwords(str(error))))
            self.is_up = False
            return _down()
        if not self.is_up:
            logger.info("metrics of the database are there again")
        self.is_up = True
        families.add(names.UP, 1)
        return [*families, *read, *found]


def _down() -> list[Family]:
    families = Families()
    families.add(names.UP, 0)
    return list(families)


def _values(connection: sa.Connection, store: Store, part: Part) -> Families | None:
    """The values of a part; None where the database refused, or took too long."""
    families = Families()
    try:
        with connection.begin_nested():
            part(connection, store, families)
    except DBAPIError as error:
        if error.connection_invalidated or getattr(error.orig, "sqlstate", None) is None:
            raise
        logger.debug("a part of the metrics could not be read: %s", error.orig)
        return None
    return families
