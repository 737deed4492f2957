"""Tables and triggers of the ledger, one migration for each version. A released migration is never changed.

`PRAGMA user_version` is the number of migrations that ran. A ledger of a newer version is rejected, since its contents may have
a meaning unknown here. Changes of jobs and functions are recorded in `events` by triggers, so that no writer can omit them.
"""

# Script i migrates from version i to version i + 1. `migrate` splits a script at each `;` that ends a line, so within a
# trigger a `;` is followed by further text.
MIGRATIONS = (
    # Jobs, leases and their slices; GPUs as last seen; facts.
    """
CREATE TABLE jobs (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    name TEXT,
    gpu_model TEXT,
    state TEXT NOT NULL,
    spec TEXT NOT NULL,
    memory_bytes INTEGER NOT NULL CHECK (memory_bytes > 0),
    gpu_count INTEGER NOT NULL CHECK (gpu_count > 0),
    created_at REAL NOT NULL,
    started_at REAL,
    finished_at REAL,
    exit_code INTEGER,
    reason TEXT,
    error TEXT,
    wait_timed_out INTEGER NOT NULL DEFAULT 0,
    wait_deadline REAL,
    holder TEXT,
    supervisor TEXT,
    spawned_at REAL,
    stop_grace REAL,
    environment TEXT
) STRICT;
CREATE UNIQUE INDEX names_of_unfinished_jobs ON jobs (name)
    WHERE name IS NOT NULL AND state IN ('waiting', 'starting', 'running');
CREATE INDEX states ON jobs (state);

CREATE TABLE leases (
    job_id TEXT PRIMARY KEY REFERENCES jobs (id) ON DELETE CASCADE,
    granted_at REAL NOT NULL,
    released_at REAL,
    enforcer TEXT,
    is_advisory INTEGER NOT NULL
) STRICT;
CREATE INDEX held_leases ON leases (job_id) WHERE released_at IS NULL;

CREATE TABLE slices (
    job_id TEXT NOT NULL REFERENCES leases (job_id) ON DELETE CASCADE,
    position INTEGER NOT NULL,
    gpu_uuid TEXT NOT NULL,
    memory_bytes INTEGER NOT NULL CHECK (memory_bytes > 0),
    PRIMARY KEY (job_id, position),
    UNIQUE (job_id, gpu_uuid)
) STRICT;

CREATE TABLE gpus (
    uuid TEXT PRIMARY KEY,
    name TEXT NOT NULL,
    memory_bytes INTEGER NOT NULL,
    driver_version TEXT NOT NULL,
    is_simulated INTEGER NOT NULL,
    seen_at REAL NOT NULL
) STRICT;

CREATE TABLE facts (
    key TEXT PRIMARY KEY,
    value TEXT NOT NULL,
    written_at REAL NOT NULL
) STRICT;
""",
    # What a job held at most, and a warning about it.
    """
ALTER TABLE jobs ADD COLUMN peak_bytes INTEGER;
ALTER TABLE jobs ADD COLUMN warning TEXT;
""",
    # What a job inherits from the client besides the environment.
    """
ALTER TABLE jobs ADD COLUMN inherited TEXT;
""",
    # Owners, priorities, time shares, arrays and dependencies (`place`); the history of runs for estimates.
    """
ALTER TABLE jobs ADD COLUMN owner_uid INTEGER NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN compute_share REAL;
ALTER TABLE jobs ADD COLUMN priority INTEGER NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN is_estimated INTEGER NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN retries_out_of_memory INTEGER NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN place TEXT NOT NULL DEFAULT '{}';
ALTER TABLE jobs ADD COLUMN signature TEXT NOT NULL DEFAULT '';
ALTER TABLE jobs ADD COLUMN attempt INTEGER NOT NULL DEFAULT 1;
ALTER TABLE jobs ADD COLUMN expected_start REAL;

CREATE TABLE runs (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT,
    signature TEXT NOT NULL,
    gpu_name TEXT NOT NULL,
    job_id TEXT NOT NULL,
    owner_uid INTEGER NOT NULL,
    slice_bytes INTEGER NOT NULL,
    peak_bytes INTEGER NOT NULL,
    context_bytes INTEGER NOT NULL,
    refusals INTEGER NOT NULL,
    duration_seconds REAL NOT NULL,
    ended_at REAL NOT NULL,
    exit_code INTEGER
) STRICT;
CREATE INDEX runs_by_signature ON runs (signature, gpu_name, sequence);
""",
    # Quotas; an index of each queue, which every round reads.
    """
CREATE TABLE quotas (
    uid INTEGER PRIMARY KEY,
    memory_bytes INTEGER,
    jobs INTEGER,
    weight REAL NOT NULL
) STRICT;
CREATE INDEX queue ON jobs (gpu_model, sequence) WHERE state = 'waiting';
""",
    # What the size of a job is based on.
    """
ALTER TABLE jobs ADD COLUMN basis TEXT;
""",
    # Indexes for the few jobs with dependencies or in arrays.
    """
CREATE INDEX conditional ON jobs (sequence) WHERE state = 'waiting' AND (json_array_length(place, '$.after') > 0
    OR json_extract(place, '$.array_most_at_once') IS NOT NULL);
CREATE INDEX arrays ON jobs (json_extract(place, '$.array_id')) WHERE json_extract(place, '$.array_id') IS NOT NULL;
""",
    # The event log: triggers write it, so it also has the changes that an older pgpu makes.
    """
CREATE TABLE events (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT,
    at REAL NOT NULL,
    kind TEXT NOT NULL,
    job_id TEXT,
    owner_uid INTEGER,
    state TEXT,
    message TEXT
) STRICT;
CREATE TRIGGER newest_events AFTER INSERT ON events BEGIN
    DELETE FROM events WHERE sequence <= NEW.sequence - 10000; END;
CREATE TRIGGER job_came AFTER INSERT ON jobs BEGIN
    INSERT INTO events (at, kind, job_id, owner_uid, state)
    VALUES ((julianday('now') - 2440587.5) * 86400, 'job', NEW.id, NEW.owner_uid, NEW.state); END;
CREATE TRIGGER job_moved AFTER UPDATE OF state ON jobs WHEN NEW.state IS NOT OLD.state BEGIN
    INSERT INTO events (at, kind, job_id, owner_uid, state, message)
    VALUES ((julianday('now') - 2440587.5) * 86400, 'job', NEW.id, NEW.owner_uid, NEW.state, NEW.error); END;
CREATE TRIGGER job_resized AFTER UPDATE OF memory_bytes ON jobs WHEN NEW.memory_bytes IS NOT OLD.memory_bytes BEGIN
    INSERT INTO events (at, kind, job_id, owner_uid, state, message)
    VALUES ((julianday('now') - 2440587.5) * 86400, 'resized', NEW.id, NEW.owner_uid, NEW.state, NEW.memory_bytes); END;
CREATE TRIGGER job_warned AFTER UPDATE OF warning ON jobs WHEN NEW.warning IS NOT NULL AND NEW.warning IS NOT OLD.warning BEGIN
    INSERT INTO events (at, kind, job_id, owner_uid, state, message)
    VALUES ((julianday('now') - 2440587.5) * 86400, 'warned', NEW.id, NEW.owner_uid, NEW.state, NEW.warning); END;
""",
    # Names are unique for each owner; GPUs closed to new jobs; tokens of users.
    """
DROP INDEX names_of_unfinished_jobs;
CREATE UNIQUE INDEX names_of_unfinished_jobs ON jobs (owner_uid, name)
    WHERE name IS NOT NULL AND state IN ('waiting', 'starting', 'running');

CREATE TABLE closed_gpus (
    uuid TEXT PRIMARY KEY,
    closed_at REAL NOT NULL
) STRICT;

CREATE TABLE tokens (
    id TEXT PRIMARY KEY,
    uid INTEGER NOT NULL,
    digest TEXT NOT NULL,
    created_at REAL NOT NULL
) STRICT;
""",
    # How many jobs shared the GPU during a run.
    """
ALTER TABLE runs ADD COLUMN together REAL;
CREATE INDEX released_leases ON leases (released_at) WHERE released_at IS NOT NULL;
""",
    # Overdue jobs: which went first, and the GPUs reserved for one (table `claims`), until it no longer waits.
    """
ALTER TABLE leases ADD COLUMN went_first INTEGER NOT NULL DEFAULT 0;
CREATE INDEX first_leases ON leases (granted_at) WHERE went_first = 1;
CREATE TABLE claims (
    job_id TEXT PRIMARY KEY REFERENCES jobs (id) ON DELETE CASCADE,
    gpu_uuids TEXT NOT NULL,
    chosen_at REAL NOT NULL,
    promised_at REAL NOT NULL,
    kept_until REAL NOT NULL
) STRICT;
CREATE TRIGGER claim_ended AFTER UPDATE OF state ON jobs WHEN NEW.state IS NOT 'waiting' AND OLD.state IS 'waiting' BEGIN
    DELETE FROM claims WHERE job_id = NEW.id; END;
""",
    # One environment for all jobs of a client; deleted with the last of them that is not final, as it may hold secrets.
    """
CREATE TABLE environments (
    id INTEGER PRIMARY KEY,
    words TEXT NOT NULL UNIQUE
) STRICT;
ALTER TABLE jobs ADD COLUMN environment_id INTEGER REFERENCES environments (id);
INSERT INTO environments (words) SELECT DISTINCT environment FROM jobs WHERE environment IS NOT NULL;
UPDATE jobs SET environment_id = (SELECT id FROM environments WHERE words = jobs.environment), environment = NULL
    WHERE environment IS NOT NULL;
CREATE INDEX jobs_of_environments ON jobs (environment_id) WHERE environment_id IS NOT NULL;
CREATE TRIGGER environment_dropped AFTER UPDATE OF state ON jobs WHEN NEW.state NOT IN ('waiting', 'starting', 'running') BEGIN
    UPDATE jobs SET environment_id = NULL, environment = NULL WHERE id = NEW.id; DELETE FROM environments
    WHERE id = OLD.environment_id
        AND NOT EXISTS (SELECT 1 FROM jobs WHERE environment_id = OLD.environment_id); END;
""",
    # The slice of a run at its last refused allocation.
    """
ALTER TABLE runs ADD COLUMN refused_at_bytes INTEGER NOT NULL DEFAULT 0;
""",
    # When a job's wait began: a dependency or a retry makes it later than its arrival.
    """
ALTER TABLE jobs ADD COLUMN eligible_at REAL;
""",
    # Runs are read by call and user, so the index has the user.
    """
DROP INDEX runs_by_signature;
CREATE INDEX runs_of_calls ON runs (signature, owner_uid, sequence);
""",
    # Since when reserved GPUs cannot host their job.
    """
ALTER TABLE claims ADD COLUMN unable_since REAL;
""",
    # Strict shares, sharing modes, oversubscription and preemption.
    """
ALTER TABLE jobs ADD COLUMN is_strict INTEGER NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN sharing TEXT NOT NULL DEFAULT 'time-slice';
ALTER TABLE jobs ADD COLUMN oversubscribes INTEGER NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN preempts INTEGER NOT NULL DEFAULT 0;
ALTER TABLE leases ADD COLUMN sharing TEXT NOT NULL DEFAULT 'time-slice';
ALTER TABLE slices ADD COLUMN compute_share REAL;
ALTER TABLE runs ADD COLUMN compute_share REAL;
ALTER TABLE runs ADD COLUMN sharing TEXT NOT NULL DEFAULT 'time-slice';
CREATE TRIGGER job_shares_changed AFTER UPDATE OF compute_share ON jobs WHEN NEW.compute_share IS NOT OLD.compute_share BEGIN
    INSERT INTO events (at, kind, job_id, owner_uid, state, message)
    VALUES ((julianday('now') - 2440587.5) * 86400, 'share', NEW.id, NEW.owner_uid, NEW.state, NEW.compute_share); END;
""",
    # Profiles, as JSON.
    """
CREATE TABLE profiles (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT,
    signature TEXT NOT NULL,
    gpu_name TEXT NOT NULL,
    owner_uid INTEGER NOT NULL,
    job_id TEXT NOT NULL,
    measured_at REAL NOT NULL,
    profile TEXT NOT NULL);
CREATE INDEX profiles_of_calls ON profiles (signature, owner_uid, gpu_name, sequence);
CREATE INDEX profiles_of_jobs ON profiles (job_id);
""",
    # The part of a slice that stays on the device under oversubscription.
    """
ALTER TABLE slices ADD COLUMN resident_bytes INTEGER;
""",
    # Suspension for another job.
    """
ALTER TABLE jobs ADD COLUMN suspended_by TEXT;
ALTER TABLE jobs ADD COLUMN resumed_at REAL;
""",
    # Jobs that run under MPS only to be measured.
    """
ALTER TABLE jobs ADD COLUMN measures INTEGER NOT NULL DEFAULT 0;
""",
    # A CHECK constraint can only be dropped with its column. It goes because a job without a GPU has 0 bytes of memory.
    """
ALTER TABLE jobs ADD COLUMN amount INTEGER NOT NULL DEFAULT 0 CHECK (amount >= 0);
ALTER TABLE jobs ADD COLUMN gpus INTEGER NOT NULL DEFAULT 0 CHECK (gpus >= 0);
UPDATE jobs SET amount = memory_bytes, gpus = gpu_count;
DROP TRIGGER job_resized;
ALTER TABLE jobs DROP COLUMN memory_bytes;
ALTER TABLE jobs DROP COLUMN gpu_count;
ALTER TABLE jobs RENAME COLUMN amount TO memory_bytes;
ALTER TABLE jobs RENAME COLUMN gpus TO gpu_count;
CREATE TRIGGER job_resized AFTER UPDATE OF memory_bytes ON jobs WHEN NEW.memory_bytes IS NOT OLD.memory_bytes BEGIN
    INSERT INTO events (at, kind, job_id, owner_uid, state, message)
    VALUES ((julianday('now') - 2440587.5) * 86400, 'resized', NEW.id, NEW.owner_uid, NEW.state, NEW.memory_bytes); END;
""",
    # A function's traffic is its newest rollout; a rollback returns to an earlier one.
    """
CREATE TABLE functions (
    name TEXT PRIMARY KEY,
    owner_uid INTEGER NOT NULL,
    created_at REAL NOT NULL
) STRICT;
CREATE TABLE function_versions (
    function TEXT NOT NULL REFERENCES functions (name) ON DELETE CASCADE,
    number INTEGER NOT NULL CHECK (number > 0),
    app TEXT NOT NULL,
    bundle TEXT NOT NULL,
    declaration TEXT NOT NULL,
    runtime TEXT NOT NULL,
    image TEXT,
    requirements TEXT,
    state TEXT NOT NULL,
    reason TEXT,
    created_at REAL NOT NULL,
    inherited TEXT,
    PRIMARY KEY (function, number)
) STRICT;
CREATE TABLE function_rollouts (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT,
    function TEXT NOT NULL REFERENCES functions (name) ON DELETE CASCADE,
    at REAL NOT NULL
) STRICT;
CREATE INDEX rollouts_of_functions ON function_rollouts (function, sequence);
CREATE TABLE function_traffic (
    rollout INTEGER NOT NULL REFERENCES function_rollouts (sequence) ON DELETE CASCADE,
    function TEXT NOT NULL,
    version INTEGER NOT NULL,
    percent INTEGER NOT NULL CHECK (percent BETWEEN 1 AND 100),
    PRIMARY KEY (rollout, version),
    FOREIGN KEY (function, version) REFERENCES function_versions (function, number) ON DELETE CASCADE
) STRICT;
CREATE INDEX traffic_of_versions ON function_traffic (function, version);
CREATE TABLE function_tokens (
    id TEXT PRIMARY KEY,
    function TEXT NOT NULL REFERENCES functions (name) ON DELETE CASCADE,
    digest TEXT NOT NULL,
    label TEXT NOT NULL,
    created_at REAL NOT NULL
) STRICT;
CREATE INDEX tokens_of_functions ON function_tokens (function);
CREATE TABLE replicas (
    job_id TEXT PRIMARY KEY,
    function TEXT NOT NULL,
    version INTEGER NOT NULL,
    socket_directory TEXT NOT NULL,
    state TEXT NOT NULL,
    FOREIGN KEY (function, version) REFERENCES function_versions (function, number) ON DELETE CASCADE
) STRICT;
CREATE INDEX replicas_of_versions ON replicas (function, version);
CREATE TABLE cold_starts (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT,
    function TEXT NOT NULL,
    version INTEGER NOT NULL,
    job_id TEXT NOT NULL,
    at REAL NOT NULL,
    phases TEXT NOT NULL,
    FOREIGN KEY (function, version) REFERENCES function_versions (function, number) ON DELETE CASCADE
) STRICT;
CREATE INDEX cold_starts_of_versions ON cold_starts (function, version);
CREATE TRIGGER newest_cold_starts AFTER INSERT ON cold_starts BEGIN
    DELETE FROM cold_starts WHERE sequence <= NEW.sequence - 10000; END;
CREATE TRIGGER function_rolled_out AFTER INSERT ON function_rollouts BEGIN
    INSERT INTO events (at, kind, owner_uid, state, message) SELECT (julianday('now') - 2440587.5) * 86400,
    'function', owner_uid, 'rolled-out', name FROM functions WHERE name = NEW.function; END;
CREATE TRIGGER function_rolled_back AFTER DELETE ON function_rollouts BEGIN
    INSERT INTO events (at, kind, owner_uid, state, message) SELECT (julianday('now') - 2440587.5) * 86400,
    'function', owner_uid, 'rolled-back', name FROM functions WHERE name = OLD.function; END;
CREATE TRIGGER function_deployed AFTER INSERT ON function_versions BEGIN
    INSERT INTO events (at, kind, owner_uid, state, message) SELECT (julianday('now') - 2440587.5) * 86400,
    'function', owner_uid, 'deployed', name FROM functions WHERE name = NEW.function; END;
CREATE TRIGGER function_judged AFTER UPDATE OF state ON function_versions WHEN NEW.state IS NOT OLD.state BEGIN
    INSERT INTO events (at, kind, owner_uid, state, message) SELECT (julianday('now') - 2440587.5) * 86400,
    'function', owner_uid, NEW.state, name FROM functions WHERE name = NEW.function; END;
CREATE TRIGGER function_removed AFTER DELETE ON functions BEGIN
    INSERT INTO events (at, kind, owner_uid, state, message)
    VALUES ((julianday('now') - 2440587.5) * 86400, 'function', OLD.owner_uid, 'removed', OLD.name); END;
""",
    # Idle leases that may be taken for other jobs.
    """
ALTER TABLE jobs ADD COLUMN offered_value REAL;
ALTER TABLE jobs ADD COLUMN reclaimed_at REAL;
CREATE TRIGGER lease_reclaimed AFTER UPDATE OF reclaimed_at ON jobs
    WHEN NEW.reclaimed_at IS NOT NULL AND OLD.reclaimed_at IS NULL BEGIN
    INSERT INTO events (at, kind, job_id, owner_uid, state)
    VALUES ((julianday('now') - 2440587.5) * 86400, 'reclaimed', NEW.id, NEW.owner_uid, NEW.state); END;
""",
    # Parked jobs, which run on without their lease, and those of them that wait for it again.
    """
ALTER TABLE jobs ADD COLUMN parked_at REAL;
ALTER TABLE jobs ADD COLUMN wanted_at REAL;
CREATE INDEX coming_back ON jobs (gpu_model, sequence) WHERE parked_at IS NOT NULL AND wanted_at IS NOT NULL;
CREATE TRIGGER job_parked AFTER UPDATE OF parked_at ON jobs WHEN NEW.parked_at IS NOT OLD.parked_at BEGIN
    INSERT INTO events (at, kind, job_id, owner_uid, state)
    VALUES ((julianday('now') - 2440587.5) * 86400, iif(NEW.parked_at IS NULL, 'unparked', 'parked'), NEW.id, NEW.owner_uid, NEW.state); END;
""",
    # Claims of Kubernetes; they outlive their jobs, so the job is no foreign key.
    """
CREATE TABLE held_claims (
    uid TEXT PRIMARY KEY,
    claim TEXT NOT NULL,
    job_id TEXT NOT NULL,
    held_at REAL NOT NULL,
    freed_at REAL
) STRICT;
""",
    # Virtual time of each queue ('' of real GPUs); leases that are charged to their users. All clocks begin at 0. `went_first`
    # of a lease has meant since: granted as a late job.
    """
CREATE TABLE clocks (
    queue TEXT NOT NULL,
    uid INTEGER NOT NULL,
    seconds REAL NOT NULL,
    is_active INTEGER NOT NULL,
    PRIMARY KEY (queue, uid)
) STRICT, WITHOUT ROWID;
CREATE TABLE virtual_times (
    queue TEXT PRIMARY KEY,
    floor REAL NOT NULL,
    late_seconds REAL,
    other_seconds REAL,
    capacity_bytes INTEGER NOT NULL,
    gpu_count INTEGER NOT NULL
) STRICT;
ALTER TABLE leases ADD COLUMN charged_since REAL;
ALTER TABLE leases ADD COLUMN charged_boot TEXT;
UPDATE leases SET went_first = 0 WHERE went_first = 1;
""",
    # Users with waiting jobs, by priority, each with the floor of that priority. Amounts of leases, and the hours in which they were
    # held, by queue (development versions of 27 had these in `usage_hours`, without the queue).
    """
CREATE TABLE contenders (
    queue TEXT NOT NULL,
    uid INTEGER NOT NULL,
    priority INTEGER NOT NULL,
    is_active INTEGER NOT NULL,
    floor REAL NOT NULL,
    PRIMARY KEY (queue, uid, priority)
) STRICT, WITHOUT ROWID;
INSERT INTO contenders SELECT queue, uid, 0, 1, floor FROM clocks JOIN virtual_times USING (queue) WHERE is_active;
ALTER TABLE clocks DROP COLUMN is_active;
ALTER TABLE virtual_times DROP COLUMN floor;
ALTER TABLE leases ADD COLUMN ran REAL;
ALTER TABLE leases ADD COLUMN gpu_seconds REAL;
ALTER TABLE leases ADD COLUMN byte_seconds REAL;
UPDATE leases SET gpu_seconds = 0.0, byte_seconds = 0.0 WHERE released_at IS NULL;
CREATE TABLE queue_hours (
    queue TEXT NOT NULL,
    uid INTEGER NOT NULL,
    hour INTEGER NOT NULL,
    runs INTEGER NOT NULL,
    gpu_seconds REAL NOT NULL,
    byte_seconds REAL NOT NULL,
    used_byte_seconds REAL NOT NULL,
    PRIMARY KEY (queue, uid, hour)
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS usage_hours (uid, hour, runs, gpu_seconds, byte_seconds, used_byte_seconds);
INSERT INTO queue_hours SELECT '', uid, hour, runs, gpu_seconds, byte_seconds, used_byte_seconds FROM usage_hours;
DROP TABLE usage_hours;
""",
    # Long parts of specs, once for all jobs of a submission. A new version, since an older pgpu would start such a job with the
    # beginning of its command.
    """
CREATE TABLE long_specs (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    parts TEXT NOT NULL,
    bytes INTEGER NOT NULL
) STRICT;
ALTER TABLE jobs ADD COLUMN long_spec INTEGER REFERENCES long_specs (id);
CREATE INDEX jobs_of_long_specs ON jobs (long_spec) WHERE long_spec IS NOT NULL;
CREATE TRIGGER long_spec_forgotten AFTER DELETE ON jobs WHEN OLD.long_spec IS NOT NULL BEGIN
    DELETE FROM long_specs
    WHERE id = OLD.long_spec AND NOT EXISTS (SELECT 1 FROM jobs WHERE long_spec = OLD.long_spec); END;
CREATE TRIGGER long_spec_let_go AFTER UPDATE OF long_spec ON jobs WHEN NEW.long_spec IS NULL AND OLD.long_spec IS NOT NULL BEGIN
    DELETE FROM long_specs
    WHERE id = OLD.long_spec AND NOT EXISTS (SELECT 1 FROM jobs WHERE long_spec = OLD.long_spec); END;
""",
)

VERSION = len(MIGRATIONS)

ADDITIONS = (
    ("jobs", "batch", "TEXT"),
    ("jobs", "objective", "TEXT"),
    ("runs", "demand", "REAL"),
    ("jobs", "time_limit", "REAL"),
    ("jobs", "on_time_limit", "TEXT"),
    ("jobs", "hit_time_limit", "INTEGER"),
    ("jobs", "begin_at", "REAL"),
    ("jobs", "held_by", "INTEGER"),
    ("gpus", "part", "REAL"),
    ("quotas", "gpu_hours", "REAL"),
    ("quotas", "period", "TEXT"),
    ("jobs", "growth", "TEXT"),
    ("runs", "attempted_bytes", "INTEGER"),
    ("runs", "sizes_itself", "INTEGER"),
    ("jobs", "gpu_models", "TEXT"),
)
"""Table, name and type of columns made without a new version: processes of the release before, which may run during an upgrade, do
not read them."""

# Jobs with a begin, or held by a user; must be identical to the condition in `view.DELAYED`.
NEW_OBJECTS = {
    "delayed": """
CREATE INDEX delayed ON jobs (sequence) WHERE state = 'waiting' AND (begin_at IS NOT NULL OR held_by IS NOT NULL)
""",
}
"""Likewise indexes by name, made after the columns."""
