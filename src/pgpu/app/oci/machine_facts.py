"""What was found out of this machine beforehand, so that creating a container takes milliseconds.

One file in the state directory, written by `preparing`, and only believed while everything that it was made of is as it was.
"""

import json
import os
from typing import Any

from pgpu.app.oci.refusing import RefusedError
from pgpu.app.oci.runc_call import RuncCall

NAME = "oci-runtime.json"
FORMAT = 2
"""Grows when other words are looked up in the file."""


def load_prepared(words: RuncCall) -> dict[str, Any]:
    """Return what is known of this machine, found out anew where that is not true any more.

    Raises:
        RefusedError: It cannot be found out; the line says why.
    """
    return _load(words.state_dir) or _prepare(words)


def stamp(path: str) -> list[int] | None:
    """Return what changes with a file's content; None if it is not there."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return [found.st_mtime_ns, found.st_size, found.st_ino]


def _load(state_dir: str) -> dict[str, Any] | None:
    try:
        with open(f"{state_dir}/{NAME}", encoding="utf-8") as file:
            found: dict[str, Any] = json.load(file)
        is_true = found["format"] == FORMAT and all(stamp(path) == was for path, was in found["stamps"].items())
        are_there = all(os.path.exists(path) for path in found["needed"])
    except (OSError, ValueError, KeyError):
        return None
    return found if is_true and are_there else None


def _prepare(words: RuncCall) -> dict[str, Any]:
    import subprocess  # seldom needed, and slow to load

    command = [words.python, "-P", "-m", "pgpu.app.oci.preparation", words.config, words.state_dir]
    done = subprocess.run(command, env=clean_environment(), capture_output=True, text=True, check=False)
    found = _load(words.state_dir) if done.returncode == 0 else None
    if found is None:
        raise RefusedError((done.stderr.strip().splitlines() or ["this machine cannot be prepared"])[-1])
    return found


def clean_environment() -> dict[str, str]:
    """Return what our own processes are started with: what the engine was started with says nothing about pgpu."""
    return {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}
