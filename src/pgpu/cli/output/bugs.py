"""Where the details of a bug are written, so that its user sees one line and its developer sees all."""

import os
import platform
import sys
import tempfile
import traceback

from pgpu.distribution import installed_version
from pgpu.errors import PgpuBug


def record_bug(error: Exception) -> PgpuBug:
    """Write a traceback to a file of its own and return the error that names it."""
    place = f"pgpu {installed_version()}, Python {platform.python_version()}, {platform.platform()}"
    details = "".join(traceback.format_exception(error))
    try:
        descriptor, path = tempfile.mkstemp(prefix="pgpu-bug-", suffix=".txt")
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"{place}\n{sys.argv!r}\n\n{details}")
    except OSError as exc:
        path = f"nowhere, since {exc}"
    return PgpuBug(
        f"this is a bug of pgpu: {type(error).__name__}: {error}", hint=f"please report it; the details are in {path}"
    )
