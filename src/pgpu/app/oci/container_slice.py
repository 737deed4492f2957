"""A container's slice: its files on the host, and the changes of `config.json` that mount them.

The slice is laid out before its memory is granted: all files but the limit, without which CUDA is refused. The files are
those of `pgpu.enforcement.slice_files` (a test compares both) and three more: the program that holds the container back,
the pipe that releases it, and the variables that are added to its environment. `config.json` gets mounts, environment,
devices, and the holding program as first argument. No privilege is added: a simulated GPU needs none, and a real one
brings the devices that its CDI description names.
"""

from __future__ import annotations

import json
import os
import posixpath
import stat

from pgpu import tmpfs
from pgpu.app.oci.runc_call import ContainerRefusedError
from pgpu.tmpfs import mount_capped, unmount

TYPE_CHECKING = False  # `typing` takes 4 ms to import
if TYPE_CHECKING:
    from typing import Any

JOB_DIRECTORY = "/.pgpu"
HOLD = f"{JOB_DIRECTORY}/pgpu-hold"
PRELOAD = "/etc/ld.so.preload"
CUDA = "libcuda.so.1"
NVML = "libnvidia-ml.so.1"
JOB_ANNOTATION = "pgpu.job"

_COMPAT = ("/usr/local/cuda/compat", "/usr/local/cuda/compat/lib.real")
_SHADOWED = {CUDA, "libcuda.so", NVML}
_MOUNT_OPTIONS = ["ro", "nosuid", "nodev", "rbind", "rprivate"]
_TYPES = {stat.S_IFCHR: "c", stat.S_IFBLK: "b"}
_MOST_LINKS = 40
"""The kernel's own limit (path_resolution(7)); it ends a cycle of links."""

_LARGEST_FILE_BYTES = 64 * 1024
"""Limit of files that are read, a few lines each: an image's file may have any size, and this process is root's."""


USAGE_BYTES = 4096 + 1024 * (64 + 16 * 48)
"""Size of a usage file (native/include/meter_abi.h)."""

OWNER_UID = 4_294_967_294
"""`pgpu.model.DOCKER_UID`, whose import takes milliseconds."""

GATE = "gate"
ENVIRONMENT = "environment"
RECORD = "container.json"


def normalize_path(path: str) -> str:
    """Normalize as the kernel does: two leading slashes are one, while `posixpath.normpath` keeps them."""
    return posixpath.normpath(f"/{path.lstrip('/')}")


class Rootfs:
    """The files of a container that is being created, resolved from outside; nothing is written.

    Symbolic links are followed inside the container's root by hand: the kernel would follow them out of it. Bind
    mounts of the container are resolved to their host paths.
    """

    def __init__(self, root: str, mounts: list[dict[str, Any]]) -> None:
        """Sort the mounts, the deepest first; no file is read.

        Args:
            root: Its root on the host.
            mounts: As `config.json` has them.
        """
        self._root = root
        self._mounts = sorted(
            ((normalize_path(mount["destination"]), mount) for mount in mounts), key=lambda each: -len(each[0])
        )

    def resolve(self, path: str) -> str | None:
        """Return where a path ends after all symbolic links; None if nothing is there."""
        links = 0
        rest = [name for name in path.split("/") if name not in {"", "."}]
        at = "/"
        while rest:
            name = rest.pop(0)
            # ".." of the root is the root itself, as in the kernel: no path leads out of the container.
            if name == "..":
                at = posixpath.dirname(at)
                continue
            step = posixpath.join(at, name)
            host = self._on_host(step)
            if host is None or not os.path.lexists(host):
                return None
            if not os.path.islink(host):
                at = step
                continue
            links += 1
            if links > _MOST_LINKS:
                return None
            target = os.readlink(host)
            rest = [part for part in target.split("/") if part not in {"", "."}] + rest
            at = "/" if target.startswith("/") else at
        return at

    def read(self, path: str) -> bytes | None:
        """Return the content of a regular file, links followed; None if there is none, or one too large to be meant."""
        found = self.resolve(path)
        host = self._on_host(found) if found else None
        if host is None or not os.path.isfile(host):
            return None
        with open(host, "rb") as file:
            content = file.read(_LARGEST_FILE_BYTES + 1)
        return content if len(content) <= _LARGEST_FILE_BYTES else None

    def _on_host(self, path: str) -> str | None:
        for destination, mount in self._mounts:
            # The mounts are sorted, the deepest first: the first match is the one that covers the path.
            if path == destination or path.startswith(f"{destination.rstrip('/')}/"):
                source = str(mount.get("source") or "")
                # A tmpfs or proc has no files yet, since the container has not started.
                if mount.get("type") != "bind" and "bind" not in (mount.get("options") or ()):
                    return None
                return os.path.realpath(source) + path[len(destination.rstrip("/")) :]
        return self._root + path


class View:
    """Paths in one container's root at which the files of a slice are mounted."""

    def __init__(self, files: Rootfs, library_path: list[str]) -> None:
        """Resolve the paths.

        Args:
            files: The container's files.
            library_path: The directories of its LD_LIBRARY_PATH.
        """
        standard = [f"/usr/lib/{os.uname().machine}-linux-gnu", "/usr/lib64"]
        self.has_glibc = any(files.resolve(f"{at}/libc.so.6") for at in (*standard, "/lib64", "/usr/lib", "/lib"))
        self.preload_path = files.resolve(PRELOAD) or PRELOAD
        self.preload_lines = (files.read(PRELOAD) or b"").decode(errors="replace").splitlines()
        others = [*_COMPAT, *(path for path in library_path if path.startswith("/")), "/usr/lib", "/lib"]
        self.cuda_paths = _places(files, standard, others, CUDA)
        self.nvml_paths = _places(files, standard, others, NVML)


def view_of(configuration: dict[str, Any], bundle: str) -> View:
    """Find the paths of a slice in a container."""
    root = posixpath.join(bundle, (configuration.get("root") or {}).get("path", "rootfs"))
    paths = [word.partition("=")[2] for word in configuration["process"]["env"] if word.startswith("LD_LIBRARY_PATH=")]
    return View(Rootfs(root, configuration.get("mounts") or []), [part for path in paths for part in path.split(":")])


def refuse_covered(configuration: dict[str, Any]) -> None:
    """Check that no volume of the user covers a path of the slice.

    Raises:
        ContainerRefusedError: One does.
    """
    # Later mounts cover earlier ones: ours are appended, so they would hide the user's volume without a message.
    for mount in configuration.get("mounts") or ():
        target = normalize_path(mount["destination"])
        is_ours = target in {JOB_DIRECTORY, PRELOAD} or target.startswith(f"{JOB_DIRECTORY}/")
        if is_ours or posixpath.basename(target) in _SHADOWED:
            raise ContainerRefusedError(f"a volume lies where pgpu mounts the slice: {target}", hint="leave it out")


def put_in_slice(configuration: dict[str, Any], home: str, view: View, prepared: dict[str, Any], job_id: str) -> None:
    """Change a configuration so that its container has a slice and waits for it.

    Args:
        configuration: Changed in place.
        home: The slice's directory.
        view: Where its files are mounted.
        prepared: The facts that `installation` wrote.
        job_id: The job that will be granted the slice.

    Raises:
        ContainerRefusedError: A device of the GPU is not there.
    """
    process = configuration["process"]
    # The hold becomes process 1 of the container, waits at the gate, and then executes the original command in its place.
    process["args"] = [HOLD, *process["args"]]
    process["env"] = [word for word in process["env"] if not word.startswith("NVIDIA_VISIBLE_DEVICES=")]
    # With `void`, the hook of NVIDIA's container toolkit adds no GPU to the container, and its runtime is plain runc.
    process["env"].append("NVIDIA_VISIBLE_DEVICES=void")
    if prepared["cdi"]:
        add_devices(configuration, prepared["cdi"])
    configuration.setdefault("mounts", []).extend(_mounts(home, view, prepared))
    configuration.setdefault("annotations", {})[JOB_ANNOTATION] = job_id


def _mounts(home: str, view: View, prepared: dict[str, Any]) -> list[dict[str, Any]]:
    slice_directory = f"{home}/view"
    mounts = [_bind(slice_directory, JOB_DIRECTORY), _bind(f"{home}/meter/usage", f"{JOB_DIRECTORY}/usage", "rw")]
    # Both are links to the board of all jobs; the container gets what they lead to.
    mounts.append(_bind(os.path.realpath(f"{home}/meter/time"), f"{JOB_DIRECTORY}/time", "rw"))
    mounts.append(_bind(os.path.realpath(f"{home}/meter/board"), f"{JOB_DIRECTORY}/board"))
    if prepared["simulated"]:
        mounts.append(_bind(prepared["simulated"], f"{JOB_DIRECTORY}/simgpu", "rw"))
    mounts += [_bind(path, f"{JOB_DIRECTORY}/driver/{name}") for name, path in prepared["driver_files"].items()]
    cuda_paths = view.cuda_paths
    if prepared["simulated"]:
        # Some programs open the name without a version; a real driver's container hook would link it.
        cuda_paths = cuda_paths + [posixpath.join(posixpath.dirname(path), "libcuda.so") for path in cuda_paths]
    # Over every copy of libcuda that a program of the image could load, so that dlopen by path finds the shim as well.
    mounts += [_bind(f"{slice_directory}/libpgpu.so", path) for path in dict.fromkeys(cuda_paths)]
    mounts += [_bind(f"{slice_directory}/libpgpu-ml.so", path) for path in view.nvml_paths]
    if view.has_glibc:
        mounts.append(_bind(f"{slice_directory}/ld.so.preload", view.preload_path))
    return mounts


def _bind(source: str, target: str, access: str = "ro") -> dict[str, Any]:
    return {"type": "bind", "source": source, "destination": target, "options": ["bind", access, "rprivate"]}


def _places(files: Rootfs, standard: list[str], others: list[str], name: str) -> list[str]:
    """Return where a library is mounted: always in the standard directories, elsewhere only over an existing file."""
    found: list[str] = []
    for directory in standard:
        # A mount on a symbolic link would land outside of the root: the file that it names is taken instead.
        landing = files.resolve(f"{directory}/{name}")
        found.append(landing or posixpath.join(files.resolve(directory) or directory, name))
    found += [existing for directory in others if (existing := files.resolve(f"{directory}/{name}"))]
    return list(dict.fromkeys(found))


def add_devices(configuration: dict[str, Any], edits: dict[str, list[Any]]) -> None:
    """Add a real GPU's devices, libraries and hooks, as its CDI description lists them.

    Args:
        configuration: The content of `config.json`; changed in place.
        edits: As `cdi.gpu_edits` returns them.

    Raises:
        ContainerRefusedError: A device is not there.
    """
    process = configuration["process"]
    process["env"] += edits["env"]
    if edits["additionalGids"]:
        process.setdefault("user", {}).setdefault("additionalGids", []).extend(edits["additionalGids"])
    for mount in edits["mounts"]:
        configuration.setdefault("mounts", []).append(
            {
                "type": mount.get("type") or "bind",
                "source": mount["hostPath"],
                "destination": mount["containerPath"],
                "options": mount.get("options") or _MOUNT_OPTIONS,
            }
        )
    for hook in edits["hooks"]:
        words = {name: hook[name] for name in ("path", "args", "env", "timeout") if hook.get(name)}
        configuration.setdefault("hooks", {}).setdefault(hook["hookName"], []).append(words)
    linux = configuration.setdefault("linux", {})
    allowed = linux.setdefault("resources", {}).setdefault("devices", [])
    for node in edits["deviceNodes"]:
        device = _device(node)
        linux.setdefault("devices", []).append(device)
        numbers = {"type": device["type"], "major": device["major"], "minor": device["minor"]}
        allowed.append({"allow": True, **numbers, "access": node.get("permissions") or "rwm"})


def _device(node: dict[str, Any]) -> dict[str, Any]:
    """Complete a device node with the host's numbers where the description has none."""
    path = node.get("hostPath") or node["path"]
    try:
        found = os.stat(path)
    except OSError as exc:
        raise ContainerRefusedError(
            f"the GPU's device {path} is not there: {exc.strerror}", hint="pgpu doctor"
        ) from exc
    kind = node.get("type") or _TYPES.get(stat.S_IFMT(found.st_mode))
    if kind is None:
        raise ContainerRefusedError(
            f"{path} is not a device", hint="nvidia-ctk cdi generate describes this machine anew"
        )
    device = {
        "path": node["path"],
        "type": kind,
        "major": node.get("major") or os.major(found.st_rdev),
        "minor": node["minor"] if node.get("minor") is not None else os.minor(found.st_rdev),
        "fileMode": node.get("fileMode") or stat.S_IMODE(found.st_mode),
    }
    return {**device, **{name: node[name] for name in ("uid", "gid") if node.get(name) is not None}}


def lay_out(prepared: dict[str, Any], job_id: str, preload_lines: list[str]) -> str:
    """Make a slice's files and return their directory.

    Args:
        prepared: The facts that `installation` wrote.
        job_id: The job that will be granted the slice.
        preload_lines: The lines of the image's own /etc/ld.so.preload.

    Raises:
        OSError: The runtime tmpfs is full or not writable.
    """
    home = f"{prepared['runtime_directory']}/slices/{job_id}"
    os.makedirs(home, 0o700)
    os.mkdir(f"{home}/meter", 0o700)
    mount_capped(f"{home}/meter")
    usage = f"{home}/meter/usage"
    _write(usage, b"", 0o666)
    descriptor = os.open(usage, os.O_RDWR)
    try:
        # All pages now: a store to a mapped page that a full tmpfs cannot provide ends the job with SIGBUS.
        os.posix_fallocate(descriptor, 0, USAGE_BYTES)
    finally:
        os.close(descriptor)
    tmpfs.join_board(prepared["runtime_directory"], f"{home}/meter", OWNER_UID)
    view = f"{home}/view"
    for directory in (
        view,
        f"{view}/driver",
        f"{view}/{tmpfs.BOARD}",
        *([f"{view}/simgpu"] if prepared["simulated"] else ()),
    ):
        os.mkdir(directory)
        # mkdir applies the umask, chmod does not.
        os.chmod(directory, 0o755)  # noqa: S103 - the container's user reads it
    # Hard links: an upgrade of pgpu replaces the libraries, and this container keeps those that it started with.
    for name, source in prepared["libraries"].items():
        os.link(source, f"{view}/{name}")
    for name in prepared["driver_files"]:  # mount points for the real driver's libraries
        _write(f"{view}/driver/{name}", b"", 0o444)
    # Ours first: of two preloaded libraries with the same symbol, the dynamic linker takes the first.
    ours = ["/.pgpu/libpgpu.so", "/.pgpu/libpgpu-ml.so"]
    _write(
        f"{view}/ld.so.preload", "".join(f"{line}\n" for line in dict.fromkeys(ours + preload_lines)).encode(), 0o644
    )
    _write(f"{view}/usage", b"", 0o444)
    _write(f"{view}/{tmpfs.TIME}", b"", 0o444)
    _write(f"{view}/{ENVIRONMENT}", b"", 0o444)
    # 0444, since a read-only mount does not stop writes to a pipe: users of the container, but its root, can only read.
    os.mkfifo(f"{view}/{GATE}")
    os.chmod(f"{view}/{GATE}", 0o444)
    return home


def take_away(home: str) -> None:
    """Remove a slice that no container uses yet."""
    tmpfs.leave_board(os.path.dirname(os.path.dirname(home)), f"{home}/meter")
    unmount(f"{home}/meter")
    # By hand: shutil takes milliseconds to import.
    for directory, directories, files in os.walk(home, topdown=False):
        for name in files:
            os.unlink(f"{directory}/{name}")
        for name in directories:
            path = f"{directory}/{name}"
            # The board's link is still there where no tmpfs of its own held it.
            os.unlink(path) if os.path.islink(path) else os.rmdir(path)
    os.rmdir(home)


def write_record(home: str, record: dict[str, Any]) -> None:
    """Write the container's record atomically."""
    _write(f"{home}/.{RECORD}", json.dumps(record).encode(), 0o600)
    # A rename is atomic: the sweep of orphans, in another process, never reads half a record.
    os.rename(f"{home}/.{RECORD}", f"{home}/{RECORD}")


def _write(path: str, content: bytes, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(descriptor, mode)
        while content:
            content = content[os.write(descriptor, content) :]
    finally:
        os.close(descriptor)
