"""Operations on deployed functions for one caller: owners on their own functions, administrators on all.

An unknown function and another user's function give the same error. The room of functions interprets declarations and
stores bundles; it is passed in as a `FunctionStore`. The gateway carries the calls and decides when replicas start.
"""

import contextlib
import hmac
import os
import secrets
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from pgpu.distribution import extra_hint
from pgpu.engine.engine import Engine
from pgpu.engine.job_submission import check, new_job_id
from pgpu.engine.submitter import Submitter, account_of
from pgpu.errors import FunctionNotFoundError, LedgerError, PgpuError, RequestError
from pgpu.host.audit_log import OF_FUNCTIONS, AuditLog
from pgpu.ledger.functions import function_not_found
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
from pgpu.services.access import Caller, administers
from pgpu.services.administration import digest_of, end_of_token
from pgpu.services.messages import Bearer, Judgement, NewFunctionToken, ReplicaAsk, Rollout, SecretReport, Shown
from pgpu.structs import Struct

TOKEN_PREFIX = "pgpufn"  # noqa: S105 - marks the text after it as a token
_MOST_LABEL = 200
_GRACE_SECONDS = 10.0
"""For replicas of a removed function, to finish the calls that they have."""


class BundleUpload(Protocol):
    """A bundle that is being received."""

    def write(self, data: bytes) -> None:
        """Append data; RequestError if the bundle is too long."""
        ...

    def keep(self, digest: str) -> None:
        """Store the bundle durably; RequestError if its digest differs or it is no bundle."""
        ...


class SecretKeeper(Protocol):
    """Secrets of users by name."""

    def put(self, owner_uid: int, name: str, value: bytes) -> None:
        """Create or replace a secret; RequestError for an invalid name or value."""
        ...

    def names(self, owner_uid: int) -> Mapping[str, float]:
        """Return when each secret of a user was set, in seconds since the epoch."""
        ...

    def remove(self, owner_uid: int, name: str) -> None:
        """Remove a secret; RequestError if there is none."""
        ...


class FunctionStore(Protocol):
    """Declarations, bundles and the jobs made from them; implemented above this layer."""

    @property
    def changing(self) -> AbstractContextManager[object]:
        """A lock: held while secrets or caches that no version names are removed, and while a version is stored."""
        ...

    @property
    def secrets(self) -> SecretKeeper:
        """The users' secrets."""
        ...

    def secret_names(self, version: Version) -> Collection[str]:
        """Return the names of the secrets that a version gets."""
        ...

    def validate(self, deployment: Deployment, owner_uid: int, functions: Sequence[Function]) -> Deployment:
        """Return a normalized deployment; RequestError for one that can never be served."""
        ...

    def has(self, owner_uid: int, digest: str) -> bool:
        """Whether a bundle of this user is stored."""
        ...

    def receive(self, owner_uid: int) -> AbstractContextManager[BundleUpload]:
        """Receive a bundle; on exit a bundle that was not kept is removed."""
        ...

    def trial_job(self, deployment: Deployment, owner_uid: int) -> Submission:
        """Return the job that would serve a deployment."""
        ...

    def replica(self, version: Version, job_id: str, account: Account | None) -> tuple[Submission, str]:
        """Return the job that serves a version, and its socket directory, which is created for the account."""
        ...

    def forget(self, job_id: str) -> None:
        """Remove the socket directory of a replica that has ended."""
        ...

    def jobs_with_sockets(self) -> Sequence[str]:
        """Return the ids of jobs that have a socket directory."""
        ...

    def is_built(self, version: Version) -> bool:
        """Whether a version's packages are installed and its cache is filled, as far as it has them."""
        ...

    def build(self, version: Version, account: Account | None) -> Submission:
        """Return a pending version's next job: it installs the packages, or else fills the cache."""
        ...

    def bytecode(self, version: Version, account: Account | None) -> Submission | None:
        """Return the job that compiles the modules that replicas load; None if it ran before or is not needed."""
        ...

    def build_name(self, version: Version) -> str:
        """Return the directory name that identifies a pending version's next job."""
        ...

    def output_names(self, version: Version) -> Collection[str]:
        """Return the names of the directories that jobs fill for a version: packages, cache and byte code."""
        ...

    def output_name(self, spec: JobSpec) -> str | None:
        """Return the name of the directory that a job fills; None for any other job."""
        ...

    def keep_build(self, version: Version, functions: Sequence[Function]) -> None:
        """Publish what a version's last job has made; RequestError if that is nothing, or too much with its owner's functions."""
        ...

    def forget_build(self, version: Version) -> None:
        """Remove what is not published."""
        ...

    def forget_fills(self, pending: Sequence[Version]) -> None:
        """Remove the copies of secrets for builds of all versions but these."""
        ...

    def outdated(self, functions: Sequence[Function]) -> Sequence[Version]:
        """Return the versions of a user's functions whose generation of a cache is not kept."""
        ...

    def hide_caches(self, owner_uid: int, functions: Sequence[Function]) -> None:
        """Hide the caches that none of a user's versions uses, until `sweep` removes them."""
        ...

    def sweep(self, owner_uid: int, functions: Sequence[Function]) -> None:
        """Remove what is hidden, and what none of a user's versions uses."""
        ...


class FunctionHost(Struct, frozen=True):
    """What all callers of one server share: the engine, the store and the check of the server's own tokens."""

    engine: Engine
    store: FunctionStore | None
    """None where the libraries of functions are not installed: nothing can be deployed then."""

    uid_of_token: Callable[[str], int | None]

    def end_leftovers(self) -> None:
        """End replicas and build jobs of removed functions, left by a server that was killed while it removed them.

        Does nothing while the ledger cannot be used; the next start of a server repeats it.
        """
        with contextlib.suppress(LedgerError):
            functions = self.engine.ledger.functions
            left = set() if self.store is None else set(self.store.jobs_with_sockets())
            if self.store is not None and (left := left - {each.job_id for each in functions.replicas.all()}):
                self.end_jobs(sorted(left))
                for job_id in left:
                    self.store.forget(job_id)
            if self.store is not None:
                versions = (version for each in functions.all(None) for version in each.versions)
                self.store.forget_fills([each for each in versions if each.state is VersionState.PENDING])
            wanted = self.directories_of(functions.all(None))
            self.end_jobs([job.id for name, job in self.filling_jobs() if name not in wanted], 0.0)

    def directories_of(self, functions: Sequence[Function]) -> set[str]:
        """Return the names of the directories that jobs fill for any version of these functions."""
        if self.store is None:
            return set()
        return {name for each in functions for version in each.versions for name in self.store.output_names(version)}

    def filling_jobs(self) -> Iterator[tuple[str, Job]]:
        """Yield (directory name, job) for each live job that fills a directory and was not requested to stop."""
        for entry in self.engine.ledger.entries(include_final=False) if self.store is not None else ():
            name = None if self.store is None else self.store.output_name(entry.job.spec)
            if name is not None and not entry.job.state.is_final and entry.stop_grace_seconds is None:
                yield name, entry.job

    def end_jobs(self, job_ids: Sequence[str], grace_seconds: float = _GRACE_SECONDS) -> None:
        """Request the end of those jobs that are not final."""
        entries = self.engine.ledger.entries(include_final=False)
        live = {entry.job.id for entry in entries if not entry.job.state.is_final}
        if found := [job_id for job_id in job_ids if job_id in live]:
            self.engine.ask_all_to_stop(found, grace_seconds)


class FunctionService:
    """Operations on functions for one caller; every method blocks. Methods from `all_replicas` on are the gateway's alone."""

    def __init__(self, host: FunctionHost, caller: Caller) -> None:
        self._host = host
        self._caller = caller
        self._engine = host.engine
        self._functions = host.engine.ledger.functions

    @property
    def _store(self) -> FunctionStore:
        if self._host.store is None:
            raise RequestError("this server serves no functions", hint=extra_hint("functions"))
        return self._host.store

    def has_bundle(self, digest: str) -> None:
        """Check that the caller has sent a bundle of this SHA-256 before; 404 if not."""
        if not self._store.has(self._caller.uid, digest):
            raise FunctionNotFoundError(f"there is no bundle {digest} of yours", hint="send it: PUT")

    def receive(self) -> AbstractContextManager[BundleUpload]:
        """Receive a bundle of the caller's.

        Raises:
            AccessError: The caller may not deploy.
            CapacityError: The caller has too many bundles already.
        """
        self._caller.check_submits()
        return self._store.receive(self._caller.uid)

    def create_version(self, asked: Deployment) -> Version:
        """Keep a new version of a function durably; the first one gets all of the traffic.

        Raises:
            AccessError: The caller may not deploy.
            RequestError: It can never be served, or the name is another user's.
        """
        caller = self._caller
        caller.check_submits()
        if asked.runtime == "process" and caller.uid != os.geteuid():
            raise RequestError(
                "on a server functions of its users run in containers", hint="name an image: --runtime docker --image"
            )
        checked = self._store.validate(asked, caller.uid, self._functions.all(caller.uid))
        inherited = caller.inheritance(None)
        trial, account = self._store.trial_job(checked, caller.uid), account_of(inherited, ())
        # The slice's size is unknown before the first run, so only the command is checked.
        if trial.request.is_estimated:
            self._engine.runtime(trial.spec.runtime).check(trial.spec, account)
        else:
            check(self._engine, trial.spec, trial.request, account)
        with self._store.changing:
            # Again: a secret or a cache may have been removed since.
            checked = self._store.validate(checked, caller.uid, self._functions.all(caller.uid))
            version = self._functions.deploy(checked, caller.uid, inherited)
        self._sweep(caller.uid)
        if version.state is VersionState.PENDING and self._store.is_built(version):
            self._functions.set_version_state(version.function, version.number, VersionState.READY)
            return self._functions.get(version.function).version(version.number)
        return version

    def set_secret(self, name: str, value: bytes) -> None:
        """Keep a secret of the caller's, in place of one of the same name.

        Raises:
            AccessError: The caller may not deploy.
            RequestError: The name or the value is invalid.
        """
        self._caller.check_submits()
        self._store.secrets.put(self._caller.uid, name, value)
        self._note("secret.set", secret=name)

    def secrets(self) -> Sequence[SecretReport]:
        """List the caller's secrets, without their values."""
        uses = self._secret_uses()
        names = self._store.secrets.names(self._caller.uid)
        return [SecretReport(name, at_seconds, tuple(uses.get(name, ()))) for name, at_seconds in names.items()]

    def remove_secret(self, name: str) -> None:
        """Remove a secret of the caller's.

        Raises:
            RequestError: There is none, or a version names it.
        """
        with self._store.changing:
            if users := self._secret_uses().get(name):
                more = "" if len(users) == 1 else f" and {len(users) - 1} more"
                raise RequestError(
                    f"{users[-1]}{more} gets the secret {name}", hint="pgpu function undeploy, and deploy without it"
                )
            self._store.secrets.remove(self._caller.uid, name)
        self._note("secret.remove", secret=name)

    def _secret_uses(self) -> Mapping[str, Sequence[str]]:
        """Return the labels of the versions that get each of the caller's secrets."""
        uses: dict[str, list[str]] = {}
        for version in (each for found in self._functions.all(self._caller.uid) for each in found.versions):
            for name in self._store.secret_names(version):
                uses.setdefault(name, []).append(version.label)
        return uses

    def functions(self) -> Sequence[Function]:
        """List the caller's functions, for an administrator all, by name."""
        return self._functions.all(self._caller.sees_uid)

    def function(self, name: str) -> Function:
        """Return one function with its versions and its traffic.

        Raises:
            FunctionNotFoundError: The caller sees none of this name; so of every method that takes a name.
        """
        return self._functions.get(name, self._caller.sees_uid)

    def undeploy(self, name: str) -> Sequence[str]:
        """Remove a function; return the ids of the jobs that served it, which end now."""
        found, host = self.function(name), self._host
        job_ids = [replica.job_id for replica in self._functions.replicas.all(name)]
        # The ledger first: a server that is killed from here on ends the leftovers at its next start.
        self._functions.remove(name, found.identity)
        host.end_jobs(job_ids)
        unwanted = host.directories_of([found]) - host.directories_of(self._functions.all(found.owner_uid))
        host.end_jobs([job.id for name, job in host.filling_jobs() if name in unwanted], 0.0)
        for job_id in job_ids if host.store is not None else ():
            self._forget(job_id)  # The function's removal was the last reference to them.
        for version in found.versions if host.store is not None else ():
            if version.state is VersionState.PENDING:
                self._store.forget_build(version)
        self._sweep(found.owner_uid)
        return job_ids

    def _sweep(self, owner_uid: int) -> None:
        if (store := self._host.store) is None:
            return
        with store.changing:
            # First as failed in the ledger: then no rollout and no rollback chooses a version without its cache.
            for version in store.outdated(self._functions.all(owner_uid)):
                with contextlib.suppress(FunctionNotFoundError):  # it was removed meanwhile
                    reason, created = "newer generations have replaced its cache", version.created_at_seconds
                    self._functions.set_version_state(
                        version.function, version.number, VersionState.FAILED, reason, created
                    )
            store.hide_caches(owner_uid, self._functions.all(owner_uid))
        # Without the lock, which all users share: what is removed may have millions of files.
        store.sweep(owner_uid, self._functions.all(owner_uid))

    def roll_out(self, name: str, rollout: Rollout) -> Function:
        """Give a version all of the traffic, or a part; the rest goes to the version that had most of it."""
        found = self.function(name)
        found.version(rollout.version)
        traffic = with_canary(found.traffic, rollout.version, rollout.percent)
        return self._functions.roll_out(name, traffic, found.identity)

    def roll_back(self, name: str) -> Function:
        """Restore the traffic from before the version that was rolled out last."""
        return self._functions.roll_back(name, self.function(name).identity)

    def tokens(self, name: str) -> Sequence[FunctionToken]:
        """List the tokens that may call a function, without their secret parts."""
        self.function(name)
        return self._functions.tokens.of(name)

    def create_token(self, name: str, label: str = "", expires_in_seconds: float | None = None) -> NewFunctionToken:
        """Make a token that may call this function; it is shown this once."""
        found = self.function(name)
        if len(label) > _MOST_LABEL:
            raise RequestError(f"a label has up to {_MOST_LABEL} characters")
        end_seconds = end_of_token(expires_in_seconds)
        token_id, secret = secrets.token_hex(6), secrets.token_urlsafe(32)
        self._functions.tokens.put(token_id, name, digest_of(secret), label, found.identity, end_seconds)
        self._note("function-token.create", function=name, token=token_id, expires_at_seconds=end_seconds)
        return NewFunctionToken(token_id, f"{TOKEN_PREFIX}_{token_id}_{secret}", end_seconds)

    def revoke_token(self, name: str, token_id: str) -> None:
        """Revoke a token."""
        self.function(name)
        if not self._functions.tokens.remove(name, token_id):
            raise RequestError(f"{name} has no token {token_id}", hint=f"`pgpu function token {name} list` lists them")
        self._note("function-token.revoke", function=name, token=token_id)

    def _note(self, action: str, **details: object) -> None:
        log = AuditLog(self._engine.settings.state_directory, name=OF_FUNCTIONS)
        log.write(action, **self._caller.actor(), **details)

    def replicas(self, name: str) -> Sequence[Replica]:
        """List the replicas of a function."""
        self.function(name)
        return self._functions.replicas.all(name)

    def cold_starts(self, name: str, limit: int = 100) -> Sequence[ColdStart]:
        """List a function's last cold starts with their phases, the newest first."""
        self.function(name)
        return self._functions.replicas.starts(name, limit)

    def all_replicas(self) -> Sequence[Replica]:
        """List the replicas of all functions; for the gateway."""
        self._caller.check_administers()
        return self._functions.replicas.all()

    def start_replica(self, ask: ReplicaAsk) -> Replica:
        """Submit a job that serves a version, as the function's owner; for the gateway."""
        self._caller.check_administers()
        version, inherited = self._functions.version_to_start(ask.function, ask.version)
        if version.state is not VersionState.READY:
            raise RequestError(f"{version.label} is {version.state.value}", hint=version.reason)
        job_id, owner = new_job_id(), Submitter(version.owner_uid, (), inherited)
        submission, directory = self._store.replica(version, job_id, owner.account)
        replica = Replica(job_id, version.function, version.number, directory, ReplicaState.STARTING)
        try:
            # The replica is stored before its job: a crash in between leaves a replica without a job, which the gateway
            # removes, and never a job that no replica names.
            self._functions.replicas.put(replica, version.created_at_seconds)
            self._engine.submit_all([submission], owner, lambda: job_id)
        except BaseException:  # KeyboardInterrupt, too: nothing else would remove the replica.
            self._forget(job_id)
            raise
        # The function may have been removed between the two transactions; nothing would end the job then.
        if replica not in self._functions.replicas.all(ask.function):
            self._host.end_jobs([job_id])
            self._forget(job_id)
            raise function_not_found(ask.function)
        return replica

    def build(self, ask: ReplicaAsk) -> Job:
        """Submit the job that installs a version's packages, as the function's owner, or return the running one; for the gateway."""
        self._caller.check_administers()
        version, inherited = self._functions.version_to_start(ask.function, ask.version)
        if version.state is VersionState.PENDING and self._store.is_built(version):
            # Another version's job has made the same, or the server was killed before it stored the state.
            self.judge(ask.function, Judgement(version.number, VersionState.READY, None, version.created_at_seconds))
            version = self._functions.get(ask.function).version(version.number)
        if version.state is not VersionState.PENDING:
            raise RequestError(f"{version.label} is {version.state.value} already")
        if (running := dict(self._host.filling_jobs()).get(self._store.build_name(version))) is not None:
            return running
        owner = Submitter(version.owner_uid, (), inherited)
        job = self._engine.submit_all([self._store.build(version, owner.account)], owner)[0]
        versions = (each.versions for each in self._functions.all(None) if each.name == ask.function)
        if version not in next(versions, ()):  # The function was removed meanwhile.
            self._host.end_jobs([job.id], 0.0)
            raise function_not_found(ask.function)
        return job

    def note_replica(self, job_id: str, state: ReplicaState) -> None:
        """Store the state of a replica; for the gateway."""
        self._caller.check_administers()
        if not self._functions.replicas.note(job_id, state):
            raise FunctionNotFoundError(f"job {job_id} serves nothing")

    def forget_replica(self, job_id: str) -> None:
        """Remove a replica after the end of its job, with its socket directory; for the gateway."""
        self._caller.check_administers()
        self._forget(job_id)

    def _forget(self, job_id: str) -> None:
        self._functions.replicas.remove(job_id)
        self._store.forget(job_id)

    def judge(self, name: str, judgement: Judgement) -> None:
        """Store whether a version can be served; for the gateway."""
        self._caller.check_administers()
        created, version = judgement.created_at_seconds, self._functions.get(name).version(judgement.version)
        # Name and number may belong to a version that was deployed after the tried one was removed.
        if created not in {None, version.created_at_seconds}:
            raise function_not_found(name)
        if judgement.state is VersionState.READY:
            self._store.keep_build(version, self._functions.all(version.owner_uid))
            if not self._store.is_built(version):
                return  # Its packages are there, and its cache is next: the gateway finds it pending.
        else:
            self._store.forget_build(version)
        self._functions.set_version_state(name, judgement.version, judgement.state, judgement.reason, created)
        self._sweep(version.owner_uid)

    def note_cold_start(self, name: str, start: ColdStart) -> None:
        """Store the phases of a start; for the gateway."""
        self._caller.check_administers()
        if start.function != name:
            raise RequestError(f"the start is one of {start.function!r}")
        self._functions.replicas.note_start(start)
        if self._host.store is not None:
            with contextlib.suppress(PgpuError):  # Without byte code the next starts take longer.
                version, inherited = self._functions.version_to_start(name, start.version)
                owner = Submitter(version.owner_uid, (), inherited)
                submission = self._host.store.bytecode(version, owner.account)
                if submission is not None:
                    self._engine.submit_all([submission], owner)

    def bearer(self, shown: Shown) -> Bearer:
        """Return what a token permits; for the gateway."""
        self._caller.check_administers()
        prefix, _, rest = shown.token.partition("_")
        token_id, _, secret = rest.partition("_")
        if prefix != TOKEN_PREFIX:
            uid = self._host.uid_of_token(shown.token) if shown.token.isascii() else None
            return Bearer(uid=uid, is_admin=uid is not None and administers(uid))
        found = self._functions.tokens.digest(token_id) if token_id.isascii() else None
        is_valid = found is not None and hmac.compare_digest(found[1], digest_of(secret))
        return Bearer(found[0]) if found is not None and is_valid else Bearer()
