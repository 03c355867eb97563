from __future__ import annotations
import sys, os, time
sys.path.insert(0, os.path.dirname(__file__))
os.environ["PYTHONPATH"] = os.environ.get("PYTHONPATH","") 
import pytest, k_heavy as H
from sqlalchemy.orm import Session
from sa_jobqueue import enqueue, Job, JobStatus
from sa_jobqueue.statements import job_logs
from tests.support.working import *
from tests.support.waiting import wait_until

@pytest.mark.parametrize("kind", H.KINDS)
def test_results(engine, url, kind, caplog):
    tasks = [H.child_result, H.sync_result, H.session_result, H.async_result, H.unrecorded]
    ids = add(engine, *(enqueue(t, kind) for t in tasks))
    with working(url, H.registry, max_rescues=2, lease=5.0) as w:
        t0=time.monotonic()
        wait_until(lambda: finished(engine, *ids), timeout=60)
        print("TOOK", time.monotonic()-t0)
        wait_until(lambda: len(services_of(w).runs) == 0)
    for t, i in zip(tasks, ids):
        j = job_of(engine, i)
        print("OUT", kind, t.name, j.status.value, str(j.result)[:60], [(e["type"], e["message"][:150]) for e in j.errors])
    for r in caplog.records:
        if r.levelname in ("ERROR","CRITICAL"): print("LOG", r.getMessage()[:300])

@pytest.mark.parametrize("how", H.HOWS)
def test_ends(engine, url, how, caplog):
    ids = add(engine, enqueue(H.end, how), enqueue(H.after))
    with working(url, H.registry, max_rescues=1, lease=3.0, queues={"default": 1}) as w:
        t0=time.monotonic()
        wait_until(lambda: finished(engine, *ids), timeout=90)
        print("TOOK", time.monotonic()-t0)
    for i in ids:
        j = job_of(engine, i)
        print("OUT", how, j.status.value, j.rescues, str(j.result)[:60], [(e["type"], e["message"][:150]) for e in j.errors])
    for r in caplog.records:
        if r.levelname in ("ERROR","CRITICAL", "WARNING"): print("LOG", r.getMessage()[:300])
    with Session(engine) as s:
        from sqlalchemy import text
        print("OUT lines", [(p, n, b) for p, n, b in s.execute(text("select part, jsonb_array_length(lines), length(lines::text) from sa_jobqueue.job_log"))], s.execute(text("select fraction, message from sa_jobqueue.job_progress")).all())
