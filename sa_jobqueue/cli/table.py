"""What the command line says of its commands before it loads them; written by `python -m tests.support.command_table`."""

from __future__ import annotations

#: What the help of a group says of each command.
FIRST_LINES = {
    "demo": "Index a code base with jobs, kill a worker in the middle, and prove that nothing is lost and nothing done twice.",
    "work": "Run a worker: claim jobs of some queues and run their handlers.",
    "enqueue": "Enqueue one job. Print its id, and describe the job on stderr.",
    "signal": "Send a signal to a handler that waits, or will wait, in ctx.wait_signal(NAME). Print its id.",
    "list": "List jobs, newest first.",
    "show": "Show one job: why it waits, its arguments, times, progress, steps, every attempt with its error, its last log lines.",
    "why": "Explain why a job is not running, which worker runs it, or how it ended.",
    "errors": "Group failed jobs by task, error class and first line of the message, largest groups first.",
    "stats": "Count the jobs of each queue by status; with --since show how jobs ended, how long they ran and waited.",
    "top": "Watch queues, tasks, workers and failed jobs, live.",
    "workers": "The worker processes: list them, and set the slots of a running worker.",
    "workers list": "List the worker processes, with their memory and the lag of their event loops.",
    "workers set": "Set the slots of a running worker, until its process ends: a process that takes its place begins with its own options.",
    "doctor": "Find problems of the queue and its database, and what to do about them.",
    "alive": "Report by the exit code whether worker processes are alive, for probes.",
    "metrics": "Serve metrics of the database to Prometheus: backlog, age, cleanup, sizes, vacuum, snapshots, locks, connections.",
    "dashboard": "Serve the dashboard: pages about jobs, queues, workers, errors and limits, with buttons that act on them.",
    "retry": "Run jobs again, now.",
    "cancel": "Cancel jobs; running ones are asked to stop.",
    "discard": "Give up waiting jobs: they end as failed.",
    "prune": "Delete finished jobs.",
    "release": "Take running jobs from their workers: they are queued again, in their place, and spend no attempt.",
    "edit": "Change the arguments, queue, priority or time of jobs that are not running.",
    "copy": "Enqueue a copy of each of these jobs, in whatever state they are. Print the ids of the copies.",
    "fork": "Enqueue a new job that repeats an ended job from a recorded step on. Print the new job's id.",
    "drain": "Ask worker processes to drain, as SIGTERM does, from any machine: they claim no more jobs, let running jobs finish, and end.",
    "pause": "Pause a queue, a task, or one key of it: none of its jobs start until it is resumed, even after a deployment.",
    "resume": "Resume a paused queue, a task, or one key of it.",
    "migrate": "Make the tables, or upgrade them to this release.",
    "grants": "Print the GRANTs that a role needs: to enqueue, work, wait for jobs, make schedules, read or administer.",
    "bench": "Measure the queue on your own database: drain, steady, enqueue.",
    "bench drain": "Fill a queue with jobs that do nothing and time how fast workers empty it.",
    "bench steady": "Enqueue at a fixed rate and show how long jobs wait, and how long they take to complete.",
    "bench enqueue": "Show how fast jobs can be enqueued: one by one, in bulk, and by many clients at once.",
    "schedule": "Jobs at set times: list, make, pause and run schedules.",
    "schedule list": "List schedules: the next time, the last job, and why a schedule is paused or cannot be used.",
    "schedule next": "Show the next times of a schedule, in its own zone and in UTC.",
    "schedule add": "Make a schedule, and print its name.",
    "schedule pause": "Pause schedules: they enqueue nothing until they are resumed, even if a new release is deployed meanwhile.",
    "schedule resume": "Resume paused schedules, from now on: the ticks of the pause are left out.",
    "schedule run": "Enqueue a job of a schedule now, in addition to its ticks, even if it is paused. Print the job's id.",
    "schedule backfill": "Enqueue a job for each tick of a range of time that has none.",
    "schedule remove": "Delete schedules. Their jobs stay.",
    "workflow": "Graphs of jobs that wait for each other: show, cancel, retry and pause workflows.",
    "workflow list": "List workflows, newest first, with their jobs by status.",
    "workflow show": "Show one workflow as a tree: each job below the last of its parents.",
    "workflow cancel": "Cancel workflows: waiting jobs are cancelled, running jobs are asked to stop.",
    "workflow retry": "Retry the failed and cancelled jobs of a workflow. Each job waits for its parents again.",
    "workflow pause": "Pause workflows: no more of their jobs start. Running jobs go on.",
    "workflow resume": "Resume paused workflows.",
    "limits": "Limits on how many jobs run at once and how fast they start: of a queue, a task, or each key.",
    "limits list": "List limits, pauses and open breakers of queues, of tasks, and of keys that have their own, with the running and waiting jobs.",
    "limits set": 'Change the given limits; the others stay. "none" removes a limit.',
    "limits remove": "Remove limits that `limits set` has set: the limits that code declares apply again. A pause stays.",
    "limits open": "Open the breaker of a task, or of one key of it: no job starts; then one job probes, and closes or opens the breaker.",
    "limits close": "Close the breaker of a task, or of one key of it: its jobs start again.",
    "secrets": "Keys of secret arguments: make a key, and encrypt rows with a new key.",
    "secrets new-key": "Print a new key for SecretKeys: 32 random bytes in base64.",
    "secrets rotate": "Encrypt the secret arguments of jobs, schedules and callbacks of workflows with the current key.",
    "embedded": "The embedded PostgreSQL: status, stop, path.",
    "embedded status": "Show whether the server runs, and where its files are. Exit code 3 if it does not run.",
    "embedded stop": "Stop the server and end all its connections. Its data stays; migrate, enqueue or work start it again.",
    "embedded path": "Print the folder with its data, programs and log.",
}

#: The keys of [tool.sa_jobqueue] in pyproject.toml, and those that may have several values.
SETTINGS = frozenset((
    "app", "archive_months", "buffer", "child_grace", "database_url", "debug", "embedded_dir", "grace", "lease", "listen",
    "listen_url", "log_format", "log_jobs", "log_level", "max_active_connections", "max_child_jobs", "max_jobs", "max_lock_waits",
    "max_memory", "max_replication_lag", "max_rescues", "max_snapshot_age", "metrics_host", "metrics_port", "pin", "poll",
    "pooled", "processes", "queue", "reload", "schema", "session_idle_timeout",
))  # fmt: skip
SEVERAL = frozenset(("app", "queue"))

#: `list_workers()` as text, with what `alive` reads of it.
WORKERS = """SELECT {schema}.worker.id, {schema}.worker.host, {schema}.worker.pid, CAST(EXTRACT(epoch FROM now() - {schema}.worker.seen_at) AS FLOAT) AS unseen, EXTRACT(epoch FROM now() - {schema}.worker.seen_at) > 60.0 OR (SELECT count(*) AS count_1
FROM {schema}.job
WHERE {schema}.job.status = 'running' AND {schema}.job.worker = CAST({schema}.worker.id AS TEXT) AND {schema}.job.lease_expires_at <= now()) > 0 AS stale
FROM {schema}.worker ORDER BY {schema}.worker.started_at, {schema}.worker.id
"""
