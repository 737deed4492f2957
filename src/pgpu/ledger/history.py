"""History of ended runs, and profiles of measured runs, by program, GPU model and user.

It is kept longer than the jobs themselves. Measurements beside antagonists are expensive, and a plain run has none: if the newest
profile of a call has none, those of the newest profile that has some are returned with it.
"""

import json
import math
import sqlite3
from collections.abc import Collection, Sequence
from typing import Any

from pgpu.model import (
    Antagonist,
    Contest,
    CopyUse,
    Demand,
    Evidence,
    KernelUse,
    Profile,
    Resource,
    Run,
    Sensitivity,
    SharingMode,
)
from pgpu.structs import replace, to_builtins

# Signature and UID: runs of one user are never used for another.
Call = tuple[str, int]

# Only this many of the newest runs are read.
MOST_RUNS_OF_A_PROGRAM = 500

_COLUMNS = (
    "signature, gpu_name, job_id, owner_uid, slice_bytes, peak_bytes, context_bytes, refusals, duration_seconds,"
    " ended_at, exit_code, refused_at_bytes, compute_share, sharing, demand"
)
# Of runs from before the last two columns, those that held nearly all of their slice count as runs that took what they saw.
_READ = f"{_COLUMNS}, coalesce(attempted_bytes, 0) AS attempted_bytes,"
_READ += " coalesce(sizes_itself, peak_bytes >= 0.9 * slice_bytes) AS sizes_itself"
_PUT = f"""
INSERT INTO runs ({_COLUMNS}, attempted_bytes, sizes_itself, together)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""  # noqa: S608 - words of our own
# Seconds that other jobs ran on the first GPU of a run during it, all overlaps added up. SQLite does not reorder a CROSS JOIN, so
# it begins with the few leases that are held or were released since, instead of scanning all jobs.
_BESIDE = """
SELECT sum(max(0, min(coalesce(other.finished_at, :until), :until) - max(other.started_at, :since)))
FROM (
    SELECT job_id FROM leases WHERE released_at IS NULL UNION ALL SELECT job_id FROM leases WHERE released_at > :since
) AS held
CROSS JOIN slices AS theirs ON theirs.job_id = held.job_id
CROSS JOIN jobs AS other ON other.id = held.job_id
WHERE theirs.gpu_uuid = (SELECT gpu_uuid FROM slices WHERE job_id = :job_id AND position = 0)
    AND held.job_id <> :job_id AND other.started_at < :until
"""
_COLOCATED = """
SELECT duration_seconds, together FROM runs
WHERE signature = ? AND owner_uid = ? AND gpu_name IN (SELECT value FROM json_each(?))
    AND exit_code = 0 AND together IS NOT NULL ORDER BY sequence DESC LIMIT ?
"""
# All signatures that begin with a word and a space: `!` is the character after the space, so this is a range of the index.
_OF_PROGRAM = f"""
SELECT {_READ} FROM runs
WHERE (signature = ?1 OR signature >= ?1 || ' ' AND signature < ?1 || '!') AND owner_uid = ?2 AND gpu_name = ?3
ORDER BY sequence DESC LIMIT ?4
"""  # noqa: S608 - words of our own
_ALL = f"SELECT {_READ} FROM runs WHERE ?1 IS NULL OR owner_uid = ?1 ORDER BY sequence DESC LIMIT ?2"  # noqa: S608 - likewise
_DURATIONS = """
SELECT duration_seconds FROM runs
WHERE signature = ? AND owner_uid = ? AND gpu_name IN (SELECT value FROM json_each(?)) AND exit_code = 0
ORDER BY sequence DESC LIMIT ?
"""
_DEMANDS = """
SELECT demand FROM runs
WHERE signature = ? AND owner_uid = ? AND gpu_name IN (SELECT value FROM json_each(?)) AND exit_code = 0 AND demand IS NOT NULL
ORDER BY sequence DESC LIMIT ?
"""
# Since the call's last run under MPS: each run counts with the part of it that ran beside other jobs, at most all of it.
_SLICED = """
SELECT duration_seconds * min(1, together - 1) AS beside_seconds FROM runs
WHERE signature = ?1 AND owner_uid = ?2 AND gpu_name = ?3 AND sharing = 'time-slice' AND together > 1
    AND sequence > (SELECT coalesce(max(sequence), 0) FROM runs
        WHERE signature = ?1 AND owner_uid = ?2 AND gpu_name = ?3 AND sharing = 'mps')
ORDER BY sequence DESC LIMIT ?4
"""


class History:
    """Runs, read in a view and written in a decision; see `LedgerView.history`."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def add(self, run: Run) -> None:
        """Store one run, with the mean number of jobs on its GPU; only in a decision."""
        self._connection.execute(
            _PUT,
            (
                run.signature,
                run.gpu_name,
                run.job_id,
                run.owner_uid,
                run.slice_bytes,
                run.peak_bytes,
                run.context_bytes,
                run.refusals,
                run.duration_seconds,
                run.ended_at_seconds,
                run.exit_code,
                run.refused_at_bytes,
                run.compute_share,
                run.sharing.value,
                run.demand,
                run.attempted_bytes,
                run.sizes_itself,
                self._together(run),
            ),
        )

    def keep_newest(self, most_kept: int) -> None:
        """Delete the oldest runs beyond `most_kept`."""
        # Only the oldest rows are ever deleted, so the numbers have no gaps, and no count is needed.
        self._connection.execute(
            "DELETE FROM runs WHERE sequence <= (SELECT max(sequence) FROM runs) - ?", (most_kept,)
        )

    def of_program(self, program: str, gpu_name: str, owner_uid: int) -> list[Run]:
        """Return the newest runs of every call of one program, oldest first.

        Args:
            program: First word of its signatures.
            gpu_name: Product name of their GPUs.
            owner_uid: Only runs of this user.
        """
        arguments = (program, owner_uid, gpu_name, MOST_RUNS_OF_A_PROGRAM)
        return [_run_of(row) for row in self._connection.execute(_OF_PROGRAM, arguments)][::-1]

    def runs(self, owner_uid: int | None, most: int) -> list[Run]:
        """Return the newest runs of one user, or of all, oldest first."""
        return [_run_of(row) for row in self._connection.execute(_ALL, (owner_uid, most))][::-1]

    def peaks_of_call(self, call: Call, gpu_name: str) -> list[int]:
        """Return the peaks of a call's runs on one model of GPU, in bytes, without runs that took all memory they saw."""
        rows = self._connection.execute(
            "SELECT peak_bytes FROM runs WHERE signature = ? AND owner_uid = ? AND gpu_name = ?"
            " AND NOT coalesce(sizes_itself, peak_bytes >= 0.9 * slice_bytes)",
            (*call, gpu_name),
        )
        return [row[0] for row in rows]

    def newest(self) -> int:
        """Return the number of the newest run; 0 if there is none."""
        return int(self._connection.execute("SELECT coalesce(max(sequence), 0) FROM runs").fetchone()[0])

    def since(self, number: int) -> tuple[int, set[Call]]:
        """Return the number of the newest run, and the calls that ran after run `number`."""
        newest = self.newest()
        if newest == number:
            return newest, set()
        rows = self._connection.execute("SELECT DISTINCT signature, owner_uid FROM runs WHERE sequence > ?", (number,))
        return newest, {(row[0], row[1]) for row in rows}

    def durations(
        self, calls: Collection[Call], gpu_names: Collection[str], most_runs: int
    ) -> dict[Call, Sequence[float]]:
        """Return the durations of successful runs.

        Args:
            calls: The calls.
            gpu_names: Models of GPU.
            most_runs: Newest runs of each call.

        Returns:
            Seconds, newest first; without calls that have none.
        """
        return self._newest(_DURATIONS, calls, gpu_names, most_runs)

    def demands(
        self, calls: Collection[Call], gpu_names: Collection[str], most_runs: int
    ) -> dict[Call, Sequence[float]]:
        """Return the shares of a GPU's time that successful runs needed, where they were measured; as `durations`."""
        return self._newest(_DEMANDS, calls, gpu_names, most_runs)

    def _newest(
        self, query: str, calls: Collection[Call], gpu_names: Collection[str], most_runs: int
    ) -> dict[Call, Sequence[float]]:
        names = json.dumps([*gpu_names])
        found = {call: [row[0] for row in self._connection.execute(query, (*call, names, most_runs))] for call in calls}
        return {call: values for call, values in found.items() if values}

    def colocated_runs(self, call: Call, gpu_names: Collection[str], most_runs: int) -> list[tuple[float, float]]:
        """Return runs of a call as for `durations`: seconds, and the mean number of jobs on its GPU, itself included."""
        words = (*call, json.dumps([*gpu_names]), most_runs)
        return [(row[0], row[1]) for row in self._connection.execute(_COLOCATED, words)]

    def sliced_seconds(self, call: Call, gpu_name: str) -> float:
        """Return how long a call ran in time slices beside others since it last ran under MPS on one model of GPU."""
        rows = self._connection.execute(_SLICED, (*call, gpu_name, MOST_RUNS_OF_A_PROGRAM))
        return math.fsum(row["beside_seconds"] for row in rows)

    def _together(self, run: Run) -> float | None:
        """Return the mean number of jobs on a run's first GPU, weighted by overlap; None for a run of no duration."""
        if run.duration_seconds <= 0:
            return None
        until = run.ended_at_seconds
        words = {"job_id": run.job_id, "since": until - run.duration_seconds, "until": until}
        beside_seconds = self._connection.execute(_BESIDE, words).fetchone()[0] or 0.0
        return 1.0 + float(beside_seconds) / run.duration_seconds


def _run_of(row: sqlite3.Row) -> Run:
    return Run(
        signature=row["signature"],
        gpu_name=row["gpu_name"],
        job_id=row["job_id"],
        owner_uid=row["owner_uid"],
        slice_bytes=row["slice_bytes"],
        peak_bytes=row["peak_bytes"],
        context_bytes=row["context_bytes"],
        refusals=row["refusals"],
        duration_seconds=row["duration_seconds"],
        ended_at_seconds=row["ended_at"],
        exit_code=row["exit_code"],
        refused_at_bytes=row["refused_at_bytes"],
        compute_share=row["compute_share"],
        sharing=SharingMode(row["sharing"]),
        demand=row["demand"],
        attempted_bytes=row["attempted_bytes"],
        sizes_itself=bool(row["sizes_itself"]),
    )


# Newest profiles that are kept: some kilobytes for each of 2,000 calls.
KEPT_PROFILES = 2_000

_PUT_PROFILES = """
INSERT INTO profiles (signature, gpu_name, owner_uid, job_id, measured_at, profile) VALUES (?, ?, ?, ?, ?, ?)
"""
_FORGET = "DELETE FROM profiles WHERE sequence <= (SELECT max(sequence) FROM profiles) - ?"
_NEWEST = """
SELECT profile FROM profiles WHERE signature = ? AND owner_uid = ? AND gpu_name = ? ORDER BY sequence DESC LIMIT 1
"""
_WITH_FINDINGS = """
SELECT profile FROM profiles WHERE signature = ? AND owner_uid = ? AND gpu_name = ?
    AND (json_array_length(profile, '$.contests') > 0 OR json_extract(profile, '$.sensitivity.cache') IS NOT NULL
        OR json_extract(profile, '$.sensitivity.l2') IS NOT NULL OR json_extract(profile, '$.sensitivity.dram') IS NOT NULL)
ORDER BY sequence DESC LIMIT 1
"""
_OF_JOB = "SELECT profile FROM profiles WHERE job_id = ? ORDER BY sequence DESC LIMIT 1"
_ALL_PROFILES = """
SELECT profile FROM profiles WHERE owner_uid = ifnull(?1, owner_uid)
    AND sequence IN (SELECT max(sequence) FROM profiles GROUP BY signature, gpu_name, owner_uid)
ORDER BY sequence DESC LIMIT ?2
"""


class Profiles:
    """Profiles, read in a view and written in a decision; see `LedgerView.profiles`."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def add(self, profile: Profile, job_id: str) -> None:
        """Store the profile of a job; only in a decision."""
        text = json.dumps(to_builtins(profile))
        call = (profile.signature, profile.gpu_name, profile.owner_uid)
        self._connection.execute(_PUT_PROFILES, (*call, job_id, profile.measured_at_seconds, text))
        self._connection.execute(_FORGET, (KEPT_PROFILES,))

    def newest_number(self) -> int:
        """Return the number of the newest profile; 0 if there is none. It rises with each one."""
        return int(self._connection.execute("SELECT coalesce(max(sequence), 0) FROM profiles").fetchone()[0])

    def newest(self, signature: str, gpu_name: str, owner_uid: int) -> Profile | None:
        """Return the newest profile of a call on one model of GPU, with its last measurements beside antagonists.

        Args:
            signature: As `Job.signature`.
            gpu_name: As runs are remembered under: simulated GPUs have names of their own (`run_history.history_name`).
            owner_uid: Only profiles of this user.
        """
        found = self._one(_NEWEST, (signature, owner_uid, gpu_name))
        return None if found is None else self.with_findings(found)

    def of_job(self, job_id: str) -> Profile | None:
        """Return the newest profile of a job, unchanged; None if there is none."""
        return self._one(_OF_JOB, (job_id,))

    def with_findings(self, profile: Profile) -> Profile:
        """Return a profile with the last measurements of its call beside antagonists, if it has none of its own."""
        own = profile.sensitivity
        if profile.contests or any(each is not None for each in (own.cache, own.l2, own.dram)):
            return profile
        found = self._one(_WITH_FINDINGS, (profile.signature, profile.owner_uid, profile.gpu_name))
        if found is None:
            return profile
        return replace(profile, sensitivity=found.sensitivity, contests=found.contests)

    def all(self, owner_uid: int | None, most: int) -> list[Profile]:
        """Return the newest profile of each call of one user, or of all, newest first; each as `newest` returns it."""
        rows = self._connection.execute(_ALL_PROFILES, (owner_uid, most)).fetchall()
        return [self.with_findings(_profile_of(row[0])) for row in rows]

    def _one(self, statement: str, words: tuple[str | int, ...]) -> Profile | None:
        row = self._connection.execute(statement, words).fetchone()
        return None if row is None else _profile_of(row[0])


def _profile_of(text: str) -> Profile:
    # A field that is missing was added after the profile was stored: it gets its default.
    fields: dict[str, Any] = json.loads(text)
    fields["demands"] = tuple(
        Demand(Resource(each["resource"]), each["fraction"], Evidence(each["evidence"]))
        for each in fields.get("demands", ())
    )
    sensitivity = fields.get("sensitivity", {})
    evidence = Evidence(sensitivity.get("evidence", Evidence.ANTAGONIST))
    fields["sensitivity"] = Sensitivity(**{**sensitivity, "evidence": evidence})
    fields["contests"] = tuple(
        Contest(**{**each, "antagonist": Antagonist(each["antagonist"])}) for each in fields.get("contests", ())
    )
    fields["kernels"] = tuple(
        KernelUse(**{**each, "grid": tuple(each["grid"]), "block": tuple(each["block"])})
        for each in fields.get("kernels", ())
    )
    fields["copies"] = tuple(CopyUse(**each) for each in fields.get("copies", ()))
    return Profile(**fields)
