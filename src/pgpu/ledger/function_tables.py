"""The tables of functions: one migration, which is never changed once it was released. See `schema`.

A change of theirs is told in the ledger's events, so that a gateway need not look again and again.
"""

FUNCTIONS = """
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
"""
"""A function's traffic is its newest rollout; the ones before are what a rollback goes back to."""
