"""How much a rate allows, and how those that wait for a permit are told."""

from __future__ import annotations

__all__ = ["PERMITS_FREED", "RATE_ROOM"]

# How many units may start now: the generic cell rate algorithm, `free_at` is its theoretical arrival time. NULL without a rate. It is
# a plain expression, and inlined.
RATE_ROOM = """
    CREATE FUNCTION {schema}.rate_room(free_at timestamptz, clock timestamptz, count integer, seconds double precision, burst integer)
    RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN floor(burst - greatest(extract(epoch FROM free_at - clock)::double precision, 0) * count / seconds + 0.000001)::integer
    """

# Permits of this worker's jobs are free again: those that wait for some are told at the commit. The gate's cell holds a second of the
# epoch until which a worker waits, and behind it, in three digits, which one; 0: several.
PERMITS_FREED = """
    CREATE FUNCTION {schema}.permits_freed(opener integer) RETURNS void LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp AS $body$
    DECLARE
        gate regclass := ({name} || '.gate_limit')::regclass;
        cell bigint := pg_sequence_last_value(gate);
    BEGIN
        IF cell / 1000 > extract(epoch FROM clock_timestamp()) AND cell % 1000 <> opener THEN
            PERFORM pg_notify('sa_jobqueue_' || ({name} || '.job')::regclass::oid, '(limits)'), setval(gate, 0);
        END IF;
    END
    $body$
    """
