"""Compile each CUDA C source of src/pgpu/workloads to the PTX that stands beside it, for every GPU from Maxwell on.

    pip download --no-deps nvidia-cuda-nvrtc-cu11==11.7.99      # the last line that still knows old targets well
    python tools/compile_workload_kernels.py PATH/TO/libnvrtc.so.11.2

Compilers from CUDA 13 on no longer know Maxwell, so the compiler is named, not found. The kernels use nothing that PTX
ISA 6.0 (CUDA 9.0, 2017) lacks, so that is the version we declare: a driver refuses PTX newer than itself. ptxas proves
it in tests/native/test_workload_kernels.py.
"""

import argparse
import ctypes
import re
from pathlib import Path

ROOM = Path(__file__).parent.parent / "src/pgpu/workloads"
TARGET = b"--gpu-architecture=compute_50"
DECLARED_ISA = "6.0"


def main() -> None:
    """Compile and write every PTX."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("nvrtc", help="path of libnvrtc.so")
    nvrtc = ctypes.CDLL(parser.parse_args().nvrtc)
    for path in sorted(ROOM.rglob("*.cu")):
        source = path.read_text()
        path.with_suffix(".ptx").write_text(cost_notes(source) + with_declared_isa(compile_ptx(nvrtc, path)))


def compile_ptx(nvrtc: ctypes.CDLL, source: Path) -> str:
    """Return the PTX of a CUDA C source, or exit with the compiler's log."""
    program = ctypes.c_void_p()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.read_bytes(), source.name.encode(), 0, None, None)
    options = (ctypes.c_char_p * 2)(TARGET, b"--restrict")
    if nvrtc.nvrtcCompileProgram(program, len(options), options) != 0:
        raise SystemExit(_text(nvrtc, program, "nvrtcGetProgramLog"))
    return _text(nvrtc, program, "nvrtcGetPTX")


def _text(nvrtc: ctypes.CDLL, program: ctypes.c_void_p, getter: str) -> str:
    length_bytes = ctypes.c_size_t()
    getattr(nvrtc, getter + "Size")(program, ctypes.byref(length_bytes))
    text = ctypes.create_string_buffer(length_bytes.value)
    getattr(nvrtc, getter)(program, text)
    return text.value.decode()


def cost_notes(source: str) -> str:
    """Return the lines for the simulated driver, which a compiler drops with all comments."""
    return "".join(line + "\n" for line in source.splitlines() if line.startswith("// pgpu.cost "))


def with_declared_isa(ptx: str) -> str:
    """Drop the compiler's banner and declare the oldest ISA that holds these kernels."""
    body = "\n".join(line.rstrip() for line in ptx.splitlines() if not line.startswith("//"))
    return re.sub(r"\.version \d+\.\d+", f".version {DECLARED_ISA}", body, count=1).strip() + "\n"


if __name__ == "__main__":
    main()
