"""How much a rate allows, and how those that wait for a permit are told."""

from __future__ import annotations

__all__ = ["PERMITS_FREED", "RATE_OWED"]

# How many units of the burst are used up now: the generic cell rate algorithm, `free_at` is its theoretical arrival time. The state may be
# of another rate. Its units count as if they had started at this one, and for no longer than they would have at the other one. So a change
# never makes a job wait for the old rate's period. No state is 0 units, and no rate NULL. It is a plain expression, and inlined.
RATE_OWED = """
    CREATE FUNCTION {schema}.rate_owed(
        free_at timestamptz, owed_at timestamptz, owed double precision, clock timestamptz, count integer, seconds double precision
    ) RETURNS double precision LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN greatest(least(
        extract(epoch FROM free_at - clock)::double precision,
        owed * seconds / count - extract(epoch FROM clock - owed_at)::double precision), 0) * count / seconds
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
