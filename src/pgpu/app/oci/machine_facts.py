"""Facts about this machine that `create` needs within milliseconds: one JSON file, written by `preparation`.

The file is used only while every file that it was made from has the same time, size and inode.
"""

import json
import os
from typing import Any

from pgpu.app.oci.runc_call import RefusedError, RuncCall

NAME = "oci-runtime.json"
FORMAT = 2
"""Version of the file; grows with its keys."""


def load_prepared(words: RuncCall) -> dict[str, Any]:
    """Return the facts, gathered again by another process if they are stale.

    Raises:
        RefusedError: They cannot be gathered; the message is the last line of that process.
    """
    found = _load(words.state_dir)
    if found is not None:
        return found
    import subprocess  # rarely needed, and slow to import

    command = [words.python, "-P", "-m", "pgpu.app.oci.preparation", words.config, words.state_dir]
    done = subprocess.run(command, env=clean_environment(), capture_output=True, text=True, check=False)
    found = _load(words.state_dir) if done.returncode == 0 else None
    if found is None:
        raise RefusedError((done.stderr.strip().splitlines() or ["this machine cannot be prepared"])[-1])
    return found


def stamp(path: str) -> list[int] | None:
    """Return time, size and inode of a file; None if it does not exist."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return [found.st_mtime_ns, found.st_size, found.st_ino]


def _load(state_dir: str) -> dict[str, Any] | None:
    try:
        with open(f"{state_dir}/{NAME}", encoding="utf-8") as file:
            found: dict[str, Any] = json.load(file)
        is_current = found["format"] == FORMAT and all(stamp(path) == was for path, was in found["stamps"].items())
        are_there = all(os.path.exists(path) for path in found["needed"])
    except (OSError, ValueError, KeyError):
        return None
    return found if is_current and are_there else None


def clean_environment() -> dict[str, str]:
    """Return the environment of pgpu's own processes: nothing of the engine's environment is inherited."""
    return {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}
