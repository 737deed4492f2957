"""Records of typed fields: msgspec's structs under one import, with type-checked copies.

A dataclass compiles its methods at each start of a process, in about 1 ms; a struct takes 20 µs. Some 200 of them are
defined before a command or an agent can begin.
"""

import sys
from typing import TYPE_CHECKING

# msgspec takes three names from `typing_extensions` where it is installed, else the same ones from `typing`, which has them
# since Python 3.11. `typing_extensions` takes as long to import as msgspec itself, so its import fails meanwhile: None in
# `sys.modules` is an ImportError.
sys.modules.setdefault("typing_extensions", None)  # type: ignore[arg-type]
try:
    from msgspec import DecodeError, Struct, convert, field, to_builtins
    from msgspec.json import Decoder as JsonDecoder
    from msgspec.json import encode as encode_json
    from msgspec.structs import FieldInfo, asdict, fields
finally:
    if sys.modules["typing_extensions"] is None:
        del sys.modules["typing_extensions"]

if TYPE_CHECKING:
    # The same signature; checkers verify the names and types of the changes of this one.
    from dataclasses import replace
else:
    from msgspec.structs import replace

__all__ = [
    "DecodeError",
    "FieldInfo",
    "JsonDecoder",
    "Struct",
    "asdict",
    "convert",
    "encode_json",
    "field",
    "fields",
    "replace",
    "to_builtins",
]
