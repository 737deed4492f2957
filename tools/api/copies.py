"""The table of functions that move or fill memory: which arguments hold the size, the stream and the direction.

A size that is an element of a list argument is written as 0, which means unknown.
"""

import re
from collections.abc import Sequence

from tools.api.headers import Function

_DIRECTIONS = (
    (re.compile(r"cuMemset"), "FILL"),
    (re.compile(r"Peer"), "PEER_TO_PEER"),
    (re.compile(r"Hto[DA]"), "HOST_TO_DEVICE"),
    (re.compile(r"[DA]toH"), "DEVICE_TO_HOST"),
    (re.compile(r"[DA]to[DA]"), "DEVICE_TO_DEVICE"),
)
_ELEMENT = re.compile(r"cuMemsetD(2D)?(8|16|32)")
_SHAPES = {"const CUDA_MEMCPY2D *": "plane", "const CUDA_MEMCPY3D *": "box", "const CUDA_MEMCPY3D_PEER *": "box"}


def row(base: str, variant: str, function: Function) -> str:
    """Write one row of the table of copies."""
    types = function.parameter_types
    parameters = ", ".join(f"{kind} p{index}" for index, kind in enumerate(types)).replace("* *", "**")
    arguments = ", ".join(f"p{index}" for index in range(len(types)))
    stream = f"p{len(types) - 1}" if types[-1] == "CUstream" else "NULL"
    words = (
        function.symbol,
        _direction(base),
        _is_within(base, types),
        "false" if variant == "PLAIN" else "true",
        stream,
        _bytes(base, types),
        f"({parameters})",
        f"({arguments})",
    )
    return f"CUDA_COPY({', '.join(words)})\n"


def _direction(base: str) -> str:
    return next((name for pattern, name in _DIRECTIONS if pattern.search(base)), "ELSEWHERE")


def _is_within(base: str, types: Sequence[str]) -> str:
    """Write the test for a copy within one device's memory; false for page migration and for copies between host and device."""
    if _direction(base) in {"FILL", "DEVICE_TO_DEVICE"}:
        return "true"
    if _direction(base) in {"HOST_TO_DEVICE", "DEVICE_TO_HOST"} or not base.startswith("cuMemcpy"):
        return "false"
    by_kind = {
        **dict.fromkeys(_SHAPES, "is_shape_within(p0)"),
        "CUDA_MEMCPY3D_BATCH_OP *": "is_any_operation_within(p0, 1)",
        "size_t": "is_any_operation_within(p1, p0)",
        "CUdeviceptr *": "is_any_within(p0, p1, p3)",
    }
    if types[0] in by_kind:
        return by_kind[types[0]]
    return f"is_within(p0, p{types.index('CUdeviceptr', 1)})"


def _bytes(base: str, types: Sequence[str]) -> str:
    if types[0] in _SHAPES:
        return f"pgpu_bytes_of_{_SHAPES[types[0]]}(p0)"
    if "Batch" in base or types[0].startswith("CUDA_MEMCPY3D"):
        return "0"
    sizes = [f"p{index}" for index, kind in enumerate(types) if kind == "size_t"]
    element = _ELEMENT.match(base)
    if element is None:
        return sizes[-1]
    return " * ".join([*sizes[-2 if element[1] else -1 :], str(int(element[2]) // 8)])
