"""A server's bundles, packages and jobs of functions, and the socket directories of their replicas.

The server is in a lower layer, so `app` passes it a `Deployer`. Jobs are described here and started by the engine.
"""

import importlib.util
import json
import os
import re
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from pgpu.errors import NodeError, PgpuError, RequestError
from pgpu.functions.api import CacheUse, check_name, dump_declaration, parse_declaration
from pgpu.functions.deploy.bundle_store import BundleStore, IncomingBundle, remove_tree
from pgpu.functions.deploy.secret_store import SecretStore
from pgpu.functions.deploy.version_jobs import (
    LOCK_NAME,
    ReplicaPaths,
    build_spec,
    bytecode_digest,
    bytecode_spec,
    cache_generation,
    declaration_of,
    fill_spec,
    layer_digest,
    output_directory_of,
    replica_request,
    replica_spec,
)
from pgpu.model import Account, Deployment, Function, JobSpec, Request, Submission, Version, VersionState
from pgpu.structs import Struct, field, replace
from pgpu.tmpfs import mount_capped, unmount
from pgpu.units import KIB, quoted

# Packages that a replica and its worker import, with their dependencies; mounted into containers.
_OWN = ("pgpu", "msgspec", "uvicorn", "httptools", "h11", "click", "prometheus_client")

# Limits of one container's directory: it lies in the machine's memory, which no disk quota counts.
_SOCKETS_BYTES, _MOST_SOCKETS = 1 << 20, 16

_APP = re.compile(r"[\w./-]{1,256}(:[\w.]{1,256})?")
_MOST_REQUIREMENTS_BYTES = 256 * KIB
_MOST_DECLARATION_BYTES = 64 * KIB
_MOST_IMAGE = 512


def validate_deployment(deployment: Deployment) -> Deployment:
    """Check a deployment without its bundle, and return it with its declaration in the form that the ledger stores.

    Whether the machine has enough memory for it is the engine's decision.

    Raises:
        RequestError: It can never be served.
    """
    check_name(deployment.function)
    path = deployment.app.partition(":")[0]
    if not _APP.fullmatch(deployment.app) or deployment.app.startswith(("/", "-")) or ".." in path.split("/"):
        raise RequestError(f"{quoted(deployment.app)} names no callable", hint="write it like app.py:Detector")
    if (deployment.runtime == "docker") != (deployment.image is not None):
        raise RequestError("the runtime docker needs an image, and no other takes one")
    if deployment.image is not None and len(deployment.image) > _MOST_IMAGE:
        raise RequestError("the image's name is too long")
    plain = replace(deployment, declaration=_plain_declaration(deployment.declaration))
    _check_mounts(plain)
    if deployment.requirements is not None:
        if (
            len(deployment.requirements.encode("utf-8", "replace")) > _MOST_REQUIREMENTS_BYTES
            or "\0" in deployment.requirements
        ):
            raise RequestError(f"requirements are text of at most {_MOST_REQUIREMENTS_BYTES // KIB} KiB")
        try:
            deployment.requirements.encode()
        except UnicodeEncodeError as exc:
            raise RequestError("the requirements are not UTF-8") from exc
    return plain


def _check_mounts(deployment: Deployment) -> None:
    declaration = declaration_of(deployment)
    if deployment.runtime == "process" and (declaration.mounts or declaration.cache is not None):
        raise RequestError("only containers have mounts and caches", hint="name an image: --image")
    for mount in declaration.mounts:
        if not mount.source.startswith("/"):
            raise RequestError(
                f"{quoted(mount.source)} is no absolute path of the server's machine", hint="write it like /srv/weights"
            )


def _plain_declaration(declaration: str) -> str:
    try:
        fields = json.loads(declaration)
    except (ValueError, RecursionError) as exc:
        raise RequestError(f"the declaration is no JSON: {exc}") from exc
    if not isinstance(fields, dict) or len(declaration) > _MOST_DECLARATION_BYTES:
        raise RequestError(f"a declaration is an object of at most {_MOST_DECLARATION_BYTES // KIB} KiB")
    try:
        return json.dumps(dump_declaration(parse_declaration(fields)), sort_keys=True)
    except (OverflowError, RecursionError) as exc:
        raise RequestError("the declaration holds a number that is out of range") from exc


class Deployer(Struct, frozen=True):
    """Implements `pgpu.services.function_service.FunctionStore`; called in the server's threads."""

    store: BundleStore
    secrets: SecretStore
    sockets: Path
    """Parent of the replicas' directories, on a tmpfs; a socket's path has at most 107 bytes."""

    changing: threading.Lock = field(default_factory=threading.Lock)
    """Held while secrets or caches that no version names are removed, and while a version is stored."""

    def validate(self, deployment: Deployment, owner_uid: int, functions: Sequence[Function] = ()) -> Deployment:
        """Validate a deployment, and name the generation of its cache; see `validate_deployment`.

        Args:
            deployment: Of this user.
            owner_uid: The user.
            functions: The user's.

        Raises:
            RequestError: It can never be served, or its bundle was not sent.
        """
        plain = validate_deployment(deployment)
        _check_own_sources(plain, owner_uid)
        self.store.tree(owner_uid, plain.bundle)
        self.secrets.check(owner_uid, self.secret_names(plain))
        return self._with_generation(plain, owner_uid, functions)

    def _with_generation(self, plain: Deployment, owner_uid: int, functions: Sequence[Function]) -> Deployment:
        declaration = declaration_of(plain)
        cache = declaration.cache
        if cache is None:
            return replace(plain, is_filled=False)
        if declaration.fill is not None:
            generation: str | None = cache_generation(plain, self.store.tree(owner_uid, plain.bundle))
        elif cache.generation is not None:
            generation = cache.generation
        else:
            found = (each for version, each in _caches_by_age(functions) if version.state is VersionState.READY)
            generation = next((each.generation for each in found if each.name == cache.name), None)
        named = CacheUse(cache.name, cache.target, generation)
        if declaration.fill is None and (generation is None or not self.store.has_cache(owner_uid, named.label)):
            raise RequestError(f"you have no cache {quoted(cache.label)}", hint="--fill COMMAND fills one")
        words = {**json.loads(plain.declaration), "cache": str(named)}
        return replace(plain, declaration=json.dumps(words, sort_keys=True), is_filled=declaration.fill is not None)

    def secret_names(self, version: Version | Deployment) -> Collection[str]:
        """Return the names of the secrets that a version gets."""
        declaration = declaration_of(version)
        return {each.name for each in (*declaration.secrets, *declaration.fill_secrets)}

    def trial_job(self, deployment: Deployment, owner_uid: int) -> Submission:
        """Return the job that would serve it, so that the engine can check whether it could ever start."""
        source = self.store.tree(owner_uid, deployment.bundle)
        places = ReplicaPaths(source, self.sockets, own=tuple(_own_packages()), user=_container_user(owner_uid))
        return Submission(replica_spec(deployment, places), replica_request(declaration_of(deployment)))

    def has(self, owner_uid: int, digest: str) -> bool:
        return self.store.has(owner_uid, digest)

    def receive(self, owner_uid: int) -> AbstractContextManager[IncomingBundle]:
        """Receive a bundle; see `BundleStore.receive`."""
        return self.store.receive(owner_uid)

    def hide_caches(self, owner_uid: int, functions: Sequence[Function]) -> None:
        """Hide the caches that none of a user's versions uses; `sweep` removes them."""
        versions = (version for each in functions for version in each.versions)
        pending = {_fill_name(version) for version in versions if version.state is VersionState.PENDING}
        self.store.hide_caches(owner_uid, kept_caches(functions) | pending)

    def sweep(self, owner_uid: int, functions: Sequence[Function]) -> None:
        """Remove a user's hidden caches, and the bundles and layers that none of the versions uses."""
        kept = [version for each in functions for version in each.versions]
        layers = {digest for version in kept if (digest := layer_digest(version)) is not None}
        layers |= {digest for version in kept if (digest := bytecode_digest(version)) is not None}
        layers |= {_build_directory_name(version) for version in kept}
        self.store.sweep(owner_uid, {version.bundle for version in kept}, layers)

    def replica(self, version: Version, job_id: str, account: Account | None) -> tuple[Submission, str]:
        """Return the job that serves a version, and the directory of its sockets, which is created for the account.

        Raises:
            RequestError: Its bundle or its packages are gone.
            NodeError: The directory cannot be created.
        """
        # The directory has the job's id, which exists before the job: so leftovers of a crash are found by name.
        sockets = self.sockets / job_id
        _check_own_sources(version, version.owner_uid)
        places = self._replica_paths(version, sockets)
        _make_directory(sockets, account, is_capped=version.runtime == "docker")
        if names := {each.name for each in declaration_of(version).secrets}:
            places = replace(places, secrets=self._delivered(job_id))
            try:
                self.secrets.deliver(version.owner_uid, names, self._delivered(job_id), account)
            except PgpuError:
                self.forget(job_id)
                raise
        return Submission(replica_spec(version, places), replica_request(declaration_of(version))), str(sockets)

    def bytecode(self, version: Version, account: Account | None) -> Submission | None:
        """Return the job that makes the byte code of a version's image, into a directory that is created for the account.

        Later replicas read that directory, even while it is incomplete. None if the directory exists, or for a process.

        Raises:
            RequestError: Its bundle or its packages are gone.
            NodeError: The directory cannot be created.
        """
        digest = bytecode_digest(version)
        if digest is None or (directory := self.store.layer(version.owner_uid, digest)).exists():
            return None
        places = self._replica_paths(version, self.sockets)
        _make_directory(directory, account)
        return Submission(bytecode_spec(version, directory, places), Request(0, 0))

    def forget(self, job_id: str) -> None:
        """Remove the directories of an ended replica's secrets and sockets."""
        # The id becomes a path component.
        if job_id.isalnum():
            remove_tree(self._delivered(job_id))
            # A directory that stays mounted stays in jobs_with_sockets(), and the server's next start removes it.
            with suppress(OSError):
                unmount(self.sockets / job_id)
            remove_tree(self.sockets / job_id)

    def jobs_with_sockets(self) -> Sequence[str]:
        """Return the ids of the jobs that have a socket directory."""
        return [path.name for path in self.sockets.glob("*") if path.name.isalnum()]

    def is_built(self, version: Version) -> bool:
        """Whether a version's packages are installed and its cache is filled, as far as it has them."""
        cache = declaration_of(version).cache
        return self._has_packages(version) and (cache is None or self.store.has_cache(version.owner_uid, cache.label))

    def _has_packages(self, version: Version) -> bool:
        digest = layer_digest(version)
        return digest is None or self.store.has_layer(version.owner_uid, digest)

    def outdated(self, functions: Sequence[Function]) -> Sequence[Version]:
        """Return the versions of a user's functions whose generation of a cache is not kept."""
        kept = kept_caches(functions)
        return [
            version
            for found in functions
            for version in found.versions
            if version.state is VersionState.READY
            and (cache := declaration_of(version).cache)
            and cache.label not in kept
        ]

    def build(self, version: Version, account: Account | None) -> Submission:
        """Return the next job of a pending version: it installs the packages, or else fills the cache.

        Its directory is created for the account.

        Raises:
            RequestError: A secret is gone.
            NodeError: The directory cannot be created.
        """
        if self._has_packages(version):
            return self._fill(version, account)
        # A build that was interrupted may have left a directory with a part of the packages.
        directory = self._build_directory(version)
        self.forget_build(version)
        _make_directory(directory, account)
        (directory / LOCK_NAME).write_text(version.requirements or "", "utf-8")
        (directory / LOCK_NAME).chmod(0o644)
        return Submission(
            build_spec(version, directory, tuple(_own_packages()), _container_user(version.owner_uid)), Request(0, 0)
        )

    def build_name(self, version: Version) -> str:
        """Return a name of a pending version's next job, unique among all."""
        return f"{version.owner_uid}/{(_fill_name if self._has_packages(version) else _build_directory_name)(version)}"

    def _fill(self, version: Version, account: Account | None) -> Submission:
        self.forget_build(version)
        directory = self.store.cache(version.owner_uid, _fill_name(version))
        _make_directory(directory, account)
        places = self._replica_paths(version, self.sockets, has_cache=False)
        if names := {each.name for each in declaration_of(version).fill_secrets}:
            places = replace(places, secrets=self._fill_secrets(version))
            self.secrets.deliver(version.owner_uid, names, self._fill_secrets(version), account)
        return Submission(fill_spec(version, directory, places), Request(0, 0))

    def output_names(self, version: Version) -> Collection[str]:
        """Return the names of the output directories of a version's jobs: its packages, its cache, and byte code."""
        names = (_build_directory_name(version), _fill_name(version), bytecode_digest(version))
        return {f"{version.owner_uid}/{name}" for name in names}

    def output_name(self, spec: JobSpec) -> str | None:
        """Return the name of a job's output directory; None for other jobs."""
        directory = output_directory_of(spec)
        return None if directory is None else "/".join(Path(directory).parts[-2:])

    def keep_build(self, version: Version, functions: Sequence[Function] = ()) -> None:
        """Move installed packages, or else the cache, to their address; from then on only the server can change them.

        Args:
            version: Its last job has succeeded.
            functions: The owner's.

        Raises:
            RequestError: The job left nothing, or the user's packages or caches are too large.
        """
        digest = layer_digest(version)
        if digest is None or self._has_packages(version):
            self._keep_cache(version, functions)
            return
        made = self._build_directory(version)
        try:
            packages = made / "packages"
            # The owner made this path, and the engine, as root, would follow a link.
            if packages.is_symlink() or not packages.is_dir():
                raise RequestError(f"the packages of {version.label} were not installed")
            self.store.check_layers(version.owner_uid)
            # The store's directories are closed to others, so the rename ends the owner's access by path. It fails if a version
            # with the same lock file was first: then both layers are equal.
            with suppress(OSError):
                packages.rename(self.store.layer(version.owner_uid, digest))
        finally:
            self.forget_build(version)

    def _keep_cache(self, version: Version, functions: Sequence[Function]) -> None:
        cache, made = declaration_of(version).cache, self.store.cache(version.owner_uid, _fill_name(version))
        try:
            if cache is None or self.is_built(version) or not made.is_dir():
                return  # Another version's job was first, or there was none.
            if not any(made.iterdir()):
                raise RequestError(f"its command left nothing in {cache.target}")
            self.store.check_caches(version.owner_uid, kept_caches(functions, version) | {made.name})
            # As for packages: the rename ends the owner's access by path.
            with suppress(OSError):
                made.rename(self.store.cache(version.owner_uid, cache.label))
        finally:
            self.forget_build(version)

    def forget_build(self, version: Version) -> None:
        """Remove the directories of a version's build, and copies of the secrets for its cache."""
        if version.requirements is not None:
            remove_tree(self._build_directory(version))
        if declaration_of(version).cache is not None:
            remove_tree(self._fill_secrets(version))
            remove_tree(self.store.cache(version.owner_uid, _fill_name(version)))

    def forget_fills(self, pending: Sequence[Version]) -> None:
        """Remove the copies of secrets for caches of all versions but these."""
        kept = {self._fill_secrets(version) for version in pending}
        for found in self.sockets.glob("*-filling-*.secrets"):
            if found not in kept:
                remove_tree(found)

    def _replica_paths(self, version: Version, sockets: Path, *, has_cache: bool = True) -> ReplicaPaths:
        owner_uid = version.owner_uid
        digest, made = layer_digest(version), bytecode_digest(version)
        if digest is not None and not self.store.has_layer(owner_uid, digest):
            raise RequestError(f"the packages of {version.label} are gone", hint="deploy it again")
        packages = None if digest is None else self.store.layer(owner_uid, digest)
        bytecode = self.store.layer(owner_uid, made) if made and self.store.has_layer(owner_uid, made) else None
        source, own = self.store.tree(owner_uid, version.bundle), tuple(_own_packages())
        cache = declaration_of(version).cache if has_cache else None
        if cache is not None and not self.store.has_cache(owner_uid, cache.label):
            raise RequestError(f"the cache {cache.label} of {version.label} is gone", hint="deploy it again")
        return ReplicaPaths(
            source,
            sockets,
            cache=None if cache is None else self.store.cache(owner_uid, cache.label),
            packages=packages,
            own=own,
            user=_container_user(owner_uid),
            bytecode=bytecode,
        )

    def _delivered(self, job_id: str) -> Path:
        """Return the directory of a job's secrets; its name is no job's, as `jobs_with_sockets` lists them."""
        return self.sockets / f"{job_id}.secrets"

    def _fill_secrets(self, version: Version) -> Path:
        return self._delivered(f"{version.owner_uid}-{_fill_name(version)}")

    def _build_directory(self, version: Version) -> Path:
        return self.store.layer(version.owner_uid, layer_digest(version) or "").with_name(
            _build_directory_name(version)
        )


def _build_directory_name(version: Version) -> str:
    """Return the directory name of a version's build; never a digest, and unique among versions."""
    return f"building-{version.function}-{version.number}-{version.created_at_seconds!r}"


def _fill_name(version: Version) -> str:
    """Return the directory name of a cache that is being filled: no `CacheUse.label`, and unique among versions."""
    return f"filling-{version.function}-{version.number}-{version.created_at_seconds!r}"


def _caches_by_age(functions: Sequence[Function]) -> Iterator[tuple[Version, CacheUse]]:
    """Yield the versions that have a cache and did not fail, the newest first."""
    versions = [version for each in functions for version in each.versions if version.state is not VersionState.FAILED]
    for version in sorted(versions, key=lambda each: each.created_at_seconds, reverse=True):
        if (cache := declaration_of(version).cache) is not None:
            yield version, cache


def kept_caches(functions: Sequence[Function], ready: Version | None = None) -> set[str]:
    """Return the labels of a user's caches that are kept.

    Of each cache the generations of the two newest ready versions that differ, and those of versions with traffic or a build under way.

    Args:
        functions: All of the user's.
        ready: A pending version that counts as ready; None for none.
    """
    served = {(each.name, share.version) for each in functions for share in each.traffic}
    kept, newest = set[str](), dict[str, list[str]]()
    for version, cache in _caches_by_age(functions):
        labels, is_pending = newest.setdefault(cache.name, []), version.state is VersionState.PENDING
        if cache.label not in labels and (not is_pending or version == ready):
            labels.append(cache.label)
        if is_pending or (version.function, version.number) in served:
            kept.add(cache.label)
    return kept.union(*(labels[:2] for labels in newest.values()))


def _own_packages() -> Iterator[Path]:
    """Find the directories of pgpu's own packages on the server, without importing them."""
    for name in _OWN:
        spec = importlib.util.find_spec(name)
        places: Sequence[str] = () if spec is None else spec.submodule_search_locations or ()
        yield from (Path(place) for place in list(places)[:1])


def _check_own_sources(version: Version | Deployment, owner_uid: int) -> None:
    # Those of other users are opened with their rights, when the container is created. For its own user's the engine would make
    # one that is missing, as root.
    for mount in declaration_of(version).mounts if owner_uid == os.geteuid() else ():
        if not Path(mount.source).exists():
            raise RequestError(f"there is no {quoted(mount.source)} on the server's machine")


def _container_user(owner_uid: int) -> str | None:
    # The server's own user is the same user in its containers; for other users the runtime decides.
    return f"{os.geteuid()}:{os.getegid()}" if owner_uid == os.geteuid() else None


def _make_directory(directory: Path, account: Account | None, *, is_capped: bool = False) -> None:
    try:
        directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        directory.mkdir(mode=0o700)
        # Mounted before the change of owner: chown must reach the root of the mount, which covers the directory below.
        if is_capped:
            mount_capped(directory, _SOCKETS_BYTES, _MOST_SOCKETS)
        if account is not None and account.uid != os.geteuid():
            os.chown(directory, account.uid, account.gid)
    except OSError as exc:
        raise NodeError(f"{directory} cannot be made: {exc.strerror}") from exc
