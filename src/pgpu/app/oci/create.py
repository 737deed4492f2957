"""`runc create` with a slice for the container: `pgpu-runtime` becomes this program if a container requests GPU memory.

The call never waits for memory: the container is created at once, and its entrypoint is held until the slice is granted.
Runs as a script by `python -I -S`, on the standard library and a few small modules of pgpu.
"""

import contextlib
import json
import os
import socket
import sys

if __name__ == "__main__":  # With -I, only the standard library is on the path.
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))))

from typing import Any, NoReturn

from pgpu.app.oci.container_slice import (
    ENVIRONMENT,
    lay_out,
    put_in_slice,
    refuse_covered,
    take_away,
    view_of,
    write_record,
)
from pgpu.app.oci.gpu_request import ContainerImage, GpuRequest, find_image, parse_gpu_request
from pgpu.app.oci.runc_call import ContainerRefusedError, RuncCall, clean_environment, load_prepared

_DESCRIPTORS = 65536
_PATIENCE_SECONDS = 2.0


def main(arguments: list[str]) -> NoReturn:
    """Give the container a slice if it requests one, and become runc."""
    words = RuncCall(arguments)
    try:
        put_into_slice(words)
    except ContainerRefusedError as exc:
        _report_error(words, f"pgpu: {exc}")
        sys.exit(1)
    except Exception as exc:  # noqa: BLE001 - the edge: the engine shows a line of its log, and no traceback
        _report_error(words, f"pgpu: this is a bug of pgpu: {exc!r}")
        sys.exit(1)
    # In this process: the engine waits for this PID and reads its streams.
    os.execvp(words.runc, [words.runc, *words.runcs])


def put_into_slice(words: RuncCall) -> None:
    """Change the bundle, lay out the slice and hand the container to an attendant.

    Raises:
        ContainerRefusedError: The container cannot be created; the bundle is unchanged.
    """
    path = f"{words.bundle}/config.json"
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        configuration = json.load(file)
    seen: list[ContainerImage] = []

    def image() -> ContainerImage:
        if not seen:
            seen.append(find_image(words.engine, words.container_id))
        return seen[0]

    # The engine is queried at most once, and only if a variable requests something: most containers request nothing.
    prepared = load_prepared(words)
    request = parse_gpu_request(configuration, lambda: image().environment, images_may_ask=prepared["images_may_ask"])
    if request is None:
        return
    if words.command != "create":
        raise ContainerRefusedError(
            f"a container with PGPU_MEMORY cannot be made by `{words.command}`", hint="use create and start"
        )
    refuse_covered(configuration)
    command = list(configuration["process"]["args"])
    # Drawn here, since the slice's directory, which has this name, exists before the job is in the ledger.
    job_id = os.urandom(6).hex()
    view = view_of(configuration, words.bundle)
    home = lay_out(prepared, job_id, view.preload_lines)
    record = _make_record(words, configuration, request, command)
    found = seen[0] if seen else None
    record.update(image_id=found.id if found else "", glibc=view.has_glibc)
    record.update(image=found.name if found else "", name=found.container_name if found else "")
    try:
        put_in_slice(configuration, home, view, prepared, job_id)
    except ContainerRefusedError:
        take_away(home)
        raise
    # After a crash from here on, `attendant.remove_orphans` finds the slice by its record and removes it.
    write_record(home, record)
    _write_configuration(path, configuration)
    _link_settings(words.bundle, home)
    _hand_over(words, f"{prepared['runtime_directory']}/oci.sock", job_id)


def _make_record(
    words: RuncCall, configuration: dict[str, Any], request: GpuRequest, command: list[str]
) -> dict[str, Any]:
    user = configuration["process"].get("user") or {}
    return {
        "container_id": words.container_id,
        "runc": [words.runc, *(["--root", words.flags["root"]] if "root" in words.flags else [])],
        "engine": words.engine,
        "bundle": os.path.abspath(words.bundle),
        "pid_file": os.path.abspath(words.flags["pid-file"]) if "pid-file" in words.flags else None,
        "creator": os.getpid(),
        "memory_bytes": request.memory_bytes,
        "gpu_count": request.gpu_count,
        "compute_share": request.compute_share,
        "is_strict": request.is_strict,
        "sharing": request.sharing,
        "wait_timeout_seconds": request.wait_timeout_seconds,
        "has_timeout": request.has_timeout,
        "command": command,
        "user": f"{user.get('uid', 0)}:{user.get('gid', 0)}",
    }


def _write_configuration(path: str, configuration: dict[str, Any]) -> None:
    mode = os.stat(path).st_mode & 0o777
    with open(f"{path}.pgpu", "w", encoding="utf-8", errors="surrogateescape") as file:
        json.dump(configuration, file)
        os.fchmod(file.fileno(), mode)
    # runc finds the old or the new configuration, never a part of one.
    os.rename(f"{path}.pgpu", path)


def _link_settings(bundle: str, home: str) -> None:
    """Link the variables of the lease into the bundle: `exec` reads them there (native/oci/exec_settings.c)."""
    link = f"{bundle}/pgpu-environment"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(link)
    os.symlink(f"{home}/view/{ENVIRONMENT}", link)


def _hand_over(words: RuncCall, address: str, job_id: str) -> None:
    """Hand the container to the nursery that is running, else start one."""
    # "+" comes after the nursery has forked the attendant. Without it (no socket, a socket of a killed nursery, or one that
    # is just ending because pgpu was replaced) this call starts a nursery of its own.
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_PATIENCE_SECONDS)
        connection.connect(address)
        connection.sendall(f"{job_id}\n".encode())
        if connection.recv(1) == b"+":
            return
    _start_nursery(words, address, job_id)


def _start_nursery(words: RuncCall, address: str, job_id: str) -> None:
    """Start it by a double fork, without the container's streams: an open one would keep the container's log open."""
    # The middle process ends at once, so the nursery is adopted by process 1 or a subreaper. runc, which replaces this
    # program, would not expect a child that it did not start.
    child = os.fork()
    if child != 0:
        os.waitpid(child, 0)
        return
    try:
        os.setsid()
        if os.fork() == 0:
            _become_nursery(words, address, job_id)
    finally:
        os._exit(0)


def _become_nursery(words: RuncCall, address: str, job_id: str) -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    log = os.open(f"{words.state_dir}/oci-runtime.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for descriptor, target in ((nothing, 0), (nothing, 1), (log, 2)):
        os.dup2(descriptor, target)
    # containerd's shim reads the container's output until every copy of the pipe's writing end is closed.
    os.closerange(3, _DESCRIPTORS)
    os.chdir("/")
    os.umask(0o077)
    # A new interpreter with the whole package: this one runs with -I -S and sees only the standard library.
    command = [words.python, "-P", "-m", "pgpu.app.oci.nursery", words.config, words.state_dir, address, job_id]
    os.execvpe(words.python, command, clean_environment())


def _report_error(words: RuncCall, message: str) -> None:
    """Write an error to runc's log, in its format, and to standard error; the engine reads both."""
    sys.stderr.write(f"{message}\n")
    if "log" in words.flags:
        with open(words.flags["log"], "a", encoding="utf-8") as file:
            file.write(json.dumps({"level": "error", "msg": message}) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
