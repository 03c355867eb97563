from __future__ import annotations
import threading, json
from concurrent.futures import ThreadPoolExecutor
import pytest
from sqlalchemy import Engine, create_engine, text, NullPool, StaticPool
from sqlalchemy.orm import Session
from sa_jobqueue import wait_for, Job, enqueue, JobStatus
from tests.support.awaiting import running, awaited
from tests.support.databases import connect
from tests.support.factory import make_job, unfolding
from tests.support.waiting import wait_until


@pytest.fixture
def other_waiter(engine):
    """A good waiter on the same engine"""
    good = running(engine)
    pool = ThreadPoolExecutor(4)
    f = pool.submit(wait_for, engine, good, timeout=20)
    wait_until(lambda: good in awaited(engine))
    def finish():
        with engine.begin() as c:
            c.execute(text("UPDATE sa_jobqueue.job SET status='completed', finished_at=now(), purge_at=now()+interval '1 day' WHERE id=:i"), {"i": good})
        return f.result(20)
    yield finish
    pool.shutdown()

@pytest.mark.parametrize("bad", [2**63, -1, 0, -2**63-1, 2**200])
def test_bad_id(engine, other_waiter, bad):
    try:
        print("ANSWER", wait_for(engine, bad, timeout=5))
    except Exception as e:
        print("ERR", type(e), str(e)[:300])
    assert other_waiter().status == JobStatus.COMPLETED

POISON = {
 "deep": "(repeat('[', 900) || repeat(']', 900))::jsonb",
 "deep5000": "(repeat('[', 5000) || repeat(']', 5000))::jsonb",
 "bigint": "jsonb_build_object('n', (repeat('9', 6000))::numeric)",
 "unfold": unfolding(9000),
}
@pytest.mark.parametrize("name", POISON)
@pytest.mark.parametrize("col", ["result", "errors"])
def test_poison(engine, other_waiter, name, col):
    with engine.begin() as c:
        bad = make_job(c, "completed")
        e = POISON[name]
        if col == "errors": e = f"jsonb_build_array({e})"
        c.execute(text(f"UPDATE sa_jobqueue.job SET {col}={e} WHERE id={bad}"))
    try:
        print("ANSWER", str(wait_for(engine, bad, timeout=5))[:300])
    except BaseException as e:
        print("ERR", type(e), str(e)[:300])
    assert other_waiter().status == JobStatus.COMPLETED

@pytest.mark.parametrize("kw", [dict(isolation_level="SERIALIZABLE"), dict(isolation_level="REPEATABLE READ"), dict(isolation_level="AUTOCOMMIT"), dict(poolclass=NullPool), dict(poolclass=StaticPool), dict(pool_size=1, max_overflow=0),
  dict(connect_args={"options": "-c default_transaction_read_only=on"}), dict(connect_args={"options": "-c statement_timeout=50"}), dict(connect_args={"options": "-c idle_session_timeout=300"}), dict(connect_args={"options":"-c idle_in_transaction_session_timeout=100 -c lock_timeout=10"}),
  dict(execution_options={"isolation_level":"SERIALIZABLE", "postgresql_readonly": True}), dict(execution_options={"postgresql_readonly": True}), dict(execution_options={"isolation_level":"SERIALIZABLE", "postgresql_deferrable": True,"postgresql_readonly": True})], ids=str)
def test_engines(engine, url, kw, caplog):
    mine = create_engine(url, **kw)
    ids = [running(engine) for _ in range(50)]
    with ThreadPoolExecutor(50) as pool:
        fs = [pool.submit(wait_for, mine, i, timeout=15) for i in ids]
        import time; time.sleep(1.5)
        with engine.begin() as c:
            c.execute(text("UPDATE sa_jobqueue.job SET status='completed', finished_at=now(), purge_at=now()+interval '1 day'"))
        t=time.monotonic()
        ends = [f.result() for f in fs]
        print("TOOK", time.monotonic()-t)
    print("LOG", [r.getMessage()[:200] for r in caplog.records])
    mine.dispose()
