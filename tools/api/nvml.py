"""NVML's facts: every export, every enumeration and number, and prototypes of what `nvml_abi*.h` declares types for.

Names come from nvml.h and, for functions newer than that header, from NVIDIA's own Python binding (pynvml), which calls
them by name. The binding states no C types, so those functions have no prototype here.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from tools.api import headers
from tools.api.headers import Function

_ALL_VERSIONS = ("NVML_NO_UNVERSIONED_FUNC_DEFS",)
_CALLED_BY_BINDING = re.compile(r"_nvmlGetFunctionPointer\(\s*[\"'](nvml\w+)[\"']\s*\)")
_TYPE_NAME = re.compile(r"\bnvml\w+_(?:t|st)\b")
_RETURNS_TEXT = "nvmlErrorString"


def exports(header: Path, binding: Path) -> dict[str, Function | None]:
    """Map every exported function to its declaration; None where only the binding has it."""
    declared = {function.symbol: function for function in headers.functions(_declarations(header))}
    newer = set(_CALLED_BY_BINDING.findall(binding.read_text())) - declared.keys()
    return dict(sorted({**declared, **dict.fromkeys(newer | {_RETURNS_TEXT})}.items()))


def api_version(header: Path) -> int:
    """Return NVML_API_VERSION of the header."""
    return headers.evaluate(header, ["NVML_API_VERSION"])["NVML_API_VERSION"]


def render_functions(found: Mapping[str, Function | None], version: int) -> str:
    """Write the X-macro table of exports, without nvmlErrorString, which alone returns no nvmlReturn_t."""
    rows = "".join(f"NVML_FUNCTION({symbol})\n" for symbol in found if symbol != _RETURNS_TEXT)
    return _heading(version, "NVML_FUNCTION(symbol)") + rows


def render_constants(header: Path, version: int) -> str:
    """Write every enumeration and integer macro of NVML as a header."""
    enumerations = headers.enumerations(headers.preprocess(header))
    macros = [name for name in headers.number_macros(header, "NVML_") if name not in _flat(enumerations)]
    values = headers.evaluate(header, [*_flat(enumerations), *macros])
    enums = "".join(_enum(name, members, values) for name, members in sorted(enumerations.items()))
    numbers = "".join(f"#define {name} {_number(values[name])}\n" for name in macros)
    guard = "#ifndef PGPU_NVML_CONSTANTS_H\n#define PGPU_NVML_CONSTANTS_H\n"
    return f"{_heading(version, 'enumerations and numbers')}{guard}\n{enums}\n{numbers}\n#endif\n"


def render_prototypes(found: Mapping[str, Function | None], declared_types: Path, constants: str, version: int) -> str:
    """Write prototypes of the functions with types declared in `nvml_abi*.h`, so that ours must match them.

    Args:
        found: Every export.
        declared_types: Folder of `nvml_abi*.h`.
        constants: Text of the table of enumerations.
        version: NVML_API_VERSION.
    """
    texts = [*(path.read_text() for path in sorted(declared_types.glob("nvml_abi*.h"))), constants]
    known = {name for text in texts for name in _TYPE_NAME.findall(text)}
    functions = [function for function in found.values() if function and _types_of(function) <= known]
    rows = "".join(_prototype(function) for function in functions)
    return _heading(version, "prototypes; included by nvml_abi.h") + rows


def _declarations(header: Path) -> str:
    return headers.preprocess(header, _ALL_VERSIONS)


def _heading(version: int, what: str) -> str:
    return f"/* {what}\n * Facts of NVML {version}'s header, written by tools/generate_api.py: do not edit. */\n"


def _flat(enumerations: Mapping[str, Sequence[str]]) -> list[str]:
    return [name for members in enumerations.values() for name in members]


def _enum(name: str, members: Sequence[str], values: Mapping[str, int]) -> str:
    lines = "".join(f"    {member} = {values[member]},\n" for member in members)
    return f"typedef enum {{\n{lines}}} {name};\n"


def _number(value: int) -> str:
    return f"{value}" if -(2**31) <= value < 2**31 else f"{value & 0xFFFFFFFFFFFFFFFF:#x}ull"


def _prototype(function: Function) -> str:
    parameters = ", ".join(function.parameter_types) or "void"
    return f"nvmlReturn_t {function.symbol}({parameters});\n".replace("* *", "**")


def _types_of(function: Function) -> set[str]:
    return {name for parameter in function.parameter_types for name in _TYPE_NAME.findall(parameter)}
