"""The profiles of measured runs, by program, model of GPU and owner.

What antagonists told of a program is dear, and a plain run measures none of it: where a call's newest profile has no such
findings, those of the newest that has some are told with it. It refuses to judge: what follows from a profile its readers say.
"""

import dataclasses
import json
import sqlite3
from collections.abc import Mapping
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
    Sensitivity,
)

KEPT_PROFILES = 2_000
"""So many of the newest are remembered: one of some kilobytes for each of 2,000 calls."""

_PUT = """
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
_ALL = """
SELECT profile FROM profiles WHERE owner_uid = ifnull(?1, owner_uid)
    AND sequence IN (SELECT max(sequence) FROM profiles GROUP BY signature, gpu_name, owner_uid)
ORDER BY sequence DESC LIMIT ?2
"""


class Profiles:
    """Reads profiles in a view, and writes them in a decision."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def add(self, profile: Profile, job_id: str) -> None:
        """Remember what was measured of a job; only in a decision."""
        text = json.dumps(dataclasses.asdict(profile))
        call = (profile.signature, profile.gpu_name, profile.owner_uid)
        self._connection.execute(_PUT, (*call, job_id, profile.measured_at_seconds, text))
        self._connection.execute(_FORGET, (KEPT_PROFILES,))

    def newest(self, signature: str, gpu_name: str, owner_uid: int) -> Profile | None:
        """Return the newest profile of one user's call on one model of GPU, with what antagonists told of it last.

        Args:
            signature: As `Job.signature`.
            gpu_name: As runs are remembered under: simulated GPUs have names of their own (`learning.history_name`).
            owner_uid: Whose; another user's tells nothing.
        """
        found = self._one(_NEWEST, (signature, owner_uid, gpu_name))
        return None if found is None else self.with_findings(found)

    def of_job(self, job_id: str) -> Profile | None:
        """Return the newest profile that was made of a job, as it was made; None if none was."""
        return self._one(_OF_JOB, (job_id,))

    def with_findings(self, profile: Profile) -> Profile:
        """Return a profile with what antagonists told last of the same call, if its own run was beside none."""
        if _has_findings(profile):
            return profile
        told = self._one(_WITH_FINDINGS, (profile.signature, profile.owner_uid, profile.gpu_name))
        if told is None:
            return profile
        return dataclasses.replace(profile, sensitivity=told.sensitivity, contests=told.contests)

    def all(self, owner_uid: int | None, most: int) -> list[Profile]:
        """Return the newest profile of each call of one user, or of all, the newest first; each as `newest` does."""
        rows = self._connection.execute(_ALL, (owner_uid, most)).fetchall()
        return [self.with_findings(_profile_of(row[0])) for row in rows]

    def _one(self, statement: str, words: tuple[str | int, ...]) -> Profile | None:
        row = self._connection.execute(statement, words).fetchone()
        return None if row is None else _profile_of(row[0])


def _has_findings(profile: Profile) -> bool:
    told = profile.sensitivity
    return bool(profile.contests) or any(each is not None for each in (told.cache, told.l2, told.dram))


def _profile_of(text: str) -> Profile:
    fields: dict[str, Any] = json.loads(text)
    fields["demands"] = tuple(_demand(each) for each in fields.get("demands", ()))
    fields["sensitivity"] = _sensitivity(fields.get("sensitivity", {}))
    fields["contests"] = tuple(_contest(each) for each in fields.get("contests", ()))
    fields["kernels"] = tuple(_kernel(each) for each in fields.get("kernels", ()))
    fields["copies"] = tuple(CopyUse(**each) for each in fields.get("copies", ()))
    return Profile(**fields)


def _demand(fields: Mapping[str, Any]) -> Demand:
    return Demand(Resource(fields["resource"]), fields["fraction"], Evidence(fields["evidence"]))


def _sensitivity(fields: Mapping[str, Any]) -> Sensitivity:
    evidence = Evidence(fields.get("evidence", Evidence.ANTAGONIST))
    return Sensitivity(**{**fields, "evidence": evidence})


def _contest(fields: Mapping[str, Any]) -> Contest:
    return Contest(**{**fields, "antagonist": Antagonist(fields["antagonist"])})


def _kernel(fields: Mapping[str, Any]) -> KernelUse:
    return KernelUse(**{**fields, "grid": tuple(fields["grid"]), "block": tuple(fields["block"])})
