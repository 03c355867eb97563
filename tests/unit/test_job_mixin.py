"""What a class of the user's must be to hold jobs; each mistake has its message, when the class is made."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from sqlalchemy import ARRAY, BigInteger, DateTime, MetaData, Text, UniqueConstraint, create_mock_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, MappedAsDataclass, mapped_column, registry
from sqlalchemy.schema import CreateTable

import sa_jobqueue
from sa_jobqueue import Enqueue, JobMixin, Registry, TaskName, companions_of, enqueue_many, jobs_relationship
from sa_jobqueue.errors import ConfigurationError, OptionError, SubjectError
from sa_jobqueue.migrations import OwnTable
from sa_jobqueue.models import Schedule


def base(**options: Any) -> Any:
    class Base(DeclarativeBase):
        metadata = MetaData(**options)

    return Base


def test_a_class_gets_our_columns_and_keeps_its_own() -> None:
    """In the schema of its metadata or its own; ours keep their names, whatever convention the application has."""
    convention = {
        "pk": "pk_%(table_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "ix": "ix_%(column_0_name)s",
    }

    class Job(JobMixin, base(schema="mixin_one", naming_convention=convention)):  # type: ignore[misc]
        __table_args__ = (UniqueConstraint("tenant_id", "id", name="of_tenant"),)
        tenant_id: Mapped[int] = mapped_column(index=True)

    made = str(CreateTable(Job.__table__))
    assert "CREATE TABLE mixin_one.job" in made
    assert {"CONSTRAINT job_pkey", "CONSTRAINT job_units_check", "CONSTRAINT of_tenant"} <= {
        " ".join(line.split()[:2]) for line in made.splitlines()
    }
    assert {one.name for one in Job.__table__.c} == {*sa_jobqueue.Job.__table__.c.keys(), "tenant_id"}
    assert {one.name for one in Job.__table__.indexes} == {
        *(one.name for one in sa_jobqueue.Job.__table__.indexes),  # type: ignore[attr-defined]
        "ix_tenant_id",
    }
    assert {one.__table__.schema for one in (Job, *(type_of for type_of in vars_of(companions_of(Job))))} == {
        "mixin_one"
    }
    assert companions_of(Job).schedule is companions_of(Job).schedule
    assert issubclass(companions_of(Job).schedule, Schedule)


def vars_of(companions: Any) -> list[Any]:
    return [getattr(companions, name) for name in companions.__slots__]


def test_another_mixin_between_may_share_columns() -> None:
    """And an abstract class on the base as well."""

    class WithTenant(JobMixin):
        tenant_id: Mapped[int | None]

    class Abstract(WithTenant, base()):  # type: ignore[misc]
        __abstract__ = True
        kind: Mapped[str | None] = mapped_column(Text)

    class Job(Abstract):
        __table_args__ = ({"schema": "mixin_two"},)

    assert {"tenant_id", "kind", "claims"} <= set(Job.__table__.c.keys())


def test_a_schema_has_the_jobs_of_one_class() -> None:
    """Also of those of two bases; and the package's has its own."""

    class First(JobMixin, base(schema="mixin_three")):  # type: ignore[misc]
        pass

    with pytest.raises(
        ConfigurationError, match=r"Second cannot hold jobs: the schema 'mixin_three' has the jobs of .*First"
    ):

        class Second(JobMixin, base(schema="mixin_three")):  # type: ignore[misc]
            pass

    with pytest.raises(ConfigurationError, match=r"'sa_jobqueue' has the jobs of sa_jobqueue.models.job.Job"):

        class Third(JobMixin, base(schema="sa_jobqueue")):  # type: ignore[misc]
            pass

    assert First.__table__.schema == "mixin_three"


def test_it_needs_a_schema() -> None:
    with pytest.raises(ConfigurationError, match=r"it needs a schema of its own.*__table_args__ = \{\"schema\""):

        class Job(JobMixin, base()):  # type: ignore[misc]
            pass


def test_create_all_does_not_make_the_bare_table() -> None:
    """Which would have no functions and triggers; the message says what does."""

    class Job(JobMixin, base(schema="mixin_bare")):  # type: ignore[misc]
        pass

    engine = create_mock_engine("postgresql+psycopg://", lambda *_: None)
    with pytest.raises(ConfigurationError) as caught:
        Job.metadata.create_all(engine, checkfirst=False)
    assert str(caught.value) == (
        "create_all() cannot make the table mixin_bare.job of Job, which has functions, triggers and tables beside it. Make it before: "
        "sa_jobqueue.migrations.OwnTable(Job).create(connection), or a revision of Alembic"
    )


def test_its_table_is_called_job() -> None:
    """The functions in the schema have that name in their text."""
    with pytest.raises(ConfigurationError, match=r"its table is called 'job' and not 'jobs'"):

        class Job(JobMixin, base(schema="mixin_four")):  # type: ignore[misc]
            __tablename__ = "jobs"


def test_the_primary_key_is_the_id() -> None:
    with pytest.raises(ConfigurationError, match=r"the primary key is `id`, and not id, tenant_id|not tenant_id, id"):

        class Job(JobMixin, base(schema="mixin_five")):  # type: ignore[misc]
            tenant_id: Mapped[int] = mapped_column(primary_key=True)


@pytest.mark.parametrize("name", ["args", "id", "is_live", "progress", "duplicate_of", "result_as"])
def test_an_attribute_of_ours_is_not_overridden(name: str) -> None:
    """Neither with another type, nor by what is no column."""
    with pytest.raises(ConfigurationError, match=rf"`{name}` is one of the queue's own attributes"):
        type("Job", (JobMixin, base(schema="mixin_six")), {name: mapped_column(BigInteger), "__module__": __name__})


def test_a_column_of_ours_is_mapped_once() -> None:
    with pytest.raises(ConfigurationError, match=r"the column 'result' of `outcome` is one of the queue's"):

        class Job(JobMixin, base(schema="mixin_seven")):  # type: ignore[misc]
            outcome: Mapped[str | None] = mapped_column("result", Text)

    with pytest.raises(ConfigurationError, match=r"the column 'duplicate_of' of `other` is one of the queue's"):

        class Another(JobMixin, base(schema="mixin_seven")):  # type: ignore[misc]
            other: Mapped[int | None] = mapped_column("duplicate_of", BigInteger)


def test_it_is_no_dataclass_and_has_no_table_of_its_own() -> None:
    class Base(MappedAsDataclass, DeclarativeBase):
        metadata = MetaData(schema="mixin_eight")

    with pytest.raises(ConfigurationError, match=r"it cannot be a dataclass"):

        class Job(JobMixin, Base):
            pass

    with pytest.raises(ConfigurationError, match=r"and no __table__"):
        type(
            "Job",
            (JobMixin, base(schema="mixin_nine")),
            {"__table__": sa_jobqueue.Job.__table__, "__module__": __name__},
        )


def test_the_mixin_comes_before_the_base() -> None:
    with pytest.raises(ConfigurationError, match=r"the mixin comes first: class Job\(JobMixin, Base\)"):

        class Job(base(schema="mixin_ten"), JobMixin):  # type: ignore[misc]
            pass


def test_the_jobs_of_a_row_are_those_of_its_annotation() -> None:
    """Else a program would look for them in another table."""
    base_of_both = base(schema="mixin_related")

    class OwnJob(JobMixin, base_of_both):  # type: ignore[misc]
        pass

    def order(name: str, **options: Any) -> Any:
        members = {
            "__tablename__": name.lower(),
            "__annotations__": {"id": Mapped[int], "jobs": Mapped[list[OwnJob]]},
            "id": mapped_column(primary_key=True),
            "jobs": jobs_relationship(**options),
        }
        return type(name, (base_of_both,), members)

    order("Order", job=OwnJob)
    base_of_both.registry.configure()
    order("Wrong")
    try:
        with pytest.raises(SubjectError) as caught:
            base_of_both.registry.configure()
    finally:
        base_of_both.registry.dispose()
    module = OwnJob.__module__
    assert str(caught.value) == (
        f"Wrong.jobs is annotated with OwnJob of {module}, and has the jobs of Job of sa_jobqueue.models.job: jobs_relationship(job=OwnJob)"
    )


def test_it_is_mapped_by_a_declarative_base() -> None:
    """Only there its constraints, its functions' schema and the checks of it come with it."""
    with pytest.raises(
        ConfigurationError, match=r"it is to be a class of a DeclarativeBase, class Job\(JobMixin, Base\)"
    ):

        @registry().mapped
        class Job(JobMixin):
            __table_args__ = ({"schema": "mixin_twelve"},)


def test_the_base_may_have_columns_of_the_same_names() -> None:
    """As bases have an id, or times: those of the mixin come first."""

    class Base(DeclarativeBase):
        id: Mapped[int] = mapped_column(primary_key=True)
        created_at: Mapped[datetime] = mapped_column()
        updated_at: Mapped[datetime | None] = mapped_column()

    class Job(JobMixin, Base):
        __table_args__ = ({"schema": "mixin_thirteen"},)

    columns = Job.__table__.c
    assert [type(columns[name].type) for name in ("id", "created_at")] == [BigInteger, DateTime]
    assert columns.created_at.server_default is not None
    assert list(columns.keys())[-1] == "subject_id" or "updated_at" in columns


def test_what_takes_a_class_of_jobs_takes_no_other() -> None:
    class Order(base(schema="mixin_ten")):  # type: ignore[misc]
        __tablename__ = "orders"
        id: Mapped[int] = mapped_column(primary_key=True)

    with pytest.raises(ConfigurationError, match=r"Enqueue\(\) takes a mapped class of jobs"):
        Enqueue(Order)
    with pytest.raises(ConfigurationError, match=r"Enqueue\(\) takes a mapped class of jobs"):
        Enqueue(JobMixin)
    with pytest.raises(ConfigurationError, match=r"job is a mapped class"):
        Registry(job=Order)
    with pytest.raises(ConfigurationError, match=r"OwnTable\(\) takes a class of yours"):
        OwnTable(Order)
    with pytest.raises(ConfigurationError, match=r"OwnTable\(\) takes a class of yours"):
        OwnTable(sa_jobqueue.Job)


def test_many_calls_fill_no_array() -> None:
    """Their values travel as one array for each column."""

    class Job(JobMixin, base(schema="mixin_eleven")):  # type: ignore[misc]
        labels: Mapped[list[str] | None] = mapped_column(ARRAY(Text))

    call = TaskName("send").options(columns={"labels": ["a"]}).call()
    with pytest.raises(OptionError, match=r"labels is an array.*session.add\(\) each job"):
        enqueue_many([call], job=Job)
    assert Enqueue(Job)(TaskName("send").options(columns={"labels": ["a"]})).labels == ["a"]
