"""Which program a job runs, so that two runs of it are known as the same.

It goes by names alone, for a program that was edited stays the same program. It refuses to look at files: a server would
do so as root, and what it found would tell its caller what lies where they may not look.
"""

import os.path
import re
from pathlib import PurePath

from pgpu.model import JobSpec
from pgpu.scheduling.demand import is_script, signature_of

_INTERPRETER = re.compile(r"(python|pypy|perl|ruby|node|julia|Rscript|lua)[\d.]*|(ba|da|z|k)?sh")


def signature_of_job(spec: JobSpec, image_id: str) -> str:
    """Name the program and how it is called.

    Args:
        spec: What runs; with a command, unless it has an image.
        image_id: What the name of its image stands for; empty for a process.
    """
    if spec.image is not None:
        return signature_of(spec.image.rpartition("/")[2], image_id or spec.image, spec.command)
    place = _script(spec.command) or 0
    program, words = spec.command[place], list(spec.command)
    words.pop(place)
    if place:
        words[0] = PurePath(words[0]).name
    is_found_by_name = place == 0 and "/" not in program
    path = program if is_found_by_name else os.path.normpath(PurePath(spec.working_directory or "/") / program)
    return signature_of(PurePath(path).name, path, words)


def _script(command: tuple[str, ...]) -> int | None:
    """Find the script that is run: the first word named like one, else the first that an interpreter is given."""
    for place, word in enumerate(command):
        if place and is_script(word):
            return place
    if not _INTERPRETER.fullmatch(PurePath(command[0]).name):
        return None
    for place, word in enumerate(command[1:], start=1):
        if word in {"-m", "-c"}:
            return None
        if not word.startswith("-"):
            return place
    return None
