"""The bounds of the system that others have to know: name, value, reason.

What concerns one module only stands at the top of that module.

Times are integer milliseconds, sizes bytes, unless the name says otherwise.
"""

KIB = 1024
MIB = 1024 * KIB
SECOND_MS = 1_000
HOUR_MS = 3_600 * SECOND_MS
DAY_MS = 24 * HOUR_MS

# Shape of a cluster
SLOTS = 4_096  # 12 bits: they fit into a job's id, and 64 shards divide them evenly
SHARDS_MAX = 64  # one machine; a power of two, so that a mask replaces a division

# The wire
FRAME_BYTES_MAX = 24 * MIB  # ZMQ_MAXMSGSIZE: a view with the largest payload and result
BODY_ITEMS_MAX = 10_000  # elements of one array in a body: bounds what decoding can cost
BATCH_JOBS_MAX = 1_000  # jobs in one PUSH, ACK, FAIL, RELEASE, HEARTBEAT or PULL
BATCH_BYTES_MAX = (
    4 * MIB
)  # payload bytes a client puts into one PUSH, and a shard into one PULL reply
QUEUE_NAME_MAX = 256  # characters
PULL_QUEUES_MAX = 256  # queues named by one PULL
QUEUE_NAME_BYTES_MAX = 1_024  # UTF-8 needs at most four bytes a character

# A job
NAME_MAX = 256  # characters
PAYLOAD_BYTES_MAX = 10 * MIB  # payload or result; larger things belong into a file store
JOB_ID_MAX = 512  # characters of a custom id
PRIORITY_MAX = 1_000_000  # and its negative
ATTEMPTS_MAX = 1_000
DELAY_MS_MAX = 3_650 * DAY_MS  # ten years
TIMEOUT_MS_MAX = DAY_MS
BACKOFF_BASE_MS_MAX = DAY_MS
BACKOFF_CAP_MS_MAX = 365 * DAY_MS
BACKOFF_STEPS_MAX = 100  # entries of an explicit list
BACKOFF_FACTOR_MAX = 100
ERROR_BYTES_MAX = 4 * KIB  # last error kept with a job; longer ones are cut with a mark
HISTORY_MAX = 20  # past attempts kept with a job
PROGRESS_BYTES_MAX = 4 * KIB
TTL_MS_MAX = 3_650 * DAY_MS
UNIQUE_MAX = 512  # characters of a unique key
UNIQUE_MS_MAX = 365 * DAY_MS  # a key held for a time, whatever becomes of its job
GROUP_MAX = 256  # characters
DEPENDS_MAX = 1_000  # jobs that one job waits for
FLOW_STEPS_MAX = 10_000
FLOW_DEPTH_MAX = 100
GATE_MS = 60_000  # a flow that is not all there after this is given up
DEP_TIMEOUT_MS_MAX = 3_650 * DAY_MS
OUTBOX_ROWS_MAX = 100_000  # for one other shard; then no new dependents are accepted
REWATCH_MS = 10 * 60 * SECOND_MS  # how often a shard asks again for what its jobs wait for
SETTLED_MAX = 2_000  # dependents released per turn: bounds it
TAGS_MAX = 20  # of one job
TAG_MAX = 128  # characters
META_BYTES_MAX = 4 * KIB
LOG_LINES_MAX = 1_000  # kept per job, the newest
LOG_LINE_BYTES_MAX = 1 * KIB  # longer ones are cut with a mark
WORKER_NAME_MAX = 128  # characters

# Leases
LEASE_MS_DEFAULT = 15_000  # three heartbeats of 5 s
LEASE_MS_MIN = 100
LEASE_MS_MAX = HOUR_MS
MAX_STALLS_DEFAULT = 3  # lost leases before a job is dead, reason `stalled`
TIMEOUT_GRACE_MS = 5_000  # the server ends an attempt this long after the worker should have
SWEEP_MS_MIN = 250
SWEEP_MS_MAX = 5_000
LATE_MS = 1_000  # a loop that did not turn for this long confirms no stall
ROUTER_SILENT_MS = 2_000  # a router silent for longer: leases gather no suspicion
ROUTER_GRACES_MAX = 3  # fresh lease times after router outages, per lease without a heartbeat

# Waiting
REQUEST_MS_DEFAULT = 10_000  # a request without an answer after this is UNKNOWN
REPEAT_MS_MAX = 5 * 60 * SECOND_MS  # a client repeats for at most this long
WAIT_MS_MAX = 60 * SECOND_MS  # one long poll; the client asks again
CONNECT_MS_DEFAULT = 1_000
PING_MS = 1_000

# A shard
TURN_MESSAGES_MAX = 256  # messages per turn: one transaction stays near 10 ms
TURN_JOBS_MAX = 2_000
TURN_BYTES_MAX = 4 * MIB
SYNC_MS = 10  # the oldest unsynced commit is at most this old ...
SYNC_JOBS_MAX = 10_000  # ... or this many jobs wait for the sync
PAYLOAD_CACHE_BYTES_MAX = (
    64 * MIB
)  # payloads of waiting jobs kept in memory; the rest is read from disk
COMPLETED_KEPT_DEFAULT = 1_000  # completed jobs kept per queue
COMPLETED_MS_MIN = 60_000  # no completed job is forgotten earlier
COMPLETED_KEPT_MAX = 1_000_000  # per queue: eight bytes each in memory
TOMBSTONES_MAX = 1_000_000  # per shard
TOMBSTONE_MS_MAX = 7 * DAY_MS  # also of custom ids, which are not counted
AGING_MS = 60_000  # how often a shard looks for tombstones that are too old
AGED_MAX = 10_000  # dropped per pass: bounds the turn
LINGER_BYTES_MAX = 16 * MIB  # results of jobs that are not kept, for the seconds they linger
DEAD_MAX_DEFAULT = 10_000  # dead letters of a queue before health warns, or the oldest go
DEAD_MAX = 10_000_000
TEND_MS = 5_000  # how often a shard looks after dead letters that age or retry by themselves
RETENTION_MS = 1_000  # how often a shard looks for completed jobs to forget
RETENTION_JOBS_MAX = 500  # forgotten per pass, and the next turn goes on: 4 ms in a large file
CONCURRENCY_LIMIT_MAX = 1_000_000  # leases of a queue at once
GROUP_CONCURRENCY_MAX = 1_000
RATE_MAX = 10_000  # leases per window: each is remembered while it counts
RATE_MS_MAX = DAY_MS
MAX_STALLS_MAX = 1_000
PAUSED_GROUPS_MAX = 1_000
AUTO_RETRIES_MAX = 100
EVENTS_MAX = 10_000  # kept in memory per shard
EVENTS_IDLE_MS = 10 * 60 * SECOND_MS  # nobody read for so long: no more are recorded
REMOVED_MAX = 1_000  # jobs one DRAIN, CLEAN or OBLITERATE removes: bounds the turn
PARKED_MAX = 100_000  # parked pulls, waits and heartbeats per shard
QUEUES_MAX = 200_000  # queues known to one shard
PULLERS_MAX = 100_000  # clients whose newest pull a shard remembers
WORKERS_MAX = 10_000  # workers registered with one shard
LIST_JOBS_MAX = 1_000  # jobs of one page
PAGE_ENTRIES_MAX = 500  # queues or workers of one page
REGISTRATION_CHARACTERS_MAX = 4_096  # of queue names a shard keeps about one worker
MATCHES_MAX = 100  # jobs that one custom id finds in all queues of a shard
DISK_RESERVE_BYTES = 64 * MIB  # below this much free space pushes and pulls are refused
DISK_FLOOR_BYTES = 16 * MIB  # ... and results of acks must leave this much, for the acks themselves
DISK_BALLAST_BYTES = 4 * MIB  # given back to the file system so that acks can still be committed

# Schedules
SCHEDULE_NAME_MAX = 256  # characters: it is routed as a queue is
SCHEDULES_MAX = 5_000  # of one shard
SCHEDULE_BYTES_MAX = 128 * KIB  # payload of its jobs: the shard keeps it in memory
SCHEDULES_BYTES_MAX = 64 * MIB  # ... of all schedules of one shard
SCHEDULES_PAGE_MAX = 500  # of one answer, which ends before 4 MiB of payload
EVERY_MS_MIN = SECOND_MS
TICKS_MAX = 1_000  # shown at once, and made up for after a stop
TICK_AHEAD_MS = 2_000  # a tick that is further ahead of the shard's clock is refused

# The router
OUTSTANDING_MAX = 20_000  # requests forwarded to one shard and not yet answered
OUTSTANDING_BYTES_MAX = 256 * MIB
BUSY_SHARE = 0.8  # pushes and pulls are refused from this share of the bound on
BUSY_RETRY_MS = 50

# A worker
CONCURRENCY_MAX = 1_000
GRACE_MS_DEFAULT = 30_000  # how long running handlers may finish after a stop
OUTPUT_BYTES_MAX = 1 * MIB  # of a shell job: head and tail are kept, the middle is marked
COMMAND_BYTES_MAX = 64 * KIB  # of a shell job
