"""The triggers of `on_change(..., via="trigger")`, as SQL for a migration.

A trigger's function executes the INSERT of `enqueue_select` with the changed row as its select. So the SQL contains the task's options from the time when
the SQL was made.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.exc import CompileError, StatementError
from sqlalchemy.orm import Mapper

from ..arguments.columns import kind_of
from ..arguments.storable import load, shown
from ..errors import TaskError
from ..migrations.runner import verbatim
from ..rules.job_fields import CHANGE_DEPTH
from ..tasks.tasks import AnyTask, Task
from ..util.schema import SCHEMA
from .on_change import DEPTH_SETTING, MAX_DEPTH, Rule, rules_of
from .select import enqueue_select

# A paramstyle that does not double per cent signs.
_DIALECT = postgresql.dialect(paramstyle="named")  # type: ignore[no-untyped-call]
#: The placeholder in the INSERT for the function's variable.
_MARK = "@change_depth@"


def on_change_sql(task: AnyTask, /, *, drop: bool = False, schema: str = SCHEMA) -> list[sa.TextClause]:
    """The statements that create the triggers of a task's rules with `via="trigger"`, or that `drop` them. A migration executes them.

    The triggers contain the task's current options. After a change of the options, execute the statements again: they replace the triggers. The
    trigger's function is in the schema of the table, and runs with the rights of the role that creates it. So this role needs the right to enqueue,
    and a role that changes rows does not. `schema`: the schema of the job queue.

    Raises TaskError for a task without such rules, and for a rule that triggers do not support; OptionError or PayloadError for options
    or a key that `enqueue_select` does not support.
    """
    return [verbatim(text) for text in _statements(task, schema, drop=drop)]


def on_change_revision(task: AnyTask, down_revision: str | None, /, *, schema: str = SCHEMA) -> str:
    """The source of an Alembic revision that creates the triggers of `on_change_sql`, and drops them in its downgrade.

    `down_revision`: the id of the previous revision. The source contains the SQL, and does not import the task.
    """
    created, dropped = _statements(task, schema), _statements(task, schema, drop=True)
    return _REVISION.format(
        task=json.dumps(task.name, ensure_ascii=False),
        revision=f"on_change_{_digest(created)}",
        down_revision=repr(down_revision),
        created=_listed(created),
        dropped=_listed(dropped),
    )


def _statements(task: AnyTask, schema: str, *, drop: bool = False) -> list[str]:
    if not isinstance(task, Task):
        raise TaskError(f"the triggers are those of a task, not of {shown(task)}")
    if not (rules := rules_of(task, "trigger")):
        raise TaskError(f'task {task.name!r} has no rule on_change(..., via="trigger")')
    return [text for rule in rules for text in (_drop(rule) if drop else _create(rule, task, schema))]


#: A regular expression of PostgreSQL for the names of the triggers.
TRIGGER_NAME = "^on_change_[0-9a-f]{16}_(insert|update)$"


def trigger_names(rule: Rule) -> list[str]:
    """The names of a rule's triggers. Raises TaskError for a rule that triggers do not support."""
    return [f"{_names(rule)[2]}_{event.lower()}" for event in _conditions(rule)]


def _listed(statements: list[str]) -> str:
    return "".join(
        f"    {text!r},\n" if "\\" in text or '"""' in text else f'    """\n{text}\n""",\n' for text in statements
    )


def _digest(said: object) -> str:
    return hashlib.sha256(repr(said).encode()).hexdigest()[:16]


_REVISION = """\
# Triggers that enqueue jobs of {task} when rows change (sa_jobqueue).

import sqlalchemy as sa
from alembic import op

revision = "{revision}"
down_revision = {down_revision}
branch_labels = None
depends_on = None

CREATE = [
{created}]

DROP = [
{dropped}]


def upgrade() -> None:
    for statement in CREATE:
        op.execute(sa.text(statement.replace(":", r"\\:")))


def downgrade() -> None:
    for statement in DROP:
        op.execute(sa.text(statement.replace(":", r"\\:")))
"""


def _create(rule: Rule, task: AnyTask, schema: str) -> Iterator[str]:
    table, function, trigger = _names(rule)
    insert = _insert(rule, task, schema)
    error = (
        f"{rule}: {MAX_DEPTH} jobs in a row were enqueued by changes, each by the handler of the job before".replace(
            "'", "''"
        )
    )
    body = f"""
DECLARE
    sa_jobqueue_depth integer := coalesce(nullif(current_setting('{DEPTH_SETTING}', true), ''), '0')::integer + 1;
BEGIN
    IF sa_jobqueue_depth > {MAX_DEPTH} THEN
        RAISE EXCEPTION USING MESSAGE = '{error}';
    END IF;
    {insert};
    RETURN NULL;
END
"""
    tag = "$sa_jobqueue$"
    if tag in body:
        raise TaskError(f"{rule}: {tag} stands in the options of the task")
    yield f"CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER\nSET search_path = pg_catalog, pg_temp AS {tag}{body}{tag}"
    yield f"REVOKE ALL ON FUNCTION {function}() FROM PUBLIC"
    conditions = _conditions(rule)
    if "INSERT" not in conditions:  # as it may have been in the rule before
        yield f"DROP TRIGGER IF EXISTS {_quoted(f'{trigger}_insert')} ON {table}"
    for event, condition in conditions.items():
        name = _quoted(f"{trigger}_{event.lower()}")
        try:
            when = condition.compile(dialect=_DIALECT, compile_kwargs={"literal_binds": True})
        except (CompileError, StatementError) as failed:
            raise TaskError(f"{rule}: a value of the rule cannot be written into a trigger: {failed}") from failed
        yield f"CREATE OR REPLACE TRIGGER {name} AFTER {event} ON {table}\nFOR EACH ROW WHEN ({when}) EXECUTE FUNCTION {function}()"


def _drop(rule: Rule) -> Iterator[str]:
    table, function, trigger = _names(rule)
    for event in _conditions(rule):
        yield f"DROP TRIGGER {_quoted(f'{trigger}_{event.lower()}')} ON {table}"
    yield f"DROP FUNCTION {function}()"


def _quoted(name: str) -> str:
    return _DIALECT.identifier_preparer.quote(name)


def _names(rule: Rule) -> tuple[str, str, str]:
    """The table and the function as SQL, and the prefix of the triggers' names."""
    table, preparer = _table(rule), _DIALECT.identifier_preparer
    if isinstance(rule.column.type, sa.JSON) and not isinstance(rule.column.type, JSONB):
        raise TaskError(
            f'{rule}: the type json has no equality, so a trigger sees no change: use jsonb, or via="session"'
        )
    name = f"on_change_{_digest((rule.task.name, table.fullname, rule.column.name, rule.to, rule.from_))}"
    function = _quoted(name) if table.schema is None else f"{preparer.quote_schema(table.schema)}.{_quoted(name)}"
    return preparer.format_table(table), function, name


def _table(rule: Rule) -> sa.Table:
    mapper: Mapper[Any] = sa.inspect(rule.cls)
    table = rule.column.table
    if not isinstance(table, sa.Table) or mapper.single or table is not mapper.local_table:
        raise TaskError(
            f"{rule}: a trigger cannot tell rows of {rule.cls.__name__} from other rows of the table: declare the rule for the class that the table is of"
        )
    return table


def _conditions(rule: Rule) -> dict[str, sa.ColumnElement[bool]]:
    """The WHEN condition of each trigger, equivalent to `Rule.matches`."""
    name = _quoted(rule.column.name)
    old, new = (sa.literal_column(f"{row}.{name}", rule.column.type) for row in ("OLD", "NEW"))
    to = [] if rule.to is ... else [_is(new, rule.to)]
    found = {"UPDATE": sa.and_(new.is_distinct_from(old), *to, *([] if rule.from_ is ... else [_is(old, rule.from_)]))}
    if rule.insert and rule.from_ in (..., None) and rule.to is not None:
        found["INSERT"] = sa.and_(new.is_not(None), *to)
    return found


def _is(column: sa.ColumnElement[Any], value: Any) -> sa.ColumnElement[bool]:
    return column.is_(None) if value is None else column == sa.literal(value, column.type)


def _insert(rule: Rule, task: AnyTask, schema: str) -> str:
    parameter, table, mapper = rule.check(), _table(rule), sa.inspect(rule.cls)
    parts = [
        sa.literal_column(f"NEW.{_quoted(column.name)}", column.type)
        for key in mapper.primary_key
        for column in mapper.get_property_by_column(key).columns
        if column.table is table
    ]
    row: sa.ColumnElement[Any] = parts[0]
    if len(parts) > 1:
        try:
            row = sa.func.jsonb_build_array(*(kind_of(part.type).as_json(part) for part in parts), type_=JSONB)
        except TypeError as error:
            raise TaskError(f"{rule}: a part of the key cannot be written into a trigger: {error}") from error
    kept = {name: value for name, value in load(task.chosen.meta).items() if name != "tags"}
    deep = task.options(meta={**kept, CHANGE_DEPTH: _MARK})
    statement = enqueue_select(deep, sa.select(row.label(parameter)), job=task.registry.job)
    try:
        compiled = statement.compile(
            dialect=_DIALECT,
            schema_translate_map={SCHEMA: schema},
            render_schema_translate=True,
            compile_kwargs={"literal_binds": True},
        )
    except CompileError as error:
        raise TaskError(f"{rule}: an option of the task cannot be written into a trigger: {error}") from error
    return str(compiled).replace(f'"{_MARK}"', "' || sa_jobqueue_depth || '")
