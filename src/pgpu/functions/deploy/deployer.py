"""A server's hands for functions: bundles and packages on its shelves, and directories for the sockets of replicas.

Joined to the server by `app`, since the server stands below this room. It refuses to start anything.
"""

import importlib.util
import os
import stat
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path

from pgpu.capped_tmpfs import mount_capped, unmount
from pgpu.errors import NodeError, RequestError
from pgpu.functions.deploy.bundle_store import BundleStore, BundleUpload
from pgpu.functions.deploy.deployment_validation import validate_deployment
from pgpu.functions.deploy.package_layers import (
    LOCK_NAME,
    build_spec,
    bytecode_digest,
    bytecode_spec,
    layer_digest,
    output_directory_of,
)
from pgpu.functions.deploy.replica_job import ReplicaPaths, declaration_of, replica_request, replica_spec
from pgpu.functions.deploy.untrusted_tree import remove_tree
from pgpu.model import Account, Deployment, JobSpec, Request, Submission, Version

_OWN = ("pgpu", "msgspec", "uvicorn", "httptools", "h11", "click", "prometheus_client")
"""What a front and a worker import, with what that imports."""

_SOCKETS_BYTES, _MOST_SOCKETS = 1 << 20, 16
"""Of one container's directory: what it writes there lies in the machine's memory, and no limit of disks counts it."""


@dataclass(frozen=True, slots=True)
class Deployer:
    """What `pgpu.server.function_service.FunctionStore` asks for."""

    store: BundleStore
    sockets: Path
    """Where the directories of replicas are made, on a tmpfs; the path of a socket has no more than 107 bytes."""

    def checked(self, asked: Deployment, owner_uid: int) -> Deployment:
        """Return a deployment in plain words.

        Raises:
            RequestError: It can never be served, or its bundle was not sent.
        """
        plain = validate_deployment(asked)
        self.store.tree(owner_uid, plain.bundle)
        return plain

    def trial(self, asked: Deployment, owner_uid: int) -> Submission:
        """Return the job that would serve it, for the engine to say whether it ever could."""
        source = self.store.tree(owner_uid, asked.bundle)
        places = ReplicaPaths(source, self.sockets, own=tuple(_own()), user=_own_user(owner_uid))
        return Submission(replica_spec(asked, places), _request(asked))

    def has(self, owner_uid: int, digest: str) -> bool:
        """Whether a bundle of this user is there."""
        return self.store.has(owner_uid, digest)

    def receiving(self, owner_uid: int) -> AbstractContextManager[BundleUpload]:
        """Take in a bundle; see `BundleStore.receiving`."""
        return self.store.receiving(owner_uid)

    def sweep(self, owner_uid: int, kept: Collection[Version]) -> None:
        """Throw away what none of a user's versions is made of."""
        layers = {digest for version in kept if (digest := layer_digest(version)) is not None}
        layers |= {digest for version in kept if (digest := bytecode_digest(version)) is not None}
        layers |= {_building(version) for version in kept}
        self.store.sweep(owner_uid, {version.bundle for version in kept}, layers)

    def replica(self, version: Version, job_id: str, account: Account | None) -> tuple[Submission, str]:
        """Return the job that serves a version, and the directory of its sockets, which is made and the account's.

        Raises:
            RequestError: Its bundle or its packages are gone.
            NodeError: The directory cannot be made.
        """
        sockets = self.sockets / job_id
        places = self._places(version, sockets)
        _make_for(sockets, account, is_capped=version.runtime == "docker")
        return Submission(replica_spec(version, places), _request(version)), str(sockets)

    def bytecode(self, version: Version, account: Account | None) -> Submission | None:
        """Return the job that makes the byte code of a version's image, into a directory that is made and the account's.

        Replicas read there from then on, whatever of it is ready. None where it was asked for before, or is not needed.

        Raises:
            RequestError: Its bundle or its packages are gone.
            NodeError: It cannot be made.
        """
        digest = bytecode_digest(version)
        if digest is None or (directory := self.store.layer(version.owner_uid, digest)).exists():
            return None
        places = self._places(version, self.sockets)
        _make_for(directory, account)
        return Submission(bytecode_spec(version, directory, places), Request(0, 0))

    def forget(self, job_id: str) -> None:
        """Remove the directory of a replica that has ended, and of a build."""
        if job_id.isalnum():
            with suppress(OSError):  # what stays mounted stays listed, and the server's next start tries again
                unmount(self.sockets / job_id)
            remove_tree(self.sockets / job_id)

    def left(self) -> Sequence[str]:
        """Return the jobs of which directories of replicas are there."""
        return [path.name for path in self.sockets.glob("*") if path.name.isalnum()]

    def is_built(self, version: Version) -> bool:
        """Whether a version's packages are there, or it needs none."""
        digest = layer_digest(version)
        return digest is None or self.store.has_layer(version.owner_uid, digest)

    def build(self, version: Version, account: Account | None) -> Submission:
        """Return the job that installs a version's packages, into a directory that is made and the account's.

        Raises:
            NodeError: It cannot be made.
        """
        directory = self._beside_layers(version)
        self.forget_build(version)
        _make_for(directory, account)
        (directory / LOCK_NAME).write_text(version.requirements or "", "utf-8")
        (directory / LOCK_NAME).chmod(0o644)
        return Submission(build_spec(version, directory, tuple(_own()), _own_user(version.owner_uid)), Request(0, 0))

    def build_name(self, version: Version) -> str:
        """Return what tells the job that installs a version's packages from every other."""
        return f"{version.owner_uid}/{_building(version)}"

    def filled_for(self, version: Version) -> Collection[str]:
        """Return the names of the directories that jobs fill for a version: with its packages, and with byte code."""
        return {self.build_name(version), f"{version.owner_uid}/{bytecode_digest(version)}"}

    def filled_by(self, spec: JobSpec) -> str | None:
        """Return the name of the directory that a job fills; None of any other job."""
        directory = output_directory_of(spec)
        return None if directory is None else "/".join(Path(directory).parts[-2:])

    def keep_build(self, version: Version) -> None:
        """Put packages that were installed in their place; from then on nobody but this process may change them.

        Raises:
            RequestError: There are none, or this user has too many.
        """
        digest = layer_digest(version)
        if digest is None or self.is_built(version):
            return
        made = self._beside_layers(version)
        try:
            if not _is_directory(made / "packages"):
                raise RequestError(f"the packages of {version.label} were not installed")
            self.store.check_layers(version.owner_uid)
            # The shelf is closed to others, so the owner cannot reach below it any more once this name is gone.
            with suppress(OSError):  # two versions with one lock file: both are the same
                (made / "packages").rename(self.store.layer(version.owner_uid, digest))
        finally:
            self.forget_build(version)

    def forget_build(self, version: Version) -> None:
        """Remove what was installed of packages that are not kept."""
        if version.requirements is not None:
            remove_tree(self._beside_layers(version))

    def _places(self, version: Version, sockets: Path) -> ReplicaPaths:
        owner_uid = version.owner_uid
        digest, made = layer_digest(version), bytecode_digest(version)
        if digest is not None and not self.store.has_layer(owner_uid, digest):
            raise RequestError(f"the packages of {version.label} are gone", hint="deploy it again")
        packages = None if digest is None else self.store.layer(owner_uid, digest)
        bytecode = self.store.layer(owner_uid, made) if made and self.store.has_layer(owner_uid, made) else None
        source, own = self.store.tree(owner_uid, version.bundle), tuple(_own())
        return ReplicaPaths(source, sockets, packages, own, _own_user(owner_uid), bytecode)

    def _beside_layers(self, version: Version) -> Path:
        return self.store.layer(version.owner_uid, layer_digest(version) or "").with_name(_building(version))


def _is_directory(path: Path) -> bool:
    """Whether it is one itself: the owner made what is there, and a link would be followed by the engine, as root."""
    try:
        return stat.S_ISDIR(path.lstat().st_mode)
    except OSError:
        return False


def _building(version: Version) -> str:
    """Return the name of the directory in which a version's packages are installed; no digest, and no other version's."""
    return f"building-{version.function}-{version.number}-{version.created_at_seconds!r}"


def _request(version: Version | Deployment) -> Request:
    return replica_request(declaration_of(version))


def _own() -> Iterator[Path]:
    for name in _OWN:
        spec = importlib.util.find_spec(name)
        places: Sequence[str] = () if spec is None else spec.submodule_search_locations or ()
        yield from (Path(place) for place in list(places)[:1])


def _own_user(owner_uid: int) -> str | None:
    """Whoever runs a server is the same user in their own containers; for others the runtime says it."""
    return f"{os.geteuid()}:{os.getegid()}" if owner_uid == os.geteuid() else None


def _make_for(directory: Path, account: Account | None, *, is_capped: bool = False) -> None:
    try:
        directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        directory.mkdir(mode=0o700)
        if is_capped:
            mount_capped(directory, _SOCKETS_BYTES, _MOST_SOCKETS)
        if account is not None and account.uid != os.geteuid():
            os.chown(directory, account.uid, account.gid)
    except OSError as exc:
        raise NodeError(f"{directory} cannot be made: {exc.strerror}") from exc
