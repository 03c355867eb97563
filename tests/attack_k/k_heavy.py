from __future__ import annotations
import os, sys, time, threading, ctypes, signal, logging, math, decimal, datetime
from typing import Any
from sqlalchemy import text
from sa_jobqueue import Registry, task, JobContext, RetryPolicy
registry = Registry()
NEVER = RetryPolicy(no_retry=(BaseException,))
SOON = RetryPolicy(base=0.05, jitter=0)
class BadStr(Exception):
    def __str__(self): raise RuntimeError("no str")
    def __repr__(self): raise RuntimeError("no repr")
class BadBase(BaseException):
    pass
def make(kind: str) -> Any:
    if kind == "nan": return float("nan")
    if kind == "inf list": return [1.0, float("inf")]
    if kind == "decimal": return decimal.Decimal("1.5")
    if kind == "decimalnan": return decimal.Decimal("NaN")
    if kind == "datetime": return datetime.datetime(2020,1,1, tzinfo=datetime.timezone.utc)
    if kind == "bytes": return b"\xff\x00a"
    if kind == "set": return {1,2}
    if kind == "rec": 
        a: list = []; a.append(a); return a
    if kind == "recd":
        d: dict = {}; d["d"] = d; return d
    if kind == "surr": return "\ud800"
    if kind == "nul": return "a\0b"
    if kind == "nulkey": return {"a\0": 1}
    if kind == "intkey": return {1: 2}
    if kind == "huge": return "x" * 100_000_000
    if kind == "hugelist": return list(range(5_000_000))
    if kind == "bigint": return 10**5000
    if kind == "obj": return object()
    if kind == "gen": return (i for i in range(3))
    if kind == "deep":
        a = []
        for _ in range(100000): a = [a]
        return a
    if kind == "deep150":
        a = []
        for _ in range(150): a = [a]
        return a
    if kind == "exc": return ValueError("x")
    if kind == "class": return int
    if kind == "tuplekey": return {(1,2): 3}
    if kind == "coroutine":
        async def f(): return 1
        return f()
    if kind == "none": return None
    if kind == "1mb": return "x" * (1_048_576 - 2)
    raise KeyError(kind)
KINDS = ["nan","inf list","decimal","decimalnan","datetime","bytes","set","rec","recd","surr","nul","nulkey","intkey","huge","hugelist","bigint","obj","gen","deep","deep150","exc","class","tuplekey","coroutine","none","1mb"]

@task(registry=registry, name="child_result", executor="process", record=True, retry=NEVER)
def child_result(kind: str) -> Any: return make(kind)
@task(registry=registry, name="sync_result", record=True, retry=NEVER)
def sync_result(kind: str) -> Any: return make(kind)
@task(registry=registry, name="session_result", record=True, retry=NEVER)
def session_result(ctx: JobContext, kind: str) -> Any:
    ctx.session.execute(text("select 1")); return make(kind)
@task(registry=registry, name="async_result", record=True, retry=NEVER)
async def async_result(kind: str) -> Any: return make(kind)
@task(registry=registry, name="unrecorded", retry=NEVER)
def unrecorded(kind: str) -> Any: return make(kind)

@task(registry=registry, name="end", executor="process", retry=NEVER, keep_logs=True, timeout=20, memory_limit=300*2**20)
def end(ctx: JobContext, how: str) -> Any:
    if how == "sysexit": sys.exit(3)
    if how == "sysexit0": sys.exit()
    if how == "sysexitstr": sys.exit("bye \ud800 \0")
    if how == "os_exit0": os._exit(0)
    if how == "abort": os.abort()
    if how == "badstr": raise BadStr()
    if how == "badbase": raise BadBase("base \0 \ud800")
    if how == "kbd": raise KeyboardInterrupt
    if how == "genexit": raise GeneratorExit
    if how == "surr": raise ValueError("\ud800 \0 x")
    if how == "hugeexc": raise ValueError("x"*50_000_000)
    if how == "group": raise ExceptionGroup("g", [ValueError(1), BadStr()])
    if how == "recursion":
        def f(): f()
        f()
    if how == "memory":
        b = bytearray(10**9); time.sleep(5); return
    if how == "memoryfast":
        x = []
        while True: x.append(bytearray(10**7))
    if how == "hang":
        ctypes.CDLL(None).pause() if False else ctypes.PyDLL(None).sleep(1000)
    if how == "logs":
        for i in range(10_000): ctx.logger.info("line %d", i)
    if how == "badlogs":
        ctx.logger.info("nul \0 surrogate \ud800"); ctx.logger.info("%d", "x"); ctx.logger.info("%s", BadStr()); ctx.logger.info(BadStr()); ctx.logger.info("x"*10_000_000); ctx.logger.info("fin", extra={"o": BadStr()})
    if how == "stdout":
        for i in range(1000): print("x"*1000)
        sys.stdout.flush()
    if how == "closefds":
        os.closerange(3, 256)
    if how == "closestd":
        os.closerange(0, 3)
    if how == "chdir":
        os.chdir("/"); 
    if how == "signal": signal.alarm(1); time.sleep(3)
    if how == "sigstop": os.kill(os.getpid(), signal.SIGSTOP)
    if how == "thread":
        def go():
            for _ in range(200):
                ctx.progress(0.7, "after"); ctx.logger.info("after"); time.sleep(0.005)
        threading.Thread(target=go).start()
    if how == "excthread":
        def go():
            time.sleep(0.1); raise BadStr()
        threading.Thread(target=go, daemon=True).start()
    if how == "removehandlers":
        for h in logging.getLogger().handlers[:]: logging.getLogger().removeHandler(h)
        logging.disable(logging.CRITICAL)
    if how == "warn":
        import warnings; warnings.warn("hey")
    return None
HOWS = ["sysexit","sysexit0","sysexitstr","os_exit0","abort","badstr","badbase","kbd","genexit","surr","hugeexc","group","recursion","memory","memoryfast","hang","logs","badlogs","stdout","closefds","closestd","chdir","signal","sigstop","thread","excthread","removehandlers","warn"]

@task(registry=registry, name="after", executor="process", retry=NEVER)
def after() -> None: ...
