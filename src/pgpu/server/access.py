"""Who calls, and what they may: every route asks here, and nobody else decides.

A caller over the Unix socket is who the kernel says; a caller over TCP is whose token they show. Root administers, and
so does the user who runs the server. This module refuses to know of HTTP.
"""

import os
from dataclasses import dataclass

from pgpu.errors import AccessError, JobNotFoundError, UnauthenticatedError
from pgpu.model import Job, JobSpec
from pgpu.server.peers import Peer


@dataclass(frozen=True, slots=True)
class Caller:
    """A user who asks."""

    uid: int
    gid: int
    groups: frozenset[int]
    """Supplementary groups."""

    is_admin: bool
    """Whether they see and stop everybody's jobs and set what others may."""

    @property
    def sees_uid(self) -> int | None:
        """Whose jobs they see; None for everybody's."""
        return None if self.is_admin else self.uid


class Access:
    """What each caller may."""

    def caller(self, peer: Peer | None, token: str | None) -> Caller:
        """Tell who calls.

        Args:
            peer: Who is connected over the Unix socket; None for TCP.
            token: What the request showed; None if it showed none.

        Raises:
            UnauthenticatedError: Nobody can tell.
        """
        del token
        if peer is None:
            raise UnauthenticatedError("no token was shown, or one that is not valid")
        return Caller(peer.uid, peer.gid, peer.groups, is_admin=peer.uid in {0, os.geteuid()})

    def check_submission(self, caller: Caller, spec: JobSpec) -> JobSpec:
        """Refuse what the caller may not run; return what is run for them.

        Raises:
            AccessError: They may not.
        """
        del caller
        return spec

    def check_sees(self, caller: Caller, job: Job) -> None:
        """Refuse a job that is not the caller's, in the words for one that does not exist.

        Raises:
            JobNotFoundError: It is not theirs.
        """
        if caller.sees_uid not in {None, job.owner_uid}:
            raise JobNotFoundError(f"no job has the id or name {job.id!r}", hint="`pgpu ps --all` lists them")

    def check_administers(self, caller: Caller) -> None:
        """Refuse whoever does not administer this machine.

        Raises:
            AccessError: They don't.
        """
        if not caller.is_admin:
            raise AccessError("only an administrator may do this", hint="run it as root")
