"""Write the tables of native/api from NVIDIA's headers (`python -m tools.generate_api`), or check them (`--check`).

The headers are those of the packages that this environment pins; `make headers` compares with the newest ones, which it
installs into an environment of their own (`--packages`).

The output has only names, numbers and types of the interface; the headers' text is not committed.
"""

import argparse
import difflib
import importlib.util
import sys
from pathlib import Path

from tools.api import cuda, nvml

ROOT = Path(__file__).parent.parent
API = ROOT / "native" / "api"


def cuda_include(packages: Path | None = None) -> Path | None:
    """Return the include folder of the PyPI package nvidia-cuda-runtime, or None where it is not installed."""
    found = _of_nvidia("cu*/include/cudaTypedefs.h", packages)
    return found.parent if found else None


def nvml_header(packages: Path | None = None) -> Path | None:
    """Return nvml.h of the PyPI package nvidia-nvml-dev, or None where it is not installed."""
    return _of_nvidia("*/include/nvml.h", packages)


def nvml_binding(packages: Path | None = None) -> Path:
    """Return NVIDIA's Python binding of NVML, which is newer than the header."""
    if packages is not None:
        return next(packages.glob("lib/python3*/site-packages/pynvml.py"))
    found = importlib.util.find_spec("pynvml")
    if found is None or found.origin is None:
        raise ModuleNotFoundError("pynvml is a dependency of pgpu and is missing")
    return Path(found.origin)


def _of_nvidia(pattern: str, packages: Path | None) -> Path | None:
    """Find a file of NVIDIA's packages, of this environment or of the one in a folder; the last by name."""
    package = importlib.util.find_spec("nvidia")
    locations = list(package.submodule_search_locations or ()) if package else []
    if packages is not None:
        locations = [str(path) for path in packages.glob("lib/python3*/site-packages/nvidia")]
    return max((path for location in locations for path in Path(location).glob(pattern)), default=None)


def generated_nvml(header: Path, binding: Path) -> dict[Path, str]:
    """Return the expected text of each table of NVML facts."""
    version, found = nvml.api_version(header), nvml.exports(header, binding)
    constants = nvml.render_constants(header, version)
    return {
        API / "nvml_functions.def": nvml.render_functions(found, version),
        API / "nvml_constants.h": constants,
        API / "nvml_prototypes.h": nvml.render_prototypes(found, ROOT / "native" / "include", constants, version),
    }


def generated(include: Path) -> dict[Path, str]:
    """Return the expected text of each table of CUDA facts."""
    version = cuda.cuda_version(include)
    found = cuda.exports(include)
    prototypes = cuda.render_prototypes(found, ROOT / "native" / "include", API / "cuda_constants.h", version)
    return {
        API / "cuda_functions.def": cuda.render_functions(found, version),
        API / "cuda_errors.def": cuda.render_errors(include, version),
        API / "cuda_constants.h": cuda.render_constants(include, version),
        API / "cuda_prototypes.h": prototypes,
        API / "cuda_copies.def": cuda.render_copies(found, prototypes, version),
        API / "cuda_per_thread.def": cuda.render_per_thread(found, prototypes, version),
    }


def main() -> int:
    """Write or check; 1 where a committed table differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if a table is out of date")
    parser.add_argument("--packages", type=Path, help="a virtual environment with the packages of the headers")
    arguments = parser.parse_args()
    include, header = cuda_include(arguments.packages), nvml_header(arguments.packages)
    if include is None or header is None:
        print("no CUDA or NVML headers: pip install --group generate", file=sys.stderr)
        return 1
    try:
        tables = generated(include) | generated_nvml(header, nvml_binding(arguments.packages))
    except ValueError as unclassified:
        print(unclassified, file=sys.stderr)
        return 1
    stale = [path for path, text in tables.items() if not path.exists() or path.read_text() != text]
    if not arguments.check:
        for path in stale:
            path.write_text(tables[path])
    for path in stale:
        print(f"{'out of date' if arguments.check else 'written'}: {path.relative_to(ROOT)}")
        if arguments.packages is not None:
            print(*_changes(path.read_text(), tables[path]), sep="\n")
    return 1 if arguments.check and stale else 0


def _changes(old: str, new: str) -> list[str]:
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), n=0, lineterm="")
    return [line for line in lines if not line.startswith(("---", "+++", "@@"))]


if __name__ == "__main__":
    sys.exit(main())
