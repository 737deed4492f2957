"""What deploy/ holds, as objects: read as it is, made by kubectl, or made by Helm's own engine.

Reading follows `resources` of a kustomization and refuses whatever else it says: that is kubectl's to understand.
"""

import subprocess
from collections.abc import Iterable, Iterator, Mapping
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
    """Read a kustomization that only lists resources."""
    return _by_name(_written(folder))


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


def _written(folder: Path) -> Iterator[dict[str, Any]]:
    plan = yaml.safe_load((folder / "kustomization.yaml").read_text("utf-8"))
    assert set(plan) == {"apiVersion", "kind", "resources"}, f"{folder} says more than this can read"
    for name in plan["resources"]:
        path = folder / name
        yield from _written(path) if path.is_dir() else _parsed(path.read_text("utf-8"))


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
