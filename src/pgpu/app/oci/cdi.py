"""What a real GPU's Container Device Interface description says that a container needs: NVIDIA's driver describes itself there.

Which GPU a container of Docker's will be granted is not known when it is created, so it gets the devices of all; the shim lets
CUDA see those of its lease alone. It refuses to describe a GPU itself.

Source: Container Device Interface specification 0.5 to 1.0, `containerEdits`.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pgpu.app.oci.block_yaml import parse_block_yaml
from pgpu.errors import NodeError

FOLDERS = (Path("/etc/cdi"), Path("/var/run/cdi"))
_KIND = "nvidia.com/gpu"
_ALL = "all"
_HINT = "nvidia-ctk cdi generate --output=/etc/cdi/nvidia.json --format=json"
_LISTS = ("deviceNodes", "mounts", "env", "hooks", "additionalGids")


def gpu_edits(
    folders: Sequence[Path] = FOLDERS, gpu_uuids: Sequence[str] = ()
) -> tuple[dict[str, list[Any]], list[Path]]:
    """Return what is changed in a container's configuration for GPUs, and the files that say so.

    Args:
        folders: Where descriptions lie.
        gpu_uuids: Whose devices are wanted; of all GPUs where none is named, or where they are not described one by one.

    Raises:
        NodeError: Nothing describes a GPU, or it cannot be read.
    """
    for path in _files(folders):
        content = _read(path)
        if content.get("kind") == _KIND:
            return _joined(content, gpu_uuids), [path]
    raise NodeError(
        f"no description of the machine's GPUs for containers is in {' or '.join(map(str, folders))}", hint=_HINT
    )


def _files(folders: Sequence[Path]) -> Iterator[Path]:
    for folder in folders:
        if folder.is_dir():
            yield from (path for path in sorted(folder.iterdir()) if path.suffix in {".json", ".yaml", ".yml"})


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
        content = json.loads(text) if path.suffix == ".json" else parse_block_yaml(text)
    except (OSError, ValueError) as exc:
        raise NodeError(f"{path} cannot be read: {exc}", hint=_HINT) from exc
    if not isinstance(content, dict):
        raise NodeError(f"{path} describes no devices", hint=_HINT)
    return content


def _joined(content: dict[str, Any], gpu_uuids: Sequence[str]) -> dict[str, list[Any]]:
    """The device `all` is what its maker joined; without one, every device's own edits are."""
    devices = content.get("devices") or []
    named = [device for device in devices if device.get("name") in gpu_uuids]
    everything = [device for device in devices if str(device.get("name")) == _ALL] or devices
    chosen = named if named and len(named) == len(gpu_uuids) else everything
    parts = [content.get("containerEdits") or {}, *(device.get("containerEdits") or {} for device in chosen)]
    return {name: _distinct(each for part in parts for each in part.get(name) or ()) for name in _LISTS}


def _distinct(found: Iterator[Any]) -> list[Any]:
    return [json.loads(text) for text in dict.fromkeys(json.dumps(each, sort_keys=True) for each in found)]
