"""What deploy/ holds, as objects: read as it is, made by kubectl, or made by Helm's own engine.

Reading knows of kustomizations what deploy/ uses, resources and two kinds of patches, and refuses the rest. Where kubectl
is, a test holds the two against each other.
"""

import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import helm_python
import yaml

DEPLOY = Path(__file__).parent.parent / "deploy"
KUSTOMIZE = DEPLOY / "kubernetes"
CHART = DEPLOY / "helm" / "pgpu"
NAMESPACE = "pgpu-system"

Objects = dict[tuple[str, str, str], dict[str, Any]]
"""By kind, namespace and name."""


def written(folder: Path) -> Objects:
    """Read a kustomization."""
    plan = yaml.safe_load((folder / "kustomization.yaml").read_text("utf-8"))
    assert set(plan) <= {"apiVersion", "kind", "resources", "patches"}, f"{folder} says more than this can read"
    objects: Objects = {}
    for name in plan["resources"]:
        path = folder / name
        objects |= written(path) if path.is_dir() else _by_name(_parsed(path.read_text("utf-8")))
    for patch in plan.get("patches", ()):
        _patch(objects, patch)
    return objects


def kustomized(folder: Path) -> Objects:
    """Let kubectl make the objects of a kustomization."""
    done = subprocess.run(["kubectl", "kustomize", str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return _by_name(_parsed(done.stdout))


def charted(values: Mapping[str, Any] | None = None, namespace: str = NAMESPACE) -> Objects:
    """Let Helm's engine make the objects of the chart."""
    with helm_python.Chart.load(CHART) as chart:
        files = chart.render(dict(values or {}), name="pgpu", namespace=namespace)
    texts = [text for name, text in files.items() if name.endswith(".yaml")]
    return _by_name(found for text in texts for found in _parsed(text))


def driver_pod(objects: Objects) -> dict[str, Any]:
    """Return the specification of the driver's pods."""
    pod: dict[str, Any] = objects["DaemonSet", NAMESPACE, "pgpu-driver"]["spec"]["template"]["spec"]
    return pod


def _patch(objects: Objects, patch: Mapping[str, Any]) -> None:
    said = yaml.safe_load(patch["patch"])
    about = patch.get("target") or {"kind": said["kind"], "name": said["metadata"]["name"]}
    (key,) = [key for key in objects if (key[0], key[2]) == (about["kind"], about["name"])]
    if isinstance(said, list):
        for step in said:
            _change(objects[key], step)
    else:
        assert said["$patch"] == "delete", f"{said} is more than this can read"
        del objects[key]


def _change(found: Any, step: Mapping[str, Any]) -> None:
    """Take one step of a JSON patch (RFC 6902)."""
    *way, last = step["path"].strip("/").split("/")
    for name in way:
        found = found[int(name) if isinstance(found, list) else name]
    where = int(last) if isinstance(found, list) and last != "-" else last
    if step["op"] == "add" and last == "-":
        found.append(step["value"])
    elif step["op"] in {"add", "replace"}:
        assert step["op"] == "add" or where in found or isinstance(found, list)
        found[where] = step["value"]
    else:
        assert step["op"] == "remove", f"{step} is more than this can read"
        del found[where]


def _parsed(text: str) -> list[dict[str, Any]]:
    return [found for found in yaml.safe_load_all(text) if found]


def _by_name(found: Iterable[dict[str, Any]]) -> Objects:
    objects: Objects = {}
    for one in found:
        metadata = one["metadata"]
        key = (one["kind"], metadata.get("namespace", ""), metadata["name"])
        assert key not in objects, f"{key} is there twice"
        objects[key] = one
    return objects
