"""Where the small C clients of native/tests are once they were built."""

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
