"""What deploy/kubernetes/scheduler installs fits what `pgpu kubernetes score` does."""

import inspect
from pathlib import Path
from typing import Any

import yaml

from pgpu.cli.verbs.kubernetes import score

FOLDER = Path(__file__).parents[2] / "deploy" / "kubernetes" / "scheduler"
LISTENS_AT = inspect.signature(score).parameters["listen"].default


def read(name: str) -> Any:
    return yaml.safe_load((FOLDER / name).read_text())


def test_the_scheduler_asks_where_it_is_answered_and_can_do_without() -> None:
    (extender,) = read("kube-scheduler-configuration.yaml")["extenders"]

    assert extender.pop("urlPrefix") == f"http://{LISTENS_AT}"
    assert extender.pop("weight") > 0
    assert extender.pop("httpTimeout") == "1s"
    assert extender == {"prioritizeVerb": "prioritize", "nodeCacheCapable": True, "ignorable": True}


def test_its_pod_runs_the_verb_without_any_privilege_but_the_hosts_loopback() -> None:
    spec = read("daemonset.yaml")["spec"]["template"]["spec"]
    (container,) = spec["containers"]

    assert container["args"] == ["kubernetes", "score", f"--listen={LISTENS_AT}"]
    assert spec["serviceAccountName"] == read("service-account.yaml")["metadata"]["name"]
    assert [name for name in spec if name.startswith("host")] == ["hostNetwork"]
    assert "volumes" not in spec
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert container["securityContext"]["runAsNonRoot"]
    for probe in ("livenessProbe", "readinessProbe"):
        asked = container[probe]["httpGet"]
        assert f"{asked['host']}:{asked['port']}" == LISTENS_AT


def test_all_that_is_needed_is_applied() -> None:
    applied = set(read("kustomization.yaml")["resources"])

    assert applied == {path.name for path in FOLDER.glob("*.yaml")} - {
        "kustomization.yaml",
        "kube-scheduler-configuration.yaml",
    }
