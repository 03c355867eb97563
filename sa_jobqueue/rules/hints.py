"""What to write here for the words of other queues, for the errors about them. It is imported with the first such error.

>>> hint("countdown", "send")
'write send.options(delay=3), in seconds or as a timedelta'
>>> hint("max_retries", "send")
'write @task(max_attempts=4) or send.options(max_attempts=4), which counts the first attempt, too'
>>> hint("colour", "send")
''
"""

from __future__ import annotations

from collections.abc import Iterable

#: The options of a job, and those that only a task has.
# fmt: off
JOB = frozenset({"queue", "priority", "run_at", "delay", "max_attempts", "tags", "meta", "unique", "expires_at", "expires_in",
    "deadline", "key", "units", "keys", "debounce", "max_wait", "subject", "columns", "after", "on_failure", "on_success"})
TASK = frozenset({"name", "aliases", "retry", "timeout", "retain", "archive", "record", "keep_logs",
    "rescue", "executor", "memory_limit", "limits", "breaker", "steps", "dry_run", "batch", "version", "registry"})
# fmt: on

_ADD = "write session.add(enqueue({}, ...)), and commit"
_DELAY = "write {}.options(delay=3), in seconds or as a timedelta"
_DUE = "write {}.options(run_at=...), a datetime with a time zone"
_ATTEMPTS = "write @task(max_attempts=4) or {}.options(max_attempts=4), which counts the first attempt, too"
_RETRY = "leave it out: every exception is tried again, ten attempts in all, but for those of @task(retry=RetryPolicy(no_retry=...))"
_UNIQUE = 'write {}.options(unique=Unique("key")); the id of a job is the database\'s'
_SCHEDULE = 'write default_registry.schedule("0 3 * * *", {}), or with the registry of your own'
_CONTEXT = "annotate the first parameter of {} with JobContext"
_WORKFLOW = "build a Workflow: w = Workflow(name); w.add({}, ...)"
_TIMEOUT = '@task(timeout=60); with executor="process" the handler is killed then'

#: Celery, Dramatiq, Huey, Procrastinate, RQ.
_WORDS = {
    "_sa_instance_state": _ADD,
    "ignore_result": "leave it out: results are kept only with @task(record=True)",
    "apply": "call it, {}(...), to run it here and now",
    "apply_async": _ADD,
    "defer": _ADD,
    "defer_async": _ADD,
    "delay": _ADD,
    "enqueue": _ADD,
    "perform_async": _ADD,
    "send": _ADD,
    "send_with_options": _ADD,
    "configure": "write {}.options(...)",
    "chunks": _WORKFLOW,
    "s": _WORKFLOW,
    "si": _WORKFLOW,
    "signature": _WORKFLOW,
    "starmap": _WORKFLOW,
    "autoretry_for": _RETRY,
    "retry_on": _RETRY,
    "retries": _ATTEMPTS,
    "max_retries": _ATTEMPTS,
    "retry": "raise Retry(60) in the handler, or execute retry_jobs(Job.id == ...)",
    "bind": _CONTEXT,
    "pass_context": _CONTEXT,
    "countdown": _DELAY,
    "schedule_in": _DELAY,
    "cron": _SCHEDULE,
    "schedule": _SCHEDULE,
    "eta": _DUE,
    "schedule_at": _DUE,
    "expires": "write {}.options(expires_in=60) or expires_at=...",
    "headers": "write {}.options(meta={{...}})",
    "job_id": _UNIQUE,
    "lock": "write {}.options(key=...) and @task(limits=Limits(per_key=KeyLimits(running=1)))",
    "queueing_lock": _UNIQUE,
    "queue_name": 'write {}.options(queue="mail") or @task(queue="mail")',
    "rate_limit": "write @task(limits=Limits(rate=Rate(10, per=60)))",
    "soft_time_limit": f"write {_TIMEOUT}",
    "task_id": _UNIQUE,
    "time_limit": f"write {_TIMEOUT}",
}


def hint(word: str, task: str) -> str:
    """What to write for an option of this name; "" if the word is not known."""
    if word in JOB:
        return f"write {task}.options({word}=...)"
    if word in TASK:
        return f"write @task({word}=...)"
    return hint_of_method(word, task)


def hint_of_method(word: str, task: str) -> str:
    """What to write for a method of this name; "" if the word is not known."""
    return _WORDS.get(word, "").format(task)


def unknown_option(word: str, task: str, takes: Iterable[str]) -> str:
    """The error message for an option that a function does not take."""
    return f"unknown option {word}: {hint(word, task) or 'the options are ' + ', '.join(takes)}"
