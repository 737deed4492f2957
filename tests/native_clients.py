"""What the native tests run: the C libraries under test, the small C programs once they were built, and the frameworks.

`make test-sanitizers` puts other builds of libraries and clients in their place, and its run-time libraries before them.
"""

import os
from pathlib import Path

import pytest

from pgpu.libraries import library_path

_ROOT = Path(__file__).parent.parent


def library(name: str) -> Path:
    """A library of this installation, or of the build that PGPU_NATIVE_DIR names (with sanitizers, say)."""
    built = os.environ.get("PGPU_NATIVE_DIR")
    return Path(built) / name if built else library_path(name)


def preloading(*libraries: Path) -> dict[str, str]:
    """The environment that preloads libraries, after the sanitizers' own where there are some."""
    words = [word for word in (os.environ.get("PGPU_TEST_PRELOAD"), *map(str, libraries)) if word]
    return {"LD_PRELOAD": ":".join(words)} if words else {}


def client_path(topic: str, name: str) -> Path:
    """Return a client's path; skips, with the reason, where it was not built."""
    build = Path(os.environ.get("PGPU_BUILD_DIR", _ROOT / "build" / "native"))
    folder = {"simgpu": "simgpu/tests", "fuzz": "native/fuzz"}.get(topic, f"native/tests/{topic}")
    path = build / folder / name
    if not path.exists():
        pytest.skip(f"{path} was not built (`make build` does; a static client needs a static libc)")
    return path


def framework_python(name: str) -> Path:
    """Return the Python of a framework's own virtual environment; `make test-frameworks` makes it."""
    environments = Path(os.environ.get("PGPU_FRAMEWORKS_DIR", _ROOT / "build" / "frameworks"))
    return environments / name / "bin" / "python"
