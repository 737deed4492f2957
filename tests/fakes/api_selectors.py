"""Field and label selectors of a list or a watch."""

from typing import Any

from tests.fakes.api_objects import Object


def selected(found: Object, wanted: dict[str, str]) -> bool:
    """Whether an object matches the selectors of a list or a watch."""
    fields = all(_at(found, path.split(".")) == value for path, value in _pairs(wanted.get("fieldSelector", "")))
    labels = found["metadata"].get("labels", {})
    asked_for = wanted.get("labelSelector", "")
    there = [name for name in asked_for.split(",") if name and "=" not in name]
    named = [part for part in asked_for.split(",") if "=" in part]
    return (
        fields
        and all(name in labels for name in there)
        and all(labels.get(name) == value for name, value in _pairs(",".join(named)))
    )


def _pairs(selector: str) -> list[tuple[str, str]]:
    return [(part.split("=")[0], part.split("=")[-1]) for part in selector.split(",") if part]


def _at(found: Any, path: list[str]) -> Any:
    for name in path:
        found = found.get(name) if isinstance(found, dict) else None
    return found
