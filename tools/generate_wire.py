"""Generates the message classes of src/pgpu/kubernetes/generated/*.proto, with type stubs; services need no generated code.

Usage: python tools/generate_wire.py [FOLDER]; without a folder, the code is written where it is committed.
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"
GENERATED = SOURCE / "pgpu" / "kubernetes" / "generated"


def generate(folder: Path) -> None:
    """Write the code of all .proto files into a folder laid out like `src`.

    Raises:
        subprocess.CalledProcessError: A file is invalid.
    """
    plugin = f"--plugin=protoc-gen-mypy={Path(sys.executable).with_name('protoc-gen-mypy')}"
    outputs = [f"--python_out={folder}", f"--mypy_out=quiet:{folder}"]
    files = sorted(str(path) for path in GENERATED.glob("*.proto"))
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", f"-I{SOURCE}", plugin, *outputs, *files], check=True)


if __name__ == "__main__":
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else SOURCE)
