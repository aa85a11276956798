-- The tables of one shard. Readable with the sqlite3 shell after a clean stop:
--   select * from job_list;
-- Immutable and mutable parts of a job live apart, so a change of state rewrites a
-- hundred bytes and never the payload. A job without a row in `states` is as it was
-- accepted: waiting, or delayed if it has a run_at; its place in line is its seq, or -seq if its
-- options say lifo. A job whose tombstone says completed is
-- completed, whatever its row in `states` says. `checksum` and the clock's `digest`
-- are reserved and NULL for now.

CREATE TABLE meta (
    key   TEXT PRIMARY KEY,
    value
) WITHOUT ROWID;

-- One row, rewritten by every commit: its number, and the last acceptance number given out.
CREATE TABLE clock (
    one    INTEGER PRIMARY KEY CHECK (one = 1),
    lsn    INTEGER NOT NULL,
    seq    INTEGER NOT NULL,
    digest BLOB
);

CREATE TABLE queues (
    number INTEGER PRIMARY KEY,
    name   TEXT NOT NULL
);

-- What differs from the defaults, as a msgpack map (pyq/settings.py).
CREATE TABLE settings (
    queue    INTEGER PRIMARY KEY,
    settings BLOB NOT NULL
);

-- Leases that the rate limit of a queue counted when it last granted one.
CREATE TABLE windows (
    queue      INTEGER PRIMARY KEY,
    leases     INTEGER NOT NULL,
    granted_at INTEGER NOT NULL
);

-- Rows for other shards that they have not confirmed yet, numbered without gaps per target.
CREATE TABLE mail (
    target  INTEGER NOT NULL,
    number  INTEGER NOT NULL,
    kind    TEXT NOT NULL,
    id      BLOB NOT NULL,
    verdict INTEGER NOT NULL,
    error   TEXT NOT NULL,
    PRIMARY KEY (target, number)
) WITHOUT ROWID;

-- Last number ever sent to another shard, and last one applied of what came from it.
CREATE TABLE links (
    shard    INTEGER PRIMARY KEY,
    sent     INTEGER NOT NULL,
    received INTEGER NOT NULL
);

-- Jobs of this shard that jobs of other shards depend on.
CREATE TABLE watchers (
    id    BLOB NOT NULL,
    shard INTEGER NOT NULL,
    PRIMARY KEY (id, shard)
) WITHOUT ROWID;

-- Unique keys held for a time. Those held until the job ends follow from the jobs.
CREATE TABLE timed_keys (
    queue  INTEGER NOT NULL,
    key    TEXT NOT NULL,
    id     BLOB NOT NULL,
    seq    INTEGER NOT NULL,
    until  INTEGER NOT NULL,
    PRIMARY KEY (queue, key)
) WITHOUT ROWID;

-- Schedules, those removed of late too: what was said of them. `times` (pyq/cron.py) and
-- `options` (pyq/options.py) are msgpack maps of what differs from the defaults.
CREATE TABLE schedules (
    name       TEXT PRIMARY KEY,
    queue      TEXT NOT NULL,
    job        TEXT NOT NULL,
    paused     INTEGER NOT NULL,
    changed_at INTEGER NOT NULL,
    anchor_at  INTEGER NOT NULL,
    since      INTEGER NOT NULL,
    removed_at INTEGER NOT NULL,
    times      BLOB NOT NULL,
    options    BLOB NOT NULL,
    payload    BLOB NOT NULL
) WITHOUT ROWID;

-- ... and how far they have come: rewritten with each tick, so it stands apart.
CREATE TABLE ticks (
    name          TEXT PRIMARY KEY,
    last_tick     INTEGER NOT NULL,
    fired_count   INTEGER NOT NULL,
    skipped_count INTEGER NOT NULL,
    last_job      BLOB NOT NULL
) WITHOUT ROWID;

CREATE TABLE jobs (
    seq        INTEGER PRIMARY KEY,
    id         BLOB NOT NULL,
    queue      INTEGER NOT NULL,
    name       TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    run_at     INTEGER NOT NULL,
    size       INTEGER NOT NULL,
    options    BLOB,
    checksum   INTEGER,
    payload    BLOB NOT NULL
);

CREATE TABLE states (
    seq        INTEGER PRIMARY KEY,
    state      INTEGER NOT NULL,
    ready      INTEGER NOT NULL,
    run_at     INTEGER NOT NULL,
    attempt    INTEGER NOT NULL,
    failures   INTEGER NOT NULL,
    stalls     INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    token      BLOB,
    lease_end  INTEGER,
    lease      BLOB,
    detail     BLOB,
    checksum   INTEGER
);

CREATE TABLE results (
    seq      INTEGER PRIMARY KEY,
    checksum INTEGER,
    result   BLOB NOT NULL
);

-- The dead letters of a queue, so that looking for them never reads the living.
CREATE TABLE dead (
    seq     INTEGER PRIMARY KEY,
    queue   INTEGER NOT NULL,
    died_at INTEGER NOT NULL,
    reason  TEXT NOT NULL
);
CREATE INDEX dead_by_acceptance ON dead (queue, seq);
CREATE INDEX dead_by_age ON dead (queue, died_at, seq, reason);

-- Of logs, the newest of each job.
CREATE TABLE lines (
    seq     INTEGER NOT NULL,
    number  INTEGER NOT NULL,
    at      INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    text    TEXT NOT NULL,
    PRIMARY KEY (seq, number)
) WITHOUT ROWID;

-- Ids are UUIDv7, so this tree grows at its right edge, and the oldest are the smallest.
CREATE TABLE tombstones (
    id       BLOB PRIMARY KEY,
    verdict  INTEGER NOT NULL,
    ended_at INTEGER NOT NULL,
    digest   BLOB NOT NULL,
    seq      INTEGER NOT NULL,
    queue    INTEGER NOT NULL,
    job_id   TEXT
) WITHOUT ROWID;
CREATE INDEX tombstones_named ON tombstones (queue) WHERE job_id IS NOT NULL;

CREATE TABLE custom_ids (
    job_id TEXT NOT NULL,
    queue  INTEGER NOT NULL,
    id     BLOB NOT NULL,
    seq    INTEGER NOT NULL,
    PRIMARY KEY (job_id, queue)
) WITHOUT ROWID;

CREATE VIEW job_list AS
SELECT jobs.seq,
       lower(hex(jobs.id)) AS id,
       custom_ids.job_id,
       queues.name AS queue,
       jobs.name,
       CASE coalesce(tombstones.verdict, states.state, iif(jobs.run_at, 2, 1))
           WHEN 1 THEN 'waiting' WHEN 2 THEN 'delayed' WHEN 3 THEN 'blocked'
           WHEN 4 THEN 'active' WHEN 5 THEN 'completed' WHEN 6 THEN 'dead' END AS state,
       coalesce(states.attempt, 0) AS attempt,
       datetime(jobs.created_at / 1000, 'unixepoch') AS created_at,
       jobs.size
FROM jobs
JOIN queues ON queues.number = jobs.queue
LEFT JOIN states USING (seq)
LEFT JOIN tombstones ON tombstones.id = jobs.id AND tombstones.verdict = 5
LEFT JOIN custom_ids USING (seq);
