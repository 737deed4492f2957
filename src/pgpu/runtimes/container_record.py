"""The record of a container that waits for its slice or runs in it, made by `pgpu.app.oci.create`."""

import contextlib
import json
import os
import subprocess
from pathlib import Path
from typing import Any

from pgpu.errors import RuntimeUnavailableError
from pgpu.host.atomic_file import write_atomically
from pgpu.host.process_identity import identify_unreaped
from pgpu.model import ProcessHolder, SharingMode
from pgpu.structs import Struct, asdict

RECORD = "container.json"
GATE = "gate"
ENVIRONMENT = "environment"

CONTAINER_VARIABLE = "PGPU_CONTAINER"
"""Environment variable in the job's spec: the slice's directory, with the container's record."""


class Container(Struct, frozen=True):
    """One container and its slice's directory."""

    home: Path
    """The slice's directory; the container sees `view` below it."""

    container_id: str
    runc: tuple[str, ...]
    """The lower runtime's program and its `--root`."""

    engine: str
    """Address of the Docker engine that probably owns it."""

    bundle: Path
    pid_file: Path | None
    creator: int
    """PID of the process that creates it; that process ends once the container exists, or cannot be created."""

    memory_bytes: int
    gpu_count: int
    wait_timeout_seconds: float | None
    has_timeout: bool
    """True if `wait_timeout_seconds` was requested explicitly."""

    command: tuple[str, ...]
    user: str
    """UID:GID in numbers."""

    image: str
    """As the user wrote it; empty if the engine was not queried."""

    image_id: str
    name: str
    glibc: bool
    """True if the container has glibc, which is required to load a driver."""

    compute_share: float | None = None
    is_strict: bool = False
    sharing: str = SharingMode.TIME_SLICE.value
    config: str = ""
    """The machine's settings file. Empty in a record of the release before this one, whose containers have a process each."""

    gpu_model: str | None = None
    """Of the queue; None for real GPUs."""

    unconfirmed: tuple[str, ...] = ()
    """Variables that request something unless the image sets them to the same value; the engine, which was starting, did not
    report the image."""

    @property
    def gate(self) -> Path:
        """The named pipe that the held container reads."""
        return self.home / "view" / GATE

    def first_process(self) -> ProcessHolder | None:
        """Return the container's first process; None while there is none, or if it has ended."""
        # Engines pass `--pid-file`, which the lower runtime writes once the first process exists. Only without that option does
        # it take a run of `runc state`.
        pid = self._pid_in_file() or self._pid_of_runtime()
        return identify_unreaped(pid) if pid else None

    @property
    def is_being_created(self) -> bool:
        """True while the creating process runs."""
        return identify_unreaped(self.creator) is not None and self._pid_in_file() is None

    def save(self) -> None:
        """Replace the record.

        Raises:
            OSError: It cannot be written.
        """
        fields = asdict(self)
        write_atomically(fields.pop("home") / RECORD, json.dumps(fields, default=str).encode(), 0o600)

    def exists(self) -> bool:
        """True while it is being created or has a first process."""
        return self.is_being_created or self.first_process() is not None

    def _pid_in_file(self) -> int | None:
        if self.pid_file is None:
            return None
        with contextlib.suppress(OSError, ValueError):
            return int(self.pid_file.read_text(encoding="ascii"))
        return None

    def _pid_of_runtime(self) -> int | None:
        if self.pid_file is not None:
            return None
        done = subprocess.run([*self.runc, "state", self.container_id], capture_output=True, check=False)
        with contextlib.suppress(ValueError):
            return int(json.loads(done.stdout).get("pid", 0)) or None
        return None


def container_of(home: Path) -> Container:
    """Read the record in a slice's directory.

    Raises:
        RuntimeUnavailableError: There is none, since the container's slice is gone, or it has other fields.
    """
    try:
        fields: dict[str, Any] = json.loads((home / RECORD).read_text(encoding="utf-8"))
        fields["runc"] = tuple(fields["runc"])
        fields["command"] = tuple(fields["command"])
        fields["unconfirmed"] = tuple(fields.get("unconfirmed", ()))
        fields["bundle"] = Path(fields["bundle"])
        fields["pid_file"] = Path(fields["pid_file"]) if fields["pid_file"] else None
        return Container(home=home, **fields)
    except (OSError, ValueError) as exc:
        raise RuntimeUnavailableError(f"the record of the container in {home} is gone") from exc
    except (KeyError, TypeError) as exc:
        raise RuntimeUnavailableError(f"the record of the container in {home} is of another release of pgpu") from exc


class Gate:
    """The named pipe to a held container. While no writer has it open, the container treats its agent as gone."""

    def __init__(self, path: Path) -> None:
        """Open the pipe.

        Raises:
            RuntimeUnavailableError: The container's slice is gone.
        """
        try:
            # O_RDWR: opening a FIFO for writing only fails with ENXIO while it has no reader.
            self._descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as exc:
            raise RuntimeUnavailableError(f"the container's pipe {path} cannot be opened: {exc.strerror}") from exc

    def write(self, *lines: str) -> None:
        """Write commands to the pipe; dropped if the container has ended or the pipe is full.

        Args:
            lines: `=TEXT` to print, `+` to start, `-CODE` to exit.
        """
        text = "".join(f"{' '.join(line.splitlines())}\n" for line in lines)
        with contextlib.suppress(OSError):
            # Non-blocking: a full pipe must not block the agent.
            os.write(self._descriptor, text.encode("utf-8", "replace"))

    def close(self) -> None:
        os.close(self._descriptor)
