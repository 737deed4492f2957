"""The CUDA driver's facts: exports with ABI version, stream variant and class; constants; prototypes.

The symbols come from cuda.h and the headers of graphics interfaces beside it, the ABI versions from their typedefs
(`PFN_name_vVERSION` in cudaTypedefs.h, cudaGLTypedefs.h, …). The two are joined by order:
the n-th ABI of a name by suffix (`cuCtxCreate`, `cuCtxCreate_v2`, …) is its n-th by version. A count that differs is
an error, so the join never guesses.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.api import copies, headers
from tools.api.classification import class_of, unclassified_allocators, unclassified_copies, unknown_names
from tools.api.headers import Function

_ALL_VERSIONS = ("__CUDA_API_VERSION_INTERNAL",)
_HEADERS = ("cuda", "cudaGL", "cudaEGL", "cudaVDPAU")
_IN_NO_HEADER = {"cuEGLApiInit": 7000, "cuMemGetAttribute": 10000, "cuMemGetAttribute_v2": 10020}
"""Exported by NVIDIA's library and declared nowhere; versions are those of the interfaces around them."""

_WIDE_SINCE = 3020

_SYMBOL = re.compile(r"(cu\w+?)(?:_v(\d+))?(?:_(ptsz|ptds))?")
_TYPEDEF = re.compile(r"\(\s*(?:CUDAAPI)?\s*\*PFN_(cu\w+?)_v(\d+)(?:_(ptsz|ptds))?\)\s*\(([^;]*)\)\s*;")
_TYPE_NAME = re.compile(r"\b(?:CU\w+|cl_\w+|cuuint\w+|GL\w+|EGL\w+|Vdp\w+)\b")


@dataclass(frozen=True, slots=True, order=True)
class Export:
    """One exported symbol of libcuda.so.1."""

    base: str
    """Name that cuGetProcAddress takes."""

    variant: str
    """`PLAIN`, `PTDS` or `PTSZ`."""

    abi_version: int
    """CUDA version that brought this ABI, as 1000 · major + 10 · minor."""

    symbol: str
    function: Function


def exports(include: Path) -> list[Export]:
    """Read every export of the driver.

    Raises:
        ValueError: Header and typedefs disagree, or a function that may allocate is unclassified.
    """
    declared = _texts(include, "{}.h")
    profiler = (include / "cudaProfilerTypedefs.h").read_text()
    found = _joined(headers.functions(declared), _versions(_texts(include, "{}Typedefs.h")))
    found += _profiler_exports(profiler) + _undeclared_exports()
    _check_classes(found)
    return sorted(found)


def cuda_version(include: Path) -> int:
    """Return CUDA_VERSION of the header."""
    return headers.evaluate(include / "cuda.h", ["CUDA_VERSION"])["CUDA_VERSION"]


def render_functions(found: Sequence[Export], version: int) -> str:
    """Write the X-macro table of exports."""
    rows = (
        f'CUDA_FUNCTION({export.symbol}, "{export.base}", {export.abi_version}, {export.variant}, '
        f"{class_of(export.base)})\n"
        for export in found
    )
    return _heading(version, "CUDA_FUNCTION(symbol, name, abi_version, stream_variant, class)") + "".join(rows)


def render_errors(include: Path, version: int) -> str:
    """Write the X-macro table of CUresult codes."""
    names = headers.enumerations(headers.preprocess(include / "cuda.h", _ALL_VERSIONS))["CUresult"]
    values = headers.evaluate(include / "cuda.h", names)
    rows = "".join(f"CUDA_ERROR({name}, {values[name]})\n" for name in names)
    return _heading(version, "CUDA_ERROR(name, value)") + rows


def render_constants(include: Path, version: int) -> str:
    """Write every enumeration and integer macro of the driver API as a header."""
    header = include / "cuda.h"
    enumerations = headers.enumerations(headers.preprocess(header, _ALL_VERSIONS))
    macros = [name for name in headers.number_macros(header, "CU_") if not name.endswith("_INVALID_TEXTURE_UNIT")]
    values = headers.evaluate(header, [*_flat(enumerations.values()), *macros], _ALL_VERSIONS)
    enums = "".join(_enum(name, members, values) for name, members in sorted(enumerations.items()))
    numbers = "".join(f"#define {name} {values[name]}\n" for name in macros)
    guard = "#ifndef PGPU_CUDA_CONSTANTS_H\n#define PGPU_CUDA_CONSTANTS_H\n"
    return f"{_heading(version, 'enumerations and flags')}{guard}\n{enums}\n{numbers}\n#endif\n"


def render_prototypes(found: Sequence[Export], declared_types: Path, constants: Path, version: int) -> str:
    """Write prototypes of the functions with types declared in `cuda_abi*.h`, so that ours must match them."""
    texts = [path.read_text() for path in (*sorted(declared_types.glob("cuda_abi*.h")), constants)]
    known = {name for text in texts for name in _TYPE_NAME.findall(text)}
    declared = (export.function for export in found if export.symbol not in _IN_NO_HEADER)
    rows = (_prototype(function) for function in declared if _types_of(function) <= known)
    return _heading(version, "prototypes; included by cuda_abi.h") + "".join(rows)


def render_per_thread(found: Sequence[Export], prototypes: str, version: int) -> str:
    """Write the X-macro table of per-thread-stream variants: parameters, and the plain function to call with them."""
    declared = set(re.findall(r"CUresult (\w+)\(", prototypes))
    rows = (_per_thread(export) for export in found if export.variant != "PLAIN" and export.symbol in declared)
    return _heading(version, "CUDA_PER_THREAD(symbol, plain_symbol, (parameters), (arguments))") + "".join(rows)


def render_copies(found: Sequence[Export], prototypes: str, version: int) -> str:
    """Write the X-macro table of what moves memory; functions of 32-bit addresses are left out."""
    declared = set(re.findall(r"CUresult (\w+)\(", prototypes))
    moving = [export for export in found if class_of(export.base) == "COPY" and export.symbol in declared]
    rows = [copies.row(export.base, export.variant, export.function) for export in moving if not is_narrow(export)]
    what = "CUDA_COPY(symbol, direction, is_within, is_per_thread, stream, bytes, (parameters), (arguments))"
    return _heading(version, what) + "".join(rows)


def is_narrow(export: Export) -> bool:
    """Whether a copy belongs to CUDA's first API: its sizes and addresses have 32 bits, and no 64-bit program links it."""
    types = export.function.parameter_types
    return (
        export.abi_version < _WIDE_SINCE and "size_t" not in types and not any("CUDA_MEMCPY" in kind for kind in types)
    )


def _texts(include: Path, pattern: str) -> str:
    defines = (*_ALL_VERSIONS, "CUDAAPI=")  # which cudaVDPAU.h uses and leaves to its includer
    return "".join(headers.preprocess(include / pattern.format(name), defines) for name in _HEADERS)


def _per_thread(export: Export) -> str:
    plain = export.symbol.removesuffix(f"_{export.variant.lower()}")
    types = export.function.parameter_types
    parameters = ", ".join(f"{kind} p{index}" for index, kind in enumerate(types))
    arguments = ", ".join(f"p{index}" for index in range(len(types)))
    return f"CUDA_PER_THREAD({export.symbol}, {plain}, ({parameters}), ({arguments}))\n".replace("* *", "**")


def _heading(version: int, what: str) -> str:
    return (
        f"/* {what}\n * Facts of the CUDA {version // 1000}.{version % 1000 // 10} headers, "
        "written by tools/generate_api.py: do not edit. */\n"
    )


def _flat(lists: Iterable[Sequence[str]]) -> list[str]:
    return [name for members in lists for name in members]


def _enum(name: str, members: Sequence[str], values: dict[str, int]) -> str:
    lines = "".join(f"    {member} = {values[member]},\n" for member in members)
    return f"typedef enum {{\n{lines}}} {name};\n"


def _prototype(function: Function) -> str:
    parameters = ", ".join(function.parameter_types) or "void"
    return f"CUresult {function.symbol}({parameters});\n".replace("* *", "**")


def _types_of(function: Function) -> set[str]:
    return {name for parameter in function.parameter_types for name in _TYPE_NAME.findall(parameter)}


def _split(symbol: str) -> tuple[str, int, str]:
    match = _SYMBOL.fullmatch(symbol)
    if match is None:
        raise ValueError(f"{symbol} is no name of a driver function")
    return match[1], int(match[2] or 1), (match[3] or "plain").upper()


def _versions(typedefs: str) -> dict[tuple[str, str], list[int]]:
    versions: dict[tuple[str, str], set[int]] = defaultdict(set)
    for base, version, variant, _ in _TYPEDEF.findall(typedefs):
        versions[base, (variant or "plain").upper()].add(int(version))
    return {key: sorted(found) for key, found in versions.items()}


def _joined(declared: Sequence[Function], versions: dict[tuple[str, str], list[int]]) -> list[Export]:
    groups: dict[tuple[str, str], list[tuple[int, Function]]] = defaultdict(list)
    for function in declared:
        base, ordinal, variant = _split(function.symbol)
        groups[base, variant].append((ordinal, function))
    return [export for key, members in groups.items() for export in _join_group(key, members, versions.get(key, []))]


def _join_group(key: tuple[str, str], members: Sequence[tuple[int, Function]], versions: Sequence[int]) -> list[Export]:
    ordered = [function for _, function in sorted(members, key=lambda member: member[0])]
    if len(versions) != len(ordered):
        raise ValueError(f"{key[0]} has {len(ordered)} symbols and {len(versions)} ABI versions")
    base, variant = key
    return [
        Export(base, variant, version, function.symbol, function)
        for version, function in zip(versions, ordered, strict=True)
    ]


def _profiler_exports(typedefs: str) -> list[Export]:
    """Take the profiler's functions from its typedefs: the header that declares them is not on PyPI."""
    return [
        Export(base, "PLAIN", int(version), base, headers.functions(f"CUresult {base}({arguments});")[0])
        for base, version, _, arguments in _TYPEDEF.findall(typedefs)
    ]


def _undeclared_exports() -> list[Export]:
    return [
        Export(_split(symbol)[0], "PLAIN", version, symbol, Function(symbol, ()))
        for symbol, version in _IN_NO_HEADER.items()
    ]


def _check_classes(found: Sequence[Export]) -> None:
    named = [(export.base, export.function) for export in found]
    missing = unclassified_allocators(named) + unclassified_copies(named)
    if missing:
        raise ValueError(f"these may allocate and are in no class of tools/api/classification.py: {missing}")
    gone = unknown_names(named)
    if gone:
        raise ValueError(f"classified, but in no header: {gone}")
