PRAGMA user_version=1;
BEGIN TRANSACTION;
CREATE TABLE facts (
    key TEXT PRIMARY KEY,
    value TEXT NOT NULL,
    written_at REAL NOT NULL
) STRICT;
INSERT INTO "facts" VALUES('k','v',1.0);
CREATE TABLE gpus (
    uuid TEXT PRIMARY KEY,
    name TEXT NOT NULL,
    memory_bytes INTEGER NOT NULL,
    driver_version TEXT NOT NULL,
    is_simulated INTEGER NOT NULL,
    seen_at REAL NOT NULL
) STRICT;
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
INSERT INTO "jobs" VALUES(1,'aaaaaaaaaaaa',NULL,NULL,'running','{"command": ["sleep", "600"], "runtime": "process", "image": null, "environment": [], "volumes": [], "working_directory": "/", "user": null, "name": null, "wants_tty": false, "wants_stdin": false, "remove": true, "wait_for_memory_seconds": 0.0}',1073741824,1,1.0,2.5,NULL,NULL,NULL,NULL,0,NULL,'{"pid": 4242, "start_time_ticks": 17, "boot_id": "b"}','{"pid": 4241, "start_time_ticks": 16, "boot_id": "b"}',1.5,NULL,'[["HOME", "/root"]]');
INSERT INTO "jobs" VALUES(2,'bbbbbbbbbbbb','queued','rtx-3090','waiting','{"command": ["true"], "runtime": "docker", "image": "img", "environment": [["A", "1"]], "volumes": [{"source": "/a", "target": "/b", "options": "ro"}], "working_directory": null, "user": null, "name": "queued", "wants_tty": false, "wants_stdin": false, "remove": true, "wait_for_memory_seconds": 0.0}',2147483648,2,3.0,NULL,NULL,NULL,'waits for 2 GiB',NULL,0,99.0,NULL,NULL,NULL,NULL,'[]');
CREATE TABLE leases (
    job_id TEXT PRIMARY KEY REFERENCES jobs (id) ON DELETE CASCADE,
    granted_at REAL NOT NULL,
    released_at REAL,
    enforcer TEXT,
    is_advisory INTEGER NOT NULL
) STRICT;
INSERT INTO "leases" VALUES('aaaaaaaaaaaa',2.0,NULL,'shim',0);
CREATE TABLE slices (
    job_id TEXT NOT NULL REFERENCES leases (job_id) ON DELETE CASCADE,
    position INTEGER NOT NULL,
    gpu_uuid TEXT NOT NULL,
    memory_bytes INTEGER NOT NULL CHECK (memory_bytes > 0),
    PRIMARY KEY (job_id, position),
    UNIQUE (job_id, gpu_uuid)
) STRICT;
INSERT INTO "slices" VALUES('aaaaaaaaaaaa',0,'GPU-0',1073741824);
CREATE UNIQUE INDEX names_of_unfinished_jobs ON jobs (name)
    WHERE name IS NOT NULL AND state IN ('waiting', 'starting', 'running');
CREATE INDEX states ON jobs (state);
CREATE INDEX held_leases ON leases (job_id) WHERE released_at IS NULL;
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('jobs',2);
COMMIT;
