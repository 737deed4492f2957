"""What each caller may do with functions: owners with their own, administrators with everybody's.

A stranger is told the same of a function that exists and of one that does not. What a declaration means and where bundles
lie, the room of functions knows: it is handed in as `FunctionStore`. This module refuses to carry calls and to choose when
something is started: the gateway does.
"""

import contextlib
import hashlib
import hmac
import os
import secrets
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from pgpu.distribution import extra_hint
from pgpu.engine.submission.inheritance import account_of
from pgpu.engine.submission.job_submission import new_job_id
from pgpu.engine.submission.submitter import Submitter
from pgpu.errors import FunctionNotFoundError, LedgerError, PgpuError, RequestError
from pgpu.ledger.functions import missing
from pgpu.model import (
    Account,
    ColdStart,
    Deployment,
    Function,
    FunctionToken,
    Job,
    JobSpec,
    Replica,
    ReplicaState,
    Submission,
    Version,
    VersionState,
    with_canary,
)
from pgpu.server.access import Caller, administers
from pgpu.server.job_service import JobService
from pgpu.services.function_messages import Bearer, Judgement, NewFunctionToken, ReplicaAsk, Rollout, Shown

TOKEN_PREFIX = "pgpufn"  # noqa: S105 - says that what follows is one
_MOST_LABEL = 200
_GRACE_SECONDS = 10.0
"""For replicas of a function that is no more: the calls that they have."""


class BundleUpload(Protocol):
    """A bundle that is being sent."""

    def write(self, data: bytes) -> None:
        """Take more of it; RequestError if it is too long."""
        ...

    def keep(self, digest: str) -> None:
        """Keep all of it durably; RequestError if it is not what its digest says, or no bundle."""
        ...


class FunctionStore(Protocol):
    """What is known of functions above the server."""

    def checked(self, asked: Deployment, owner_uid: int) -> Deployment:
        """Return a deployment in plain words; RequestError for what can never be served."""
        ...

    def has(self, owner_uid: int, digest: str) -> bool:
        """Whether a bundle of this user is there."""
        ...

    def receiving(self, owner_uid: int) -> AbstractContextManager[BundleUpload]:
        """Take in a bundle; nothing is left of one that is not kept."""
        ...

    def trial(self, asked: Deployment, owner_uid: int) -> Submission:
        """Return the job that would serve it."""
        ...

    def replica(self, version: Version, job_id: str, account: Account | None) -> tuple[Submission, str]:
        """Return the job that serves a version, and the directory of its sockets, which is made and the account's."""
        ...

    def forget(self, job_id: str) -> None:
        """Remove the directory of a replica that has ended."""
        ...

    def left(self) -> Sequence[str]:
        """Return the jobs of which directories of replicas are there."""
        ...

    def is_built(self, version: Version) -> bool:
        """Whether a version's packages are there, or it needs none."""
        ...

    def build(self, version: Version, account: Account | None) -> Submission:
        """Return the job that installs a version's packages."""
        ...

    def bytecode(self, version: Version, account: Account | None) -> Submission | None:
        """Return the job that has what its replicas load compiled; None where it was asked for before, or is not needed."""
        ...

    def build_name(self, version: Version) -> str:
        """Return what tells the job that installs a version's packages from every other."""
        ...

    def filled_for(self, version: Version) -> Collection[str]:
        """Return the names of the directories that jobs fill for a version: with packages, and with byte code."""
        ...

    def filled_by(self, spec: JobSpec) -> str | None:
        """Return the name of the directory that a job fills; None of any other job."""
        ...

    def keep_build(self, version: Version) -> None:
        """Put packages that were installed in their place; RequestError if there are none."""
        ...

    def forget_build(self, version: Version) -> None:
        """Remove what was installed of packages that are not kept."""
        ...

    def sweep(self, owner_uid: int, kept: Collection[Version]) -> None:
        """Throw away what none of a user's versions is made of."""
        ...


class FunctionService:
    """Answers callers about functions, from the ledger of a desk; every method blocks."""

    def __init__(self, desk: JobService, deploying: FunctionStore | None) -> None:
        """Answer from now on.

        Args:
            desk: Submits the jobs of replicas.
            deploying: None where the libraries of functions are not installed: nothing can be deployed then.
        """
        self._desk = desk
        self._deploying = deploying
        self._kept = desk.engine.ledger.functions
        with contextlib.suppress(
            LedgerError
        ):  # a ledger that cannot be used is said to whoever asks; the next start looks again
            self._end_leftovers()

    def _end_leftovers(self) -> None:
        """End replicas of functions that are no more: a server before this one was killed while it saw to it."""
        left = set() if self._deploying is None else set(self._deploying.left())
        if left := left - {replica.job_id for replica in self._kept.replicas.all()}:
            self._end(sorted(left))
            for job_id in left:
                self._deployer.forget(job_id)
        wanted = self._filled_for(self._kept.all(None))
        self._end([job.id for name, job in self._filling() if name not in wanted], 0.0)

    def has_bundle(self, caller: Caller, digest: str) -> None:
        """Say whether the caller sent a bundle before.

        Raises:
            FunctionNotFoundError: They did not.
        """
        if not self._deployer.has(caller.uid, digest):
            raise FunctionNotFoundError(f"there is no bundle {digest} of yours", hint="send it: PUT")

    def receiving(self, caller: Caller) -> AbstractContextManager[BundleUpload]:
        """Take in a bundle of the caller's.

        Raises:
            AccessError: They may not deploy.
            CapacityError: They have too many already.
        """
        self._desk.access.check_submits(caller)
        return self._deployer.receiving(caller.uid)

    def deploy(self, caller: Caller, asked: Deployment) -> Version:
        """Keep a new version.

        Raises:
            AccessError: The caller may not deploy.
            RequestError: It can never be served, or the name is another user's.
        """
        self._desk.access.check_submits(caller)
        if asked.runtime == "process" and caller.uid != os.geteuid():
            raise RequestError(
                "on a server functions of its users run in containers", hint="name an image: --runtime docker --image"
            )
        checked = self._deployer.checked(asked, caller.uid)
        inherited = self._desk.access.inherited(caller, None)
        self._check_on_engine(self._deployer.trial(checked, caller.uid), account_of(inherited, ()))
        version = self._kept.deploy(checked, caller.uid, inherited)
        self._sweep(caller.uid)
        if version.state is VersionState.PENDING and self._deployer.is_built(version):
            self._kept.judge(version.function, version.number, VersionState.READY)
            return self._kept.get(version.function).version(version.number)
        return version

    def _check_on_engine(self, trial: Submission, account: Account | None) -> None:
        engine = self._desk.engine
        if trial.request.is_estimated:  # what it will hold is not known before it has run
            engine.runtime(trial.spec.runtime).check(trial.spec, account)
        else:
            engine.check(trial.spec, trial.request, account)

    @property
    def _deployer(self) -> FunctionStore:
        if self._deploying is None:
            raise RequestError("this server serves no functions", hint=extra_hint("functions"))
        return self._deploying

    def functions(self, caller: Caller) -> Sequence[Function]:
        """List the functions that the caller sees."""
        return self._kept.all(caller.sees_uid)

    def function(self, caller: Caller, name: str) -> Function:
        """Return one function; FunctionNotFoundError if the caller sees none of this name."""
        return self._kept.get(name, caller.sees_uid)

    def undeploy(self, caller: Caller, name: str) -> Sequence[str]:
        """Forget a function, have its replicas end, and return their jobs' ids."""
        found = self.function(caller, name)
        job_ids = [replica.job_id for replica in self._kept.replicas.all(name)]
        self._kept.remove(name, found.identity)
        self._end(job_ids)
        unwanted = self._filled_for([found]) - self._filled_for(self._kept.all(found.owner_uid))
        self._end([job.id for name, job in self._filling() if name in unwanted], 0.0)
        for job_id in job_ids if self._deploying is not None else ():
            self._forget(job_id)  # nobody else knows of them any more
        self._sweep(found.owner_uid)
        return job_ids

    def _sweep(self, owner_uid: int) -> None:
        if self._deploying is not None:
            kept = [version for each in self._kept.all(owner_uid) for version in each.versions]
            self._deploying.sweep(owner_uid, kept)

    def roll_out(self, caller: Caller, name: str, rollout: Rollout) -> Function:
        """Give traffic to a version."""
        found = self.function(caller, name)
        found.version(rollout.version)
        return self._kept.roll_out(name, with_canary(found.traffic, rollout.version, rollout.percent), found.identity)

    def roll_back(self, caller: Caller, name: str) -> Function:
        """Let the traffic be what it was before."""
        return self._kept.roll_back(name, self.function(caller, name).identity)

    def tokens(self, caller: Caller, name: str) -> Sequence[FunctionToken]:
        """List a function's tokens."""
        self.function(caller, name)
        return self._kept.tokens.of(name)

    def create_token(self, caller: Caller, name: str, label: str) -> NewFunctionToken:
        """Make a token; shown this once."""
        found = self.function(caller, name)
        if len(label) > _MOST_LABEL:
            raise RequestError(f"a label has up to {_MOST_LABEL} characters")
        token_id, secret = secrets.token_hex(6), secrets.token_urlsafe(32)
        self._kept.tokens.put(token_id, name, _digest(secret), label, found.identity)
        return NewFunctionToken(token_id, f"{TOKEN_PREFIX}_{token_id}_{secret}")

    def revoke_token(self, caller: Caller, name: str, token_id: str) -> None:
        """Make a token worth nothing; RequestError if there is none."""
        self.function(caller, name)
        if not self._kept.tokens.remove(name, token_id):
            raise RequestError(f"{name} has no token {token_id}", hint=f"`pgpu token {name} list` lists them")

    def replicas(self, caller: Caller, name: str) -> Sequence[Replica]:
        """Tell what serves a function now."""
        self.function(caller, name)
        return self._kept.replicas.all(name)

    def cold_starts(self, caller: Caller, name: str, most: int) -> Sequence[ColdStart]:
        """List a function's last cold starts."""
        self.function(caller, name)
        return self._kept.replicas.starts(name, most)

    def all_replicas(self, caller: Caller) -> Sequence[Replica]:
        """Tell everything that serves now; for the gateway alone, as everything below."""
        self._desk.access.check_administers(caller)
        return self._kept.replicas.all()

    def start_replica(self, caller: Caller, ask: ReplicaAsk) -> Replica:
        """Ask for a job that serves a version, as the function's owner."""
        self._desk.access.check_administers(caller)
        version, inherited = self._kept.to_start(ask.function, ask.version)
        if version.state is not VersionState.READY:
            raise RequestError(f"{version.label} is {version.state.value}", hint=version.reason)
        job_id, asker = new_job_id(), Submitter(version.owner_uid, (), inherited)
        submission, directory = self._deployer.replica(version, job_id, asker.account)
        replica = Replica(job_id, version.function, version.number, directory, ReplicaState.STARTING)
        try:
            self._kept.replicas.put(replica, version.created_at_seconds)
            self._desk.engine.submit_all([submission], asker, lambda: job_id)
        except BaseException:  # a thread that is ended, too: nobody else would ever forget it
            self._forget(job_id)
            raise
        if replica not in self._kept.replicas.all(ask.function):
            self._end([job_id])
            self._forget(job_id)
            raise missing(ask.function)
        return replica

    def build(self, caller: Caller, ask: ReplicaAsk) -> Job:
        """Ask for the job that installs a version's packages, as the function's owner, or return the one that does; `judge` ends it."""
        self._desk.access.check_administers(caller)
        version, inherited = self._kept.to_start(ask.function, ask.version)
        if version.state is not VersionState.PENDING:
            raise RequestError(f"{version.label} is {version.state.value} already")
        if (under_way := dict(self._filling()).get(self._deployer.build_name(version))) is not None:
            return under_way
        asker = Submitter(version.owner_uid, (), inherited)
        job = self._desk.engine.submit_all([self._deployer.build(version, asker.account)], asker)[0]
        if version not in self._versions_of(ask.function):
            self._end([job.id], 0.0)
            raise missing(ask.function)
        return job

    def _versions_of(self, name: str) -> Sequence[Version]:
        return next((each.versions for each in self._kept.all(None) if each.name == name), ())

    def _filled_for(self, functions: Sequence[Function]) -> set[str]:
        if self._deploying is None:
            return set()
        return {name for each in functions for version in each.versions for name in self._deploying.filled_for(version)}

    def _filling(self) -> Iterator[tuple[str, Job]]:
        """Yield the jobs that fill a directory and were not told to end, each behind its name."""
        for entry in self._desk.engine.ledger.entries(include_final=False) if self._deploying is not None else ():
            name = self._deployer.filled_by(entry.job.spec)
            if name is not None and not entry.job.state.is_final and entry.stop_grace_seconds is None:
                yield name, entry.job

    def note_replica(self, caller: Caller, job_id: str, state: ReplicaState) -> None:
        """Note where a replica is in its life."""
        self._desk.access.check_administers(caller)
        if not self._kept.replicas.note(job_id, state):
            raise FunctionNotFoundError(f"job {job_id} serves nothing")

    def forget_replica(self, caller: Caller, job_id: str) -> None:
        """Forget a replica whose job has ended."""
        self._desk.access.check_administers(caller)
        self._forget(job_id)

    def _forget(self, job_id: str) -> None:
        self._kept.replicas.remove(job_id)
        self._deployer.forget(job_id)

    def judge(self, caller: Caller, name: str, judgement: Judgement) -> None:
        """Note whether a version can be served."""
        self._desk.access.check_administers(caller)
        made, version = judgement.created_at_seconds, self._kept.get(name).version(judgement.version)
        if made not in {None, version.created_at_seconds}:
            raise missing(name)
        if judgement.state is VersionState.READY:
            self._deployer.keep_build(version)
        else:
            self._deployer.forget_build(version)
        self._kept.judge(name, judgement.version, judgement.state, judgement.reason, made)

    def note_cold_start(self, caller: Caller, name: str, start: ColdStart) -> None:
        """Keep how long a start took."""
        self._desk.access.check_administers(caller)
        if start.function != name:
            raise RequestError(f"the start is one of {start.function!r}")
        self._kept.replicas.note_start(start)
        if self._deploying is not None:
            with contextlib.suppress(PgpuError):  # the next starts take longer, and nothing else
                self._compile(name, start.version)

    def _compile(self, name: str, number: int) -> None:
        version, inherited = self._kept.to_start(name, number)
        asker = Submitter(version.owner_uid, (), inherited)
        submission = self._deployer.bytecode(version, asker.account)
        if submission is not None:
            self._desk.engine.submit_all([submission], asker)

    def bearer(self, caller: Caller, shown: Shown) -> Bearer:
        """Tell what a token is good for. Its secret part has 256 random bits, so that a plain digest keeps it well."""
        self._desk.access.check_administers(caller)
        prefix, _, rest = shown.token.partition("_")
        token_id, _, secret = rest.partition("_")
        if prefix != TOKEN_PREFIX:
            uid = self._desk.access.uid_of_token(shown.token) if shown.token.isascii() else None
            return Bearer(uid=uid, is_admin=uid is not None and administers(uid))
        found = self._kept.tokens.digest(token_id) if token_id.isascii() else None
        is_it = found is not None and hmac.compare_digest(found[1], _digest(secret))
        return Bearer(found[0]) if found is not None and is_it else Bearer()

    def _end(self, job_ids: Sequence[str], grace_seconds: float = _GRACE_SECONDS) -> None:
        ledger = self._desk.engine.ledger
        live = {entry.job.id for entry in ledger.entries(include_final=False) if not entry.job.state.is_final}
        told = [job_id for job_id in job_ids if job_id in live]
        if told:
            self._desk.engine.ask_all_to_stop(told, grace_seconds)


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()
