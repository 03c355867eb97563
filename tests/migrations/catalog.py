"""What a schema holds, in the server's own words, with the schema's name taken out: two of them can be compared.

assert catalog.tables(connection, "made_by_migrations") == catalog.tables(connection, "made_by_models")
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, text

Definitions = dict[str, Any]

_COLUMNS = """
    SELECT 'column ' || c.relname || '.' || a.attname,
           format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity::text, a.attgenerated::text,
           a.attstorage::text, a.attcompression::text, a.attcollation::regcollation::text,
           pg_get_expr(d.adbin, d.adrelid)
    FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
    LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
    WHERE c.relnamespace = to_regnamespace(:schema) AND c.relkind IN ('r', 'p') AND a.attnum > 0 AND NOT a.attisdropped
"""

_NAMES = """
    SELECT 'columns of ' || c.relname, array_agg(a.attname::text ORDER BY a.attname)
    FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
    WHERE c.relnamespace = to_regnamespace(:schema) AND c.relkind IN ('r', 'p') AND a.attnum > 0 AND NOT a.attisdropped
    GROUP BY c.relname
"""

_CONSTRAINTS = """
    SELECT 'constraint ' || k.conname, c.relname, k.contype::text, pg_get_constraintdef(k.oid), k.convalidated
    FROM pg_constraint k JOIN pg_class c ON c.oid = k.conrelid
    WHERE c.relnamespace = to_regnamespace(:schema)
"""

_INDEXES = """
    SELECT 'index ' || i.relname, pg_get_indexdef(i.oid), i.reloptions, x.indisvalid
    FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid
    WHERE i.relnamespace = to_regnamespace(:schema)
"""

_TABLES = """
    SELECT 'table ' || c.relname, c.relkind::text, c.relpersistence::text, c.reloptions, t.reloptions
    FROM pg_class c LEFT JOIN pg_class t ON t.oid = c.reltoastrelid
    WHERE c.relnamespace = to_regnamespace(:schema) AND c.relkind IN ('r', 'p', 'v', 'm')
"""

_SEQUENCES = """
    SELECT 'sequence ' || c.relname, format_type(s.seqtypid, NULL), s.seqstart, s.seqincrement, s.seqmin, s.seqmax,
           s.seqcache, s.seqcycle
    FROM pg_sequence s JOIN pg_class c ON c.oid = s.seqrelid
    WHERE c.relnamespace = to_regnamespace(:schema)
"""

_FUNCTIONS = """
    SELECT 'function ' || p.proname || '(' || pg_get_function_identity_arguments(p.oid) || ')', pg_get_functiondef(p.oid), p.proconfig, p.proacl::text
    FROM pg_proc p WHERE p.pronamespace = to_regnamespace(:schema)
"""

_TRIGGERS = """
    SELECT 'trigger ' || t.tgname, pg_get_triggerdef(t.oid)
    FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
    WHERE c.relnamespace = to_regnamespace(:schema) AND NOT t.tgisinternal
"""


def tables(connection: Connection, schema: str = "sa_jobqueue") -> Definitions:
    """What the models can say: tables, columns, defaults, constraints, indexes, storage options."""
    return _read(connection, schema, _TABLES, _COLUMNS, _NAMES, _CONSTRAINTS, _INDEXES)


def everything(connection: Connection, schema: str = "sa_jobqueue") -> Definitions:
    """The tables, and what only migrations make: sequences, functions, triggers."""
    return tables(connection, schema) | _read(connection, schema, _SEQUENCES, _FUNCTIONS, _TRIGGERS)


def differences(left: Definitions, right: Definitions) -> dict[str, tuple[Any, Any]]:
    return {
        name: (left.get(name), right.get(name))
        for name in left.keys() | right.keys()
        if left.get(name) != right.get(name)
    }


def _read(connection: Connection, schema: str, *queries: str) -> Definitions:
    quoted = '"' + schema.replace('"', '""') + '"'
    prefixes = (f"{quoted}.", f"{schema}.")
    found: Definitions = {}
    for query in queries:
        for name, *values in connection.execute(text(query), {"schema": quoted}):
            assert name not in found
            found[name] = [_without(prefixes, value) for value in values]
    return found


def _without(prefixes: tuple[str, ...], value: object) -> object:
    if isinstance(value, list):
        return sorted(value) if all("=" in str(item) for item in value) else value
    if not isinstance(value, str):
        return value
    for prefix in prefixes:
        value = value.replace(prefix, "")
    return value
