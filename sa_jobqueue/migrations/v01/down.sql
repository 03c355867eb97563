-- What takes version 1 away.

DROP FUNCTION {schema}.drop_archive_month(integer);
DROP FUNCTION {schema}.make_archive_months(timestamptz[]);
DROP TABLE {schema}.archived_task;
DROP TABLE {schema}.archived_job;

DROP TABLE {schema}.audit;

DROP FUNCTION {schema}.resume_waiting(integer);
DROP TABLE {schema}.inbox;
DROP TABLE {schema}.wait;
DROP TABLE {schema}.signal;
DROP FUNCTION {schema}.signal_sent();
DROP TABLE {schema}.step;

DROP FUNCTION {schema}.resume_workflows(bigint[]);
DROP FUNCTION {schema}.pause_workflows(bigint[]);
DROP FUNCTION {schema}.retry_workflow(bigint, bigint);
DROP FUNCTION {schema}.cancel_workflows(bigint[], text);
DROP FUNCTION {schema}.take_back_children(bigint[]);

DROP FUNCTION {schema}.advance(bigint[], bigint[], integer);
DROP FUNCTION {schema}.fire_callbacks(bigint[], text);

DROP FUNCTION {schema}.cancel_members(bigint[], bigint[], text, text);
DROP FUNCTION {schema}.add_members(bigint, boolean, text[], text[], text[], smallint[], smallint[], text[], text[], text[], text[], text[], text[], smallint[],
    text[], text[], text[], smallint[], integer[], integer[], bigint[], text[], integer[], integer[], integer[], bigint, integer[]);
DROP FUNCTION {schema}.wake_queues(text[]);
DROP FUNCTION {schema}.tell_workflows();
DROP TABLE {schema}.workflow_event;
DROP TABLE {schema}.workflow_callback;
DROP TABLE {schema}.workflow_join;
DROP TABLE {schema}.workflow_dependency;
DROP TABLE {schema}.workflow;

DROP FUNCTION {schema}.pick_limited(
    text[], integer[], text[], integer[], double precision[], bigint[], text[], text[], bigint, bigint[], integer, boolean, jsonb, pg_snapshot);
DROP FUNCTION {schema}.drop_waiting(text, text, text, text, integer, bigint[]);
DROP FUNCTION {schema}.ready_keys(text, text, text, integer);
DROP FUNCTION {schema}.permits_freed(integer);
DROP FUNCTION {schema}.further_full(bigint);
DROP FUNCTION {schema}.further_correct(bigint, bigint, jsonb);
DROP FUNCTION {schema}.further_used(bigint[], timestamptz);
DROP FUNCTION {schema}.further_waits(bigint[], bigint[], bigint[], timestamptz, text[]);
DROP FUNCTION {schema}.further_rates(bigint[], boolean);
DROP FUNCTION {schema}.other_keys_running(boolean);
DROP FUNCTION {schema}.other_keys(jsonb);
DROP FUNCTION {schema}.rate_owed(timestamptz, timestamptz, double precision, timestamptz, integer, double precision);

DROP TABLE {schema}.job_limit;
DROP TABLE {schema}.job_key;
DROP TABLE {schema}.limit_state;
DROP FUNCTION {schema}.tell_breakers(bigint[], boolean[], boolean[], integer[], double precision[], double precision[]);
DROP FUNCTION {schema}.forget_breakers();
DROP FUNCTION {schema}.set_breaker(text, text, double precision, text);
DROP FUNCTION {schema}.lock_breakers(text[]);
DROP FUNCTION {schema}.limit_gone();
DROP FUNCTION {schema}.limit_queues(text[]);
DROP FUNCTION {schema}.limit_changed();
DROP FUNCTION {schema}.limits_changed(bigint);
DROP SEQUENCE {schema}.gate_limit;

DROP TABLE {schema}.backlog;
DROP TABLE {schema}.stat;

DROP FUNCTION {schema}.tell_ended(bigint[]);
DROP FUNCTION {schema}.any_awaited();
DROP SEQUENCE {schema}.gate_end;
DROP TABLE {schema}.awaited;

DROP FUNCTION {schema}.enqueue_ticks(bigint[], double precision[], integer[], double precision[]);
DROP TABLE {schema}.schedule;
DROP FUNCTION {schema}.schedule_changed();

DROP TABLE {schema}.job_log;
DROP TABLE {schema}.job_progress;

DROP TRIGGER job_unique ON {schema}.job;
DROP FUNCTION {schema}.job_unique();
DROP FUNCTION {schema}.hold_queued(bigint, boolean);
DROP FUNCTION {schema}.take_key(bigint, jsonb);
DROP TABLE {schema}.unique_key;

DROP TRIGGER job_due ON {schema}.job;
DROP TRIGGER job_wake ON {schema}.job;
DROP FUNCTION {schema}.job_wake();
DROP FUNCTION {schema}.tell_workers(oid);
DROP SEQUENCE {schema}.gate_any;
DROP SEQUENCE {schema}.gate_0;
DROP SEQUENCE {schema}.gate_1;
DROP SEQUENCE {schema}.gate_2;
DROP SEQUENCE {schema}.gate_3;
DROP SEQUENCE {schema}.gate_4;
DROP SEQUENCE {schema}.gate_5;
DROP SEQUENCE {schema}.gate_6;
DROP SEQUENCE {schema}.gate_7;
DROP SEQUENCE {schema}.gate_8;
DROP SEQUENCE {schema}.gate_9;
DROP SEQUENCE {schema}.gate_10;
DROP SEQUENCE {schema}.gate_11;
DROP SEQUENCE {schema}.gate_12;
DROP SEQUENCE {schema}.gate_13;
DROP SEQUENCE {schema}.gate_14;
DROP SEQUENCE {schema}.gate_15;

DROP FUNCTION {schema}.complete_member(bigint, bigint, double precision, jsonb);
DROP FUNCTION {schema}.complete_member(bigint, bigint, double precision);
DROP FUNCTION {schema}.complete_job(bigint, bigint, double precision, jsonb);
DROP FUNCTION {schema}.complete_job(bigint, bigint, double precision);
DROP FUNCTION {schema}.only_operators();
DROP FUNCTION {schema}.follow_up(bigint);
DROP FUNCTION {schema}.refuse_argument(text);
DROP FUNCTION {schema}.due_at(text);

DROP TABLE {schema}.job;
DROP TABLE {schema}.worker;
DROP TABLE {schema}.uptime;
