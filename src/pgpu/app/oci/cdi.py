"""Reads Container Device Interface descriptions: what a container needs for a GPU, according to NVIDIA's driver.

Which GPU a Docker container will be granted is not known at its creation, so it gets the devices of all GPUs; the shim
shows CUDA only those of its lease. YAML is read without a library: the plain block style of `nvidia-ctk cdi generate`
(mappings, sequences and scalars on one line). Anything else is an error that names the line.

Source: Container Device Interface specification 0.5 to 1.0, `containerEdits`.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pgpu.errors import NodeError

FOLDERS = (Path("/etc/cdi"), Path("/var/run/cdi"))
_KIND = "nvidia.com/gpu"
_ALL = "all"
_HINT = "nvidia-ctk cdi generate --output=/etc/cdi/nvidia.json --format=json"
_LISTS = ("deviceNodes", "mounts", "env", "hooks", "additionalGids")

_KEY = re.compile(r"(?P<key>[A-Za-z0-9_./-]+|\"(?:[^\"\\]|\\.)*\"|'(?:[^']|'')*'):(?:\s+(?P<rest>.*))?")
_UNKNOWN = set("{[&*!|>%@`")
_EMPTY: dict[str, Any] = {"{}": {}, "[]": []}
_WORDS: dict[str, Any] = {"": None, "~": None, "null": None, "true": True, "false": False}
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)")

_Line = tuple[int, int, str]
"""Number, indentation, content."""


def gpu_edits(
    folders: Sequence[Path] = FOLDERS, gpu_uuids: Sequence[str] = ()
) -> tuple[dict[str, list[Any]], list[Path]]:
    """Return the changes of a container's configuration for GPUs, and the files that describe them.

    Args:
        folders: The directories of the descriptions.
        gpu_uuids: GPUs that the container needs; all of them if none is named, or if they are not described one by one.

    Raises:
        NodeError: There is no description of a GPU, or it cannot be read.
    """
    # The first description of GPUs counts: a second one would name the same devices again.
    for folder in folders:
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            if path.suffix not in {".json", ".yaml", ".yml"}:
                continue
            try:
                text = path.read_text(encoding="utf-8")
                content = json.loads(text) if path.suffix == ".json" else parse_block_yaml(text)
            except (OSError, ValueError) as exc:
                raise NodeError(f"{path} cannot be read: {exc}", hint=_HINT) from exc
            if not isinstance(content, dict):
                raise NodeError(f"{path} describes no devices", hint=_HINT)
            if content.get("kind") == _KIND:
                return _join_edits(content, gpu_uuids), [path]
    raise NodeError(
        f"no description of the machine's GPUs for containers is in {' or '.join(map(str, folders))}", hint=_HINT
    )


def _join_edits(content: dict[str, Any], gpu_uuids: Sequence[str]) -> dict[str, list[Any]]:
    """Join the edits of the named devices, else of the device `all`, else of every device."""
    devices = content.get("devices") or []
    named = [device for device in devices if device.get("name") in gpu_uuids]
    # `nvidia-ctk cdi generate` names devices by index, by UUID, or both, and adds the device `all`.
    everything = [device for device in devices if str(device.get("name")) == _ALL] or devices
    chosen = named if named and len(named) == len(gpu_uuids) else everything
    parts = [content.get("containerEdits") or {}, *(device.get("containerEdits") or {} for device in chosen)]
    edits: dict[str, list[Any]] = {}
    for name in _LISTS:
        # Edits are unhashable; as JSON with sorted keys, equal ones are equal texts.
        texts = dict.fromkeys(json.dumps(each, sort_keys=True) for part in parts for each in part.get(name) or ())
        edits[name] = [json.loads(text) for text in texts]
    return edits


def parse_block_yaml(text: str) -> Any:
    """Parse a document.

    Raises:
        ValueError: It uses other features of YAML; the message names the line.
    """
    lines: list[_Line] = []
    for number, raw in enumerate(text.splitlines(), 1):
        content = raw.strip()
        if not content or content.startswith("#") or content == "---":
            continue
        if "\t" in raw:
            raise _unknown_yaml((number, 0, raw))
        lines.append((number, len(raw) - len(raw.lstrip()), content))
    value, rest = _parse_node(lines, 0)
    if rest:
        raise _unknown_yaml(rest[0])
    return value


def _parse_node(lines: list[_Line], least: int) -> tuple[Any, list[_Line]]:
    """Parse the node that begins with the first line, if that is indented far enough."""
    if not lines or lines[0][1] < least:
        return None, lines
    if _is_item(lines[0]):
        return _parse_sequence(lines, lines[0][1])
    if _KEY.fullmatch(lines[0][2]) is None:
        return _parse_scalar(lines[0], lines[0][2]), lines[1:]
    return _parse_mapping(lines, lines[0][1])


def _parse_sequence(lines: list[_Line], indentation: int) -> tuple[list[Any], list[_Line]]:
    found: list[Any] = []
    while lines and lines[0][1] == indentation and _is_item(lines[0]):
        number, _, content = lines[0]
        rest = content[1:].lstrip()
        inner = indentation + len(content) - len(rest)
        # The text behind the dash is the first line of an inner node, with its column as indentation.
        value, lines = _parse_node([(number, inner, rest), *lines[1:]] if rest else lines[1:], indentation + 1)
        found.append(value)
    return found, lines


def _parse_mapping(lines: list[_Line], indentation: int) -> tuple[dict[str, Any], list[_Line]]:
    found: dict[str, Any] = {}
    while lines and lines[0][1] == indentation and not _is_item(lines[0]):
        match = _KEY.fullmatch(lines[0][2])
        if match is None:
            raise _unknown_yaml(lines[0])
        key, rest = str(_parse_scalar(lines[0], match["key"])), match["rest"]
        if rest:
            found[key], lines = _parse_scalar(lines[0], rest), lines[1:]
        elif len(lines) > 1 and _is_item(lines[1]) and lines[1][1] == indentation:
            found[key], lines = _parse_sequence(lines[1:], indentation)
        else:
            found[key], lines = _parse_node(lines[1:], indentation + 1)
    return found, lines


def _is_item(line: _Line) -> bool:
    return line[2] == "-" or line[2].startswith("- ")


def _parse_scalar(line: _Line, text: str) -> Any:
    if text in _EMPTY:
        return _EMPTY[text].copy()
    if text.startswith('"') and text.endswith('"'):
        return json.loads(text)
    if text.startswith("'") and text.endswith("'"):
        return text[1:-1].replace("''", "'")
    if text[0] in _UNKNOWN or text[0] in "\"'" or " #" in text or ": " in text:
        raise _unknown_yaml(line)
    if text in _WORDS:
        return _WORDS[text]
    return int(text) if _NUMBER.fullmatch(text) else text


def _unknown_yaml(line: _Line) -> ValueError:
    return ValueError(f"line {line[0]} uses more of YAML than is supported: {line[2].strip()}")
