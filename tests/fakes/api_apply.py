"""Server-side apply: the field manager of each field, and its conflicts. A list is one field; Kubernetes merges some lists by key.

Source: https://kubernetes.io/docs/reference/using-api/server-side-apply/
"""

import copy
from collections.abc import Iterator
from typing import Any

from tests.fakes.api_objects import Object, RefusalError, now

_Path = tuple[str, ...]
_NOBODY_S = {("apiVersion",), ("kind",), ("metadata", "name"), ("metadata", "namespace")}


def applied(old: Object | None, said: Object, manager: str, *, is_forced: bool) -> Object:
    """Return the object after a manager's apply.

    Raises:
        RefusalError: 409, fields of other managers would change; 400, the manager sets a field that only the server sets.
    """
    if "managedFields" in said.get("metadata", {}) or "resourceVersion" in said.get("metadata", {}):
        raise RefusalError(400, "BadRequest", "metadata.managedFields must be nil")
    result = copy.deepcopy(old) if old is not None else {"metadata": {}}
    owned = _owners(result)
    wanted = {path: value for path, value in _leaves(said) if path not in _NOBODY_S}
    taken = _conflicts(result, wanted, owned, manager)
    if taken and not is_forced:
        raise _conflict(taken, said)
    for path, _ in taken:
        for others in owned.values():
            others.discard(path)
    for path in owned.get(manager, set()) - set(wanted):
        if not any(path in paths for name, paths in owned.items() if name != manager):
            _remove(result, path)
    for path, value in wanted.items():
        _put(result, path, value)
    owned[manager] = set(wanted)
    before = result["metadata"].get("managedFields", [])
    result["metadata"] |= {"name": said["metadata"]["name"], "managedFields": _managed(owned, said)}
    if old is not None and _untimed(result) == _untimed(old):
        result["metadata"]["managedFields"] = before
    return result


def _untimed(found: Object) -> Object:
    """Leave out the time of each manager's last apply: an apply that changes nothing stores nothing."""
    about = found["metadata"]
    fields = [{**each, "time": ""} for each in about.get("managedFields", [])]
    return {**found, "metadata": {**about, "managedFields": fields}}


def _conflicts(
    found: Object, wanted: dict[_Path, Any], owned: dict[str, set[_Path]], manager: str
) -> list[tuple[_Path, str]]:
    return [
        (path, name)
        for name, paths in owned.items()
        for path in sorted(paths & set(wanted))
        if name != manager and _at(found, path) != wanted[path]
    ]


def _conflict(taken: list[tuple[_Path, str]], said: Object) -> RefusalError:
    by = sorted({name for _, name in taken})
    fields = ", ".join("." + ".".join(path) for path, _ in taken)
    count = f"{len(taken)} conflict{'s' if len(taken) > 1 else ''}"
    words = f'conflict with "{by[0]}"' if len(by) == 1 else "conflicts with " + ", ".join(f'"{name}"' for name in by)
    return RefusalError(409, "Conflict", f"Apply failed with {count}: {words} using {said['apiVersion']}: {fields}")


def _leaves(found: Any, path: _Path = ()) -> Iterator[tuple[_Path, Any]]:
    if isinstance(found, dict) and found:
        for name, value in found.items():
            yield from _leaves(value, (*path, name))
    else:
        yield path, found


def _owners(found: Object) -> dict[str, set[_Path]]:
    listed = found["metadata"].get("managedFields", [])
    return {each["manager"]: {tuple(path) for path in _named(each["fieldsV1"])} for each in listed}


def _named(fields: Object) -> Iterator[_Path]:
    for name, below in fields.items():
        if below:
            yield from ((name.removeprefix("f:"), *path) for path in _named(below))
        else:
            yield (name.removeprefix("f:"),)


def _managed(owned: dict[str, set[_Path]], said: Object) -> list[Object]:
    return [
        {
            "manager": manager,
            "operation": "Apply",
            "apiVersion": said["apiVersion"],
            "time": now(),
            "fieldsType": "FieldsV1",
            "fieldsV1": _fields(paths),
        }
        for manager, paths in sorted(owned.items())
        if paths
    ]


def _fields(paths: set[_Path]) -> Object:
    fields: Object = {}
    for path in sorted(paths):
        below = fields
        for name in path:
            below = below.setdefault(f"f:{name}", {})
    return fields


def _at(found: Any, path: _Path) -> Any:
    for name in path:
        found = found.get(name) if isinstance(found, dict) else None
    return found


def _put(found: Object, path: _Path, value: Any) -> None:
    for name in path[:-1]:
        found = found.setdefault(name, {})
    found[path[-1]] = copy.deepcopy(value)


def _remove(found: Object, path: _Path) -> None:
    """Remove a field, and each parent that is empty afterwards."""
    above = _at(found, path[:-1])
    if isinstance(above, dict):
        above.pop(path[-1], None)
        if not above and len(path) > 1:
            _remove(found, path[:-1])
