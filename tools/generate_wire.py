"""Generates the Python code of src/pgpu/kubernetes/generated/*.proto, with its types.

It refuses to write anything but that. Usage: python tools/generate_wire.py [FOLDER]; without one, the code goes where it is
committed.
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"
WIRE = SOURCE / "pgpu" / "kubernetes" / "generated"


def generate(folder: Path) -> None:
    """Write the code of all .proto files below a folder that stands for `src`.

    Raises:
        subprocess.CalledProcessError: One of them cannot be read.
    """
    outputs = [f"--{name}_out={folder}" for name in ("python", "grpc_python")]
    outputs += [f"--{name}_out=quiet:{folder}" for name in ("mypy", "mypy_grpc")]
    plugins = [
        f"--plugin=protoc-gen-{name}={Path(sys.executable).with_name(f'protoc-gen-{name}')}"
        for name in ("mypy", "mypy_grpc")
    ]
    files = sorted(str(path) for path in WIRE.glob("*.proto"))
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", f"-I{SOURCE}", *plugins, *outputs, *files], check=True)


if __name__ == "__main__":
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else SOURCE)
