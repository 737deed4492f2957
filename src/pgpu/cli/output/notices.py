"""Notices that are printed once for each state directory and version of pgpu.

A notice that repeats at each command is not read any more. The file `notices` of the state directory lists those that were
printed, one on each line; where it cannot be read or written, the notice is printed again.
"""

from contextlib import suppress
from pathlib import Path

from pgpu.digests import sha256
from pgpu.distribution import installed_version
from pgpu.errors import NodeError
from pgpu.host.ownership import check_state_directory

_DIRECTORY_MODE = 0o700
"""As the ledger makes it."""


def is_new_notice(state_dir: Path, line: str) -> bool:
    """Whether a notice was never printed before, by this version; it counts as printed from now on."""
    try:
        check_state_directory(state_dir)
    except NodeError:  # a client of a server needs no directory of its own
        return True
    path = state_dir / "notices"
    mark = f"{installed_version()} {sha256(line.encode()).hexdigest()[:16]}"
    with suppress(OSError, UnicodeDecodeError):
        if mark in path.read_text(encoding="utf-8").splitlines():
            return False
    with suppress(OSError):
        state_dir.mkdir(_DIRECTORY_MODE, parents=True, exist_ok=True)  # a client of a server may have none yet
        with path.open("a", encoding="utf-8") as file:
            file.write(f"{mark}\n")
    return True
