"""Read a C header through the compiler: its functions, enumerations and integer constants.

It contains nothing specific to CUDA; the modules that call it interpret what it reads.
"""

import re
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

_FUNCTION = re.compile(r"(?:CUresult|nvmlReturn_t)\s+(\w+)\s*\(([^;]*)\)\s*;")
_ENUM = re.compile(r"typedef\s+enum\s*\w*\s*\{([^}]*)\}\s*(\w+)\s*;")
_DEFINE = re.compile(r"^#define\s+(\w+)\s+(\S.*)$", re.MULTILINE)
_BLANK_HEADERS = ("GL/gl.h", "EGL/egl.h", "EGL/eglext.h", "vdpau/vdpau.h")
_NUMBER = re.compile(r"\(?(?:\(unsigned int\))?\s*(?:0[xX][0-9a-fA-F]+|-?\d+)[uUlL]*\)?")


@dataclass(frozen=True, slots=True)
class Function:
    """One exported function."""

    symbol: str
    parameter_types: tuple[str, ...]
    """Types without the parameters' names; empty for `(void)`."""


def preprocess(header: Path, defines: Sequence[str] = (), *, keep_macros: bool = False) -> str:
    """Return a header's text after preprocessing, or its macro definitions.

    Raises:
        subprocess.CalledProcessError: The compiler refused the header.
    """
    with tempfile.TemporaryDirectory() as folder:
        _write_blanks(Path(folder))
        command = ["gcc", "-E", *(["-dM"] if keep_macros else ["-P"]), f"-I{header.parent}", f"-I{folder}", "-x", "c"]
        command += [str(header), *(f"-D{name}" for name in defines)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def functions(preprocessed: str) -> list[Function]:
    """List the functions that a preprocessed header declares, each once."""
    found = {symbol: Function(symbol, _types(arguments)) for symbol, arguments in _FUNCTION.findall(preprocessed)}
    return list(found.values())


def enumerations(preprocessed: str) -> dict[str, list[str]]:
    """Map each named enumeration to its enumerators, in the header's order."""
    return {name: _enumerators(body) for body, name in _ENUM.findall(preprocessed)}


def number_macros(header: Path, prefix: str) -> list[str]:
    """List the macros with this prefix that stand for a plain number, sorted by name."""
    text = preprocess(header, keep_macros=True)
    return sorted(
        name for name, value in _DEFINE.findall(text) if name.startswith(prefix) and _NUMBER.fullmatch(value.strip())
    )


def evaluate(header: Path, names: Iterable[str], defines: Sequence[str] = ()) -> dict[str, int]:
    """Compute the value of each constant with the compiler.

    Raises:
        subprocess.CalledProcessError: The compiler refused one of the names.
    """
    names = list(names)
    lines = "".join(f'    printf("{name} %lld\\n", (long long)({name}));\n' for name in names)
    source = f'#include <stdio.h>\n#include "{header}"\nint main(void) {{\n{lines}    return 0;\n}}\n'
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "constants"
        command = ["gcc", f"-I{header.parent}", *(f"-D{name}" for name in defines), "-x", "c", "-", "-o", str(program)]
        subprocess.run(command, input=source, text=True, check=True)
        printed = subprocess.run([str(program)], capture_output=True, text=True, check=True).stdout
    return {name: int(value) for name, value in (line.split() for line in printed.splitlines())}


def _write_blanks(folder: Path) -> None:
    """Replace foreign headers by empty ones: the preprocessor needs none of their types."""
    for name in _BLANK_HEADERS:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).touch()


def _enumerators(body: str) -> list[str]:
    return [entry.split("=")[0].strip() for entry in body.split(",") if entry.strip()]


def _types(arguments: str) -> tuple[str, ...]:
    arguments = " ".join(arguments.split())
    if arguments in {"", "void"}:
        return ()
    return tuple(_without_name(argument.strip()) for argument in arguments.split(","))


def _without_name(argument: str) -> str:
    """Drop a parameter's name: `const void *srcHost` becomes `const void *`."""
    text = re.sub(r"\[\s*\w*\s*\]$", "", argument)
    pointer = "*" if text != argument else ""
    match = re.fullmatch(r"(.*?[\s*])(\w+)", text)
    if match is None or match[2] in {"int", "char", "long", "unsigned"}:
        return text + pointer
    return re.sub(r"\s*\*", " *", match[1].strip()) + pointer
