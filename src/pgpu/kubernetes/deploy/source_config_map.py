"""A function's source as a ConfigMap: each file is a key, and the pod mounts them as the tree they were.

So it can be read and compared where manifests are kept, and a pod needs nothing but the cluster to start. Kubernetes keeps
1 MiB in one; it refuses more, since a function that needs more belongs into an image.
"""

import base64
import itertools
import re
from collections.abc import Iterator, Sequence

from pgpu.errors import RequestError
from pgpu.kubernetes.deploy.object_names import Manifest, metadata, named_by_content
from pgpu.kubernetes.deploy.workload import SourceFile, Workload
from pgpu.units import MIB, format_memory, quoted

MOST_BYTES = MIB
"""Of a ConfigMap's values together. Source: `MaxSecretSize` of Kubernetes' API, which binds ConfigMaps, too."""

_MOST_FILES = 1000
"""Each is an entry of the pod's template, too, which is an object like any other."""

_MOST_KEY = 200
_NO_KEY = re.compile(r"[^A-Za-z0-9._-]+")
_NO_TEXT = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ufeff\ufffe\uffff]")
"""What some reader of YAML or JSON on the way might not give back as it is."""

_READABLE, _EXECUTABLE = 0o444, 0o555


def config_map(workload: Workload) -> Manifest:
    """Return the ConfigMap that holds a function's source; its name changes with the source.

    Raises:
        RequestError: It is too large, or a file has a name that a ConfigMap cannot mount.
    """
    _check(workload.source)
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(source_name(workload), workload.name, workload.namespace),
        "immutable": True,
        **_content(workload.source),
    }


def source_name(workload: Workload) -> str:
    """Return the ConfigMap's name."""
    return named_by_content(workload.name, "source", [_content(workload.source), items(workload.source)])


def items(source: Sequence[SourceFile]) -> list[Manifest]:
    """Return where the pod finds each key."""
    modes = {True: _EXECUTABLE, False: _READABLE}
    keys = _keys(source)
    return [{"key": keys[file.path], "path": file.path, "mode": modes[file.is_executable]} for file in source]


def _check(source: Sequence[SourceFile]) -> None:
    size_bytes = sum(len(file.content) for file in source)
    if size_bytes > MOST_BYTES:
        largest = max(source, key=lambda file: len(file.content))
        raise RequestError(
            f"the source holds {format_memory(size_bytes)}, and a ConfigMap at most {format_memory(MOST_BYTES)}; "
            f"the largest file is {quoted(largest.path)}",
            hint=_HINT,
        )
    if len(source) > _MOST_FILES:
        raise RequestError(f"the source has {len(source)} files, and at most {_MOST_FILES} are mounted", hint=_HINT)
    if wrong := next((file.path for file in source if file.path.startswith("..")), None):
        raise RequestError(f"Kubernetes mounts no file whose name begins like {quoted(wrong)}", hint=_HINT)


_HINT = "leave files out by .pgpuignore, or build an image that holds it: --source-in-image /function"


def _content(source: Sequence[SourceFile]) -> Manifest:
    keys = _keys(source)
    texts, others = {}, {}
    for file in source:
        if (text := _text(file.content)) is None:
            others[keys[file.path]] = base64.b64encode(file.content).decode()
        else:
            texts[keys[file.path]] = text
    return {**({"data": texts} if texts else {}), **({"binaryData": others} if others else {})}


def _text(content: bytes) -> str | None:
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return None if _NO_TEXT.search(text) else text


def _keys(source: Sequence[SourceFile]) -> dict[str, str]:
    """Return each path's key: `pkg/model.py` is `pkg.model.py`, and a number tells it from another that is written so."""
    keys: dict[str, str] = {}
    taken: set[str] = set()
    for file in source:
        plain = _NO_KEY.sub(".", file.path).lstrip(".")[-_MOST_KEY:] or "file"
        keys[file.path] = next(key for key in _numbered(plain) if key not in taken)
        taken.add(keys[file.path])
    return keys


def _numbered(plain: str) -> Iterator[str]:
    yield plain
    yield from (f"{plain}-{number}" for number in itertools.count(2))
