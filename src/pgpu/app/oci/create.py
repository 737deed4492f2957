"""`runc create` with a slice for the container: `pgpu-runtime` becomes this program if a container requests GPU memory.

The call never waits for memory: the container is created at once, and its entrypoint is held until the slice is granted.
Runs as a script by `python -I -S`, on the standard library and a few small modules of pgpu.
"""

from __future__ import annotations

import gc

if __name__ == "__main__":  # While modules are imported, collections take a millisecond and find nothing.
    gc.disable()

import contextlib
import json
import os
import sys

if __name__ == "__main__":  # With -I, only the standard library is on the path.
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))))

from pgpu.app.oci.agent_call import hand_over
from pgpu.app.oci.container_slice import (
    ENVIRONMENT,
    lay_out,
    put_in_slice,
    refuse_covered,
    take_away,
    view_of,
    write_record,
)
from pgpu.app.oci.gpu_request import ContainerImage, EngineAwayError, GpuRequest, find_image, parse_gpu_request
from pgpu.app.oci.runc_call import ContainerRefusedError, RuncCall, load_prepared

TYPE_CHECKING = False  # `typing` takes 4 ms to import
if TYPE_CHECKING:
    from typing import Any, NoReturn


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
    """Change the bundle, lay out the slice and hand the container to the agent of the queue.

    Raises:
        ContainerRefusedError: The container cannot be created; the bundle is unchanged.
    """
    path = f"{words.bundle}/config.json"
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        configuration = json.load(file)
    seen: list[ContainerImage] = []

    def image() -> ContainerImage:
        if not seen:
            try:
                seen.append(find_image(words.engine, words.container_id))
            except EngineAwayError as exc:
                if not exc.is_starting:
                    raise
                # It starts this container before it answers: the agent asks again, while the container is held.
                seen.append(ContainerImage("", "", "", []))
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
    found = seen[0] if seen else ContainerImage("", "", "", [])
    record.update(image=found.name, image_id=found.id, name=found.container_name)
    record.update(glibc=view.has_glibc, gpu_model=prepared["agent"]["gpu_model"])
    if not seen or found.id:
        record["unconfirmed"] = []
    try:
        put_in_slice(configuration, home, view, prepared, job_id)
        # From here on an agent finds the slice by its record, and removes it if this process is killed.
        write_record(home, record)
        hand_over(prepared["agent"], job_id)
    except ContainerRefusedError:
        take_away(home)
        raise
    _write_configuration(path, configuration)
    _link_settings(words.bundle, home)


def _make_record(
    words: RuncCall, configuration: dict[str, Any], request: GpuRequest, command: list[str]
) -> dict[str, Any]:
    user = configuration["process"].get("user") or {}
    return {
        "container_id": words.container_id,
        "runc": [words.runc, *(["--root", words.flags["root"]] if "root" in words.flags else [])],
        "engine": words.engine,
        "config": words.config,
        "bundle": os.path.abspath(words.bundle),
        "pid_file": os.path.abspath(words.flags["pid-file"]) if "pid-file" in words.flags else None,
        "creator": os.getpid(),
        "command": command,
        "user": f"{user.get('uid', 0)}:{user.get('gid', 0)}",
        **vars(request),
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


def _report_error(words: RuncCall, message: str) -> None:
    """Write an error to runc's log, in its format, and to standard error; the engine reads both."""
    sys.stderr.write(f"{message}\n")
    if "log" in words.flags:
        with open(words.flags["log"], "a", encoding="utf-8") as file:
            file.write(json.dumps({"level": "error", "msg": message}) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
