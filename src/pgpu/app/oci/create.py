"""`runc create`, with a slice for the container: what `pgpu-runtime` becomes where a container asks for GPU memory.

It never waits for memory: the container is created at once, and its entrypoint is held until the slice is granted. Run as
a script by `python -I -S`, with the standard library alone.
"""

import contextlib
import json
import os
import socket
import sys

if __name__ == "__main__":  # -I: nothing but the standard library is on the path
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))))

from typing import Any, NoReturn

from pgpu.app.oci.bundle import put_in_slice, refuse_covered, view_of
from pgpu.app.oci.gpu_request import GpuRequest, parse_gpu_request
from pgpu.app.oci.images import ContainerImage, find_image
from pgpu.app.oci.machine_facts import clean_environment, load_prepared
from pgpu.app.oci.refusing import RefusedError
from pgpu.app.oci.runc_call import RuncCall
from pgpu.app.oci.slice_layout import ENVIRONMENT, lay_out, take_away, write_record

_DESCRIPTORS = 65536
_PATIENCE_SECONDS = 2.0


def main(arguments: list[str]) -> NoReturn:
    """Put a container into a slice, if it asks for one, and become runc."""
    words = RuncCall(arguments)
    try:
        put_into_slice(words)
    except RefusedError as exc:
        _explain(words, f"pgpu: {exc}")
        sys.exit(1)
    except Exception as exc:  # noqa: BLE001 - the edge: an engine shows what is in its log, and no traceback
        _explain(words, f"pgpu: this is a bug of pgpu: {exc!r}")
        sys.exit(1)
    os.execvp(words.runc, [words.runc, *words.runcs])


def put_into_slice(words: RuncCall) -> None:
    """Change the bundle, lay the slice out and start who will look after it.

    Raises:
        RefusedError: It cannot be done; the bundle is as it was.
    """
    path = f"{words.bundle}/config.json"
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        configuration = json.load(file)
    seen: list[ContainerImage] = []

    def image() -> ContainerImage:
        if not seen:
            seen.append(find_image(words.engine, words.container_id))
        return seen[0]

    prepared = load_prepared(words)
    ask = parse_gpu_request(configuration, lambda: image().environment, images_may_ask=prepared["images_may_ask"])
    if ask is None:
        return
    if words.command != "create":
        raise RefusedError(
            f"a container with PGPU_MEMORY cannot be made by `{words.command}`", hint="use create and start"
        )
    refuse_covered(configuration)
    command = list(configuration["process"]["args"])
    job_id = os.urandom(6).hex()
    view = view_of(configuration, words.bundle)
    home = lay_out(prepared, job_id, view.preload_lines)
    record = _record(words, configuration, ask, command)
    found = seen[0] if seen else None
    record.update(image_id=found.id if found else "", glibc=view.has_glibc)
    record.update(image=found.name if found else "", name=found.container_name if found else "")
    try:
        put_in_slice(configuration, home, view, prepared, job_id)
    except RefusedError:
        take_away(home)
        raise
    write_record(home, record)
    _write_configuration(path, configuration)
    _link_settings(words.bundle, home)
    _have_attended(words, f"{prepared['runtime_directory']}/oci.sock", job_id)


def _record(words: RuncCall, configuration: dict[str, Any], ask: GpuRequest, command: list[str]) -> dict[str, Any]:
    user = configuration["process"].get("user") or {}
    return {
        "container_id": words.container_id,
        "runc": [words.runc, *(["--root", words.flags["root"]] if "root" in words.flags else [])],
        "engine": words.engine,
        "bundle": os.path.abspath(words.bundle),
        "pid_file": os.path.abspath(words.flags["pid-file"]) if "pid-file" in words.flags else None,
        "creator": os.getpid(),
        "memory_bytes": ask.memory_bytes,
        "gpu_count": ask.gpu_count,
        "compute_share": ask.compute_share,
        "is_strict": ask.is_strict,
        "sharing": ask.sharing,
        "wait_timeout_seconds": ask.wait_timeout_seconds,
        "has_timeout": ask.has_timeout,
        "command": command,
        "user": f"{user.get('uid', 0)}:{user.get('gid', 0)}",
    }


def _write_configuration(path: str, configuration: dict[str, Any]) -> None:
    mode = os.stat(path).st_mode & 0o777
    with open(f"{path}.pgpu", "w", encoding="utf-8", errors="surrogateescape") as file:
        json.dump(configuration, file)
        os.fchmod(file.fileno(), mode)
    os.rename(f"{path}.pgpu", path)


def _link_settings(bundle: str, home: str) -> None:
    """`exec` finds there what its process has to know of the lease (native/oci/exec_settings.c)."""
    link = f"{bundle}/pgpu-environment"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(link)
    os.symlink(f"{home}/view/{ENVIRONMENT}", link)


def _have_attended(words: RuncCall, address: str, job_id: str) -> None:
    """Have somebody look after the container: who has loaded all of pgpu already, or a new process."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_PATIENCE_SECONDS)
        connection.connect(address)
        connection.sendall(f"{job_id}\n".encode())
        if connection.recv(1) == b"+":
            return
    _start_nursery(words, address, job_id)


def _start_nursery(words: RuncCall, address: str, job_id: str) -> None:
    """Start it as nobody's child, with none of the container's streams: an open one would keep the container's log open."""
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
    os.closerange(3, _DESCRIPTORS)
    os.chdir("/")
    os.umask(0o077)
    command = [words.python, "-P", "-m", "pgpu.app.oci.nursery", words.config, words.state_dir, address, job_id]
    os.execvpe(words.python, command, clean_environment())


def _explain(words: RuncCall, message: str) -> None:
    """Say it where the engine looks: in runc's log, by its format, and on standard error."""
    sys.stderr.write(f"{message}\n")
    if "log" in words.flags:
        with open(words.flags["log"], "a", encoding="utf-8") as file:
            file.write(json.dumps({"level": "error", "msg": message}) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
