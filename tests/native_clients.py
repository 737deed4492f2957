"""Where the clients of the native tests are: the small C programs once they were built, and the frameworks."""

import os
from pathlib import Path

import pytest

_ROOT = Path(__file__).parent.parent


def client_path(topic: str, name: str) -> Path:
    """Return a client's path; skips, with the reason, where it was not built."""
    build = Path(os.environ.get("PGPU_BUILD_DIR", _ROOT / "build" / "native"))
    path = build / "native" / "tests" / topic / name
    if not path.exists():
        pytest.skip(f"{path} was not built (`make build` does; a static client needs a static libc)")
    return path


def framework_python(name: str) -> Path:
    """Return the Python of a framework's own virtual environment; `make test-frameworks` makes it."""
    environments = Path(os.environ.get("PGPU_FRAMEWORKS_DIR", _ROOT / "build" / "frameworks"))
    return environments / name / "bin" / "python"
