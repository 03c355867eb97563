from __future__ import annotations
import threading, json
from concurrent.futures import ThreadPoolExecutor
import pytest
from datetime import timedelta
from sqlalchemy import Engine, create_engine, text, NullPool, StaticPool, select, insert
from sqlalchemy.orm import Session
from sa_jobqueue import wait_for, Job, enqueue, JobStatus, Unique, Registry, task, enqueue_many, Worker
from sa_jobqueue import statements as S
from tests.support.databases import connect
from tests.support.factory import make_job, unfolding, row, TABLE
from tests.support.waiting import wait_until
from tests.support.working import *
from sa_jobqueue.unique import Unique

R = Registry()
@task(registry=R, name="t")
def t(a: object = None, b: object = None) -> None: ...

def rule(**by):
    return Unique(by=tuple(by)).rule("t", json.dumps(by))

@pytest.mark.parametrize("key", ["", "x"*10**6, "a\0b", "\ud800", " ", "é"*500, "\U0001F600"*500])
def test_keys(engine, key):
    try:
        u = Unique(key)
    except Exception as e:
        print("ERR", type(e), str(e)[:200]); return
    with Session(engine) as s:
        j=[enqueue(t, 1, unique=u) if False else t.options(unique=u).enqueue(1) if hasattr(t.options(unique=u),'enqueue') else enqueue(t.options(unique=u), 1) for _ in range(2)]
        s.add_all(j); s.commit()
        print("OUT", [(x.status, x.duplicate_of) for x in j])

@pytest.mark.parametrize("key", ["", "x"*10**6, "é"*501, "\U0001F600"*500, "a\\u0000b"])
@pytest.mark.parametrize("level", ["READ COMMITTED", "SERIALIZABLE"])
def test_sql_keys(engine, key, level):
    with engine.connect().execution_options(isolation_level=level) as c:
        for _ in range(2):
            try:
                with c.begin():
                    v = json.dumps({"key": key}).replace("\\\\u", "\\u")
                    r = c.execute(text("INSERT INTO sa_jobqueue.job (task, uniqueness) VALUES ('t', cast(:u as jsonb)) RETURNING status, duplicate_of"), {"u": v}).one()
                    print("OUT", r)
            except Exception as e:
                print("ERR", type(e.orig), str(e.orig)[:150])

def test_hash():
    print("OUT", rule(a={"x":1,"y":{"b":1,"a":2}})==rule(a={"y":{"a":2,"b":1},"x":1}))
    print("OUT int float", rule(a=1)==rule(a=1.0), rule(a=-0.0)==rule(a=0), rule(a=True)==rule(a=1), rule(a=None)==rule(a="null"), rule(a=1e300)==rule(a=int(1e300)), rule(a=2**53)==rule(a=float(2**53)), rule(a=1e16)==rule(a=10**16))
    print("OUT uni", rule(a="é")==rule(a="e\u0301"))

@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
@pytest.mark.parametrize("scope", ["queued", "started", "finished", "window"])
@pytest.mark.parametrize("clash", ["skip", "replace"])
def test_holder_deleted(engine, level, scope, clash):
    u = Unique("k", scope=scope, period=3600 if scope in ("finished","window") else None, on_clash=clash)
    with Session(engine) as s:
        s.add(enqueue(t.options(unique=u), 1)); s.commit()
        s.execute(text("DELETE FROM sa_jobqueue.job")); s.commit()
    e = engine.execution_options(isolation_level=level)
    with Session(e) as s:
        j = enqueue(t.options(unique=u), 2); s.add(j); s.flush()
        print("OUT", level, scope, clash, j.status, j.duplicate_of); s.commit()

def test_retry_of_duplicate(engine, url):
    u = Unique("k")
    with Session(engine) as s:
        a, b = enqueue(t.options(unique=u), 1), enqueue(t.options(unique=u), 2)
        s.add_all([a]); s.flush(); s.add(b); s.commit()
        r = s.execute(S.retry_jobs(Job.id == b.id)).all(); s.commit()
        print("OUT held", r)
        s.execute(S.cancel_jobs(Job.id == a.id)); s.commit()
        r = s.execute(S.retry_jobs(Job.id == b.id)).all(); s.commit()
        print("OUT free", r)
        s.refresh(b); print("OUT", b.status, b.duplicate_of)
        c = enqueue(t.options(unique=u), 3); s.add(c); s.commit()
        print("OUT", c.status, c.duplicate_of == b.id)
    drain(url, R)
    with Session(engine) as s:
        print("OUT", s.execute(select(Job.status, Job.errors)).all(), s.execute(text("select * from sa_jobqueue.unique_key")).all())

def test_retry_two_duplicates_at_once(engine, url):
    u = Unique("k")
    with Session(engine) as s:
        js = [enqueue(t.options(unique=u), i) for i in range(3)]
        s.add_all(js); s.commit()
        s.execute(S.cancel_jobs()); s.commit()
        r = s.execute(S.retry_jobs()).all(); s.commit()
        print("OUT", r, s.execute(select(Job.status, Job.id)).all(), s.execute(text("select key, job_id from sa_jobqueue.unique_key")).all())

@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_enqueue_select(engine, level):
    from sa_jobqueue import statements
    print("OUT", [n for n in dir(statements) if "enq" in n])
    e = engine.execution_options(isolation_level=level)
    with Session(e) as s:
        st = statements.enqueue_select(t.options(unique=Unique(by=("a",))), select(text("g AS a FROM generate_series(1,3) g")))
        try:
            print("OUT", s.execute(st).rowcount if False else s.execute(st)); s.commit()
            s.execute(st); s.commit()
        except Exception as x:
            print("ERR", type(x), str(x)[:300]); s.rollback()
        print("OUT", s.execute(select(Job.status, Job.args, Job.uniqueness, Job._duplicate_of)).all())

def test_window_zero_and_boundary(engine):
    for p in (0, 0.001, timedelta(days=36525), 3155760000, 3155760001, float("inf"), -1, True, "1"):
        try:
            u = Unique("k%s" % p, scope="window", period=p)
            with Session(engine) as s:
                a, b = enqueue(t.options(unique=u), 1), enqueue(t.options(unique=u), 2)
                s.add(a); s.flush(); s.add(b); s.commit()
                print("OUT", p, a.status, b.status, b.duplicate_of)
        except Exception as x:
            print("ERR", p, type(x), str(x)[:200])

def test_replace_while_claimed(engine, url):
    """a handler running; duplicates replace; started scope: the args of running?"""
    u = Unique("k", on_clash="replace")
    ev, go = threading.Event(), threading.Event()
    R2 = Registry(); seen=[]
    @task(registry=R2, name="h")
    def h(a: int) -> None:
        seen.append(a); ev.set(); go.wait(20)
    h2 = h.options(unique=u)
    with Session(engine) as s:
        a = enqueue(h2, 1); s.add(a); s.commit()
    with working(url, R2):
        ev.wait(20)
        with Session(engine) as s:
            b = enqueue(h2, 2); s.add(b); s.commit(); print("OUT", b.status, b.duplicate_of, b.errors)
        go.set()
        wait_until(lambda: finished(engine, a.id if False else 1))
    print("OUT", job_of(engine, 1).args, seen)
    with Session(engine) as s:
        print("OUT keys", s.execute(text("select * from sa_jobqueue.unique_key")).all())

def test_copy(engine, url):
    with connect(url) as c:
        with c.cursor().copy("COPY sa_jobqueue.job (task, uniqueness) FROM STDIN") as cp:
            for i in range(1000):
                cp.write_row(("t", json.dumps({"key": f"k{i%10}"})))
        print("OUT", c.execute("select status, count(*) from sa_jobqueue.job group by 1").fetchall())
