"""What `create` starts from: its arguments, and prepared facts about this machine.

The arguments are those that a container engine passes to its OCI runtime, parsed as runc does, with ours before them. The
facts are one JSON file in the state directory, which `installation` writes. It is used only while every file that it was
made from has the same time, size and inode.
"""

from __future__ import annotations

import json
import os

TYPE_CHECKING = False  # `typing` takes 4 ms to import
if TYPE_CHECKING:
    from typing import Any

OURS = "--pgpu-"
RUNC = "runc"
PYTHON = "python3"
CONFIG = "/etc/pgpu/config.toml"
STATE_DIR = "/var/lib/pgpu"
ENGINE = "unix:///var/run/docker.sock"

NAME = "oci-runtime.json"
"""The file of prepared facts, in the state directory."""

FORMAT = 3
"""Version of the file; grows with its keys."""

_OTHERS_WRITE = 0o022

_VALUED = {"root", "log", "log-format", "criu", "rootless", "bundle", "b", "console-socket", "pid-file", "preserve-fds"}
_SHORT = {"b": "bundle"}


class ContainerRefusedError(Exception):
    """The container cannot be created; nothing was changed. The engine shows its one line to its user."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message if hint is None else f"{message} ({hint})")


class RuncCall:
    """One parsed call."""

    def __init__(self, words: list[str]) -> None:
        """Parse a call without its program's name."""
        count = next((at for at, word in enumerate(words) if not word.startswith(OURS)), len(words))
        ours = dict(word.removeprefix(OURS).partition("=")[::2] for word in words[:count])
        self.runc = ours.get("runc", RUNC)
        self.config = ours.get("config", CONFIG)
        self.state_dir = ours.get("state-dir", STATE_DIR)
        self.engine = ours.get("engine", ENGINE)
        self.python = ours.get("python", PYTHON)
        self.runcs = words[count:]
        """The arguments for runc."""

        self.flags: dict[str, str] = {}
        plain: list[str] = []
        rest = iter(self.runcs)
        for word in rest:
            if not word.startswith("-"):
                plain.append(word)
                continue
            name, has_value, value = word.lstrip("-").partition("=")
            if not has_value and name in _VALUED:
                value = next(rest, "")
            self.flags[_SHORT.get(name, name)] = value
        # runc's grammar: global options, the command, its options, and the container's id as the last word.
        self.command = plain[0] if plain else ""
        self.container_id = plain[-1] if len(plain) > 1 else ""

    @property
    def bundle(self) -> str:
        """The directory with the container's `config.json`."""
        return self.flags.get("bundle", ".")


def load_prepared(words: RuncCall) -> dict[str, Any]:
    """Return the facts, gathered again by another process if they are stale.

    Raises:
        ContainerRefusedError: They cannot be gathered; the message is the last line of that process.
    """
    # Checked by stat(2) alone, which takes microseconds; gathering the facts needs a process with all of pgpu.
    found = _load(words.state_dir)
    if found is not None:
        return found
    import subprocess  # rarely needed, and slow to import

    command = [words.python, "-P", "-m", "pgpu.app.oci.installation", words.config, words.state_dir]
    done = subprocess.run(command, env=clean_environment(), capture_output=True, text=True, check=False)
    found = _load(words.state_dir) if done.returncode == 0 else None
    if found is None:
        raise ContainerRefusedError((done.stderr.strip().splitlines() or ["this machine cannot be prepared"])[-1])
    return found


def stamp(path: str) -> list[int] | None:
    """Return time, size and inode of a file; None if it does not exist."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    # With the inode, since an unpacked package may have a file of the same size and time.
    return [found.st_mtime_ns, found.st_size, found.st_ino]


def _load(state_dir: str) -> dict[str, Any] | None:
    try:
        with open(f"{state_dir}/{NAME}", encoding="utf-8") as file:
            status = os.fstat(file.fileno())
            if status.st_uid != os.geteuid() or status.st_mode & _OTHERS_WRITE:
                return None  # it names programs: `installation` refuses the directory, or writes the file anew
            found: dict[str, Any] = json.load(file)
        is_current = found["format"] == FORMAT and all(stamp(path) == was for path, was in found["stamps"].items())
        are_there = all(os.path.exists(path) for path in found["needed"])
    except (OSError, ValueError, KeyError):
        return None
    return found if is_current and are_there else None


def clean_environment() -> dict[str, str]:
    """Return the environment of pgpu's own processes: nothing of the engine's environment is inherited."""
    return {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}
