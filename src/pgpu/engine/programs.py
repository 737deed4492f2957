"""Which program a job runs, so that two runs of it are known as the same.

It looks at names alone: a program that was edited stays the same program. What it cannot resolve it takes as it is
written; it refuses to fail, since a job without history only gets a careful slice.
"""

import os
import shutil
from pathlib import Path

from pgpu.model import JobSpec
from pgpu.scheduling.signature import signature_of


def signature_of_job(spec: JobSpec, image_id: str) -> str:
    """Name the program and how it is called.

    Args:
        spec: What runs.
        image_id: What the name of its image stands for; empty for a process.
    """
    if spec.image is not None:
        return signature_of(spec.image.rpartition("/")[2], image_id or spec.image, spec.command)
    directory = Path(spec.working_directory or "/")
    script = _script(spec.command, directory)
    if script is None:
        executable = _executable(spec.command[0], directory)
        return signature_of(executable.name, str(executable), spec.command[1:])
    path = Path(os.path.realpath(directory / spec.command[script]))
    words = [Path(spec.command[0]).name, *spec.command[1:script], *spec.command[script + 1 :]]
    return signature_of(path.name, str(path), words)


def _executable(name: str, directory: Path) -> Path:
    found = shutil.which(name) if "/" not in name else str(directory / name)
    return Path(os.path.realpath(found or name))


def _script(command: tuple[str, ...], directory: Path) -> int | None:
    """Find the file that an interpreter is given: the first word that is no option, where it names a file."""
    for place, word in enumerate(command[1:], start=1):
        if not word.startswith("-"):
            return place if _is_file(directory / word) else None
        if word in {"-m", "-c"}:
            return None
    return None


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False
