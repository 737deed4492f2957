"""`pgpu deploy --runtime kubernetes` and what follows it, as they are typed, against an API server that has no controllers."""

import json
from pathlib import Path

import pytest
import yaml
from tests.fakes.api_objects import KINDS, Kind
from tests.fakes.api_server import ApiServer, Asked, User
from tests.system.kubernetes.deployed_functions import (
    APP,
    CLASSES,
    DEPLOYED,
    IMAGE,
    PODS,
    SCALERS,
    SERVED,
    SETS,
    SOURCES,
    TEMPLATES,
    Manifest,
    Said,
    names,
    pod_of,
    stored,
)
from tests.unit.test_cli import validate

from pgpu.kubernetes.api import DynamicClient
from pgpu.kubernetes.deploy.apply import DEPLOYMENTS


def test_a_function_from_deploy_to_undeploy(server: ApiServer, said: Said) -> None:
    assert said("deploy", "app.py:Doubler", *IMAGE) == "http://doubler.default.svc/\n"
    assert (names(server, DEPLOYED), names(server, SERVED)) == (["doubler"], ["doubler"])
    (source,) = names(server, SOURCES)
    deployed = server.objects.get(DEPLOYED, "default", "doubler")
    assert {
        "name": "source",
        "configMap": {"name": source, "items": [{"key": "app.py", "path": "app.py", "mode": 292}]},
    } in (pod_of(deployed)["volumes"])
    printed = said("functions", "--runtime", "kubernetes", "--json")
    assert validate("cluster-functions", printed)["functions"][0]["app"] == "app.py:Doubler"
    said("undeploy", "doubler", "--runtime", "kubernetes")
    assert names(server, DEPLOYED) == names(server, SERVED) == names(server, SOURCES) == []
    assert "no function doubler" in said("undeploy", "doubler", "--runtime", "kubernetes", code=125)


def test_a_function_with_a_gpu_claims_a_slice_of_its_size(server: ApiServer, said: Said) -> None:
    said("deploy", "app.py:Sliced", *IMAGE, "--memory", "6GiB", "-n", "vision")
    (template,) = server.objects.all(TEMPLATES)
    assert template["metadata"]["namespace"] == "vision"
    (request,) = template["spec"]["spec"]["devices"]["requests"]
    assert request["exactly"]["capacity"]["requests"] == {"memory": "6Gi", "compute": "25"}
    (claim,) = pod_of(server.objects.get(DEPLOYED, "vision", "sliced"))["resourceClaims"]
    assert claim["resourceClaimTemplateName"] == template["metadata"]["name"]
    assert "1 GPU, 6 GiB, 25%" in said("functions", "sliced", "--runtime", "kubernetes", "-n", "vision")
    assert "sliced" in said("functions", "--runtime", "kubernetes", "--all-namespaces")
    assert "no function" in said("functions", "sliced", "--runtime", "kubernetes", code=125)


def test_the_same_again_changes_nothing(server: ApiServer, said: Said) -> None:
    said("deploy", "app.py:Sliced", *IMAGE)
    before = [server.objects.all(each) for each in (DEPLOYED, SERVED, SOURCES, TEMPLATES)]
    printed = validate("cluster-deploy", said("deploy", "app.py:Sliced", *IMAGE, "--json"))
    assert [each["word"] for each in printed["function"]["objects"]] == ["unchanged"] * 4
    assert [server.objects.all(each) for each in (DEPLOYED, SERVED, SOURCES, TEMPLATES)] == before


def test_a_new_source_rolls_out_and_the_old_one_stays_while_one_may_go_back_to_it(
    server: ApiServer, said: Said, source: Path
) -> None:
    said("deploy", "app.py:Doubler", *IMAGE)
    (first,) = names(server, SOURCES)
    deployed = server.objects.get(DEPLOYED, "default", "doubler")
    labels = deployed["metadata"]["labels"]
    server.objects.create(
        SETS,
        "default",
        {"metadata": {"name": "doubler-1", "labels": labels}, "spec": {"template": deployed["spec"]["template"]}},
    )
    (source / "app.py").write_text(APP.replace("2 * x", "x + x"))
    said("deploy", "app.py:Doubler", *IMAGE)
    second = next(name for name in names(server, SOURCES) if name != first)
    (mounted,) = [
        each["configMap"]["name"]
        for each in pod_of(server.objects.get(DEPLOYED, "default", "doubler"))["volumes"]
        if "configMap" in each
    ]
    assert mounted == second
    assert names(server, SOURCES) == sorted([first, second]), "a version to go back to has its source"
    server.objects.delete(SETS, "default", "doubler-1")
    said("deploy", "app.py:Doubler", *IMAGE)
    assert names(server, SOURCES) == [second]


def test_what_a_new_version_does_not_have_is_removed(server: ApiServer, said: Said) -> None:
    said("deploy", "app.py:Sliced", *IMAGE, "--max", "4", "--autoscale")
    assert len(names(server, SCALERS)) == len(names(server, TEMPLATES)) == 1
    said("deploy", "app.py:Sliced", *IMAGE, "--gpus", "0", "--source-in-image", "/app", "--recreate")
    assert names(server, SCALERS) == names(server, TEMPLATES) == names(server, SOURCES) == []
    deployed = server.objects.get(DEPLOYED, "default", "sliced")
    assert "resourceClaims" not in pod_of(deployed)
    assert pod_of(deployed)["containers"][0]["workingDir"] == "/app"
    assert deployed["spec"]["strategy"] == {"type": "Recreate"}


def test_a_field_of_another_manager_is_not_taken_and_nothing_is_changed(
    server: ApiServer, said: Said, tmp_path: Path
) -> None:
    said("deploy", "app.py:Doubler", *IMAGE)
    others = DynamicClient.from_kubeconfig(server.kubeconfig(tmp_path))
    other = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "doubler"}, "spec": {"replicas": 7}}
    others.apply(DEPLOYMENTS, other, "default", "argocd", is_forced=True)
    others.close()
    server.asked.clear()
    complaint = said("deploy", "app.py:Doubler", *IMAGE, "--name", "doubler", "--min", "2", code=125)
    assert '"argocd"' in complaint
    assert ".spec.replicas" in complaint
    assert "--force" in complaint
    assert stored(server) == []
    assert server.objects.get(DEPLOYED, "default", "doubler")["spec"]["replicas"] == 7
    said("deploy", "app.py:Doubler", *IMAGE, "--min", "2", "--force")
    assert server.objects.get(DEPLOYED, "default", "doubler")["spec"]["replicas"] == 2


@pytest.mark.parametrize("of", [DEPLOYED, SERVED])
def test_an_object_of_somebody_else_is_left_alone(server: ApiServer, said: Said, of: Kind) -> None:
    server.objects.create(of, "default", {"metadata": {"name": "doubler"}, "spec": {"theirs": True}})
    assert "pgpu did not make" in said("deploy", "app.py:Doubler", *IMAGE, "--force", code=125)
    assert stored(server) == []
    assert "no function" in said("undeploy", "doubler", "--runtime", "kubernetes", code=125)
    assert server.objects.get(of, "default", "doubler")["spec"] == {"theirs": True}


def test_a_cluster_without_slices_is_refused_functions_that_need_one(server: ApiServer, said: Said) -> None:
    server.objects.delete(CLASSES, "", "gpu.pgpu.io")
    complaint = said("deploy", "app.py:Sliced", *IMAGE, code=125)
    assert "no DeviceClass gpu.pgpu.io" in complaint
    assert "kubectl apply -k deploy/kubernetes" in complaint
    server.kinds = [each for each in server.kinds if each.group != "resource.k8s.io"]
    assert "no claims of devices" in said("deploy", "app.py:Sliced", *IMAGE, code=125)
    assert stored(server) == []
    said("deploy", "app.py:Doubler", *IMAGE)


def test_who_may_not_look_at_device_classes_deploys_all_the_same(
    server: ApiServer, remarked: Said, tmp_path: Path
) -> None:
    rules = [{"apiGroups": ["", "apps", "resource.k8s.io", "autoscaling"], "resources": ["*"], "verbs": ["*"]}]
    narrow = [{**rule, "resources": list(NAMESPACED)} for rule in rules]
    server.users["author"] = User(narrow)
    said = remarked("deploy", "app.py:Sliced", *IMAGE, "--kubeconfig", str(server.kubeconfig(tmp_path, "author")))
    assert "may not be looked at" in said
    assert names(server, DEPLOYED) == ["sliced"]


NAMESPACED = (
    "deployments",
    "replicasets",
    "services",
    "configmaps",
    "resourceclaimtemplates",
    "horizontalpodautoscalers",
)


def test_a_right_or_a_quota_that_is_missing_is_named(server: ApiServer, said: Said, tmp_path: Path) -> None:
    server.users["reader"] = User([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["get", "list"]}])
    file = str(server.kubeconfig(tmp_path, "reader"))
    complaint = said("deploy", "app.py:Doubler", *IMAGE, "--kubeconfig", file, code=125)
    assert "kubectl auth can-i patch configmaps -n default" in complaint
    server.users.clear()

    def full(asked: Asked, _user: User, _wanted: Manifest) -> str | None:
        return "exceeded quota: few, requested: services=1, used: services=2" if asked.kind == SERVED else None

    server.admission = full
    complaint = said("deploy", "app.py:Doubler", *IMAGE, code=125)
    assert "exceeded quota" in complaint
    assert "kubectl describe quota -n default" in complaint
    assert stored(server) == []


def test_a_dry_run_prints_what_would_be_applied_and_asks_nobody(server: ApiServer, said: Said) -> None:
    said("deploy", "app.py:Sliced", *IMAGE, "-n", "default")
    server.asked.clear()
    words = ("deploy", "app.py:Sliced", *IMAGE, "-n", "default", "--kubeconfig", "/nowhere")
    printed = list(yaml.safe_load_all(said(*words, "--dry-run")))
    assert json.loads(said(*words, "-o", "json"))["items"] == printed
    assert server.asked == []
    assert [each["kind"] for each in printed] == ["ConfigMap", "ResourceClaimTemplate", "Deployment", "Service"]
    for manifest in printed:
        of = next(each for each in KINDS if (each.api_version, each.name) == (manifest["apiVersion"], manifest["kind"]))
        found = server.objects.get(of, "default", manifest["metadata"]["name"])
        assert {part: found[part] for part in manifest if part != "metadata"} | {
            "metadata": manifest["metadata"]
        } == manifest
    nameless = list(yaml.safe_load_all(said("deploy", "app.py:Sliced", *IMAGE, "--dry-run")))
    assert all("namespace" not in each["metadata"] for each in nameless), "whoever applies it says where"
    assert nameless[-1]["kind"] == "Service"


def test_why_a_function_does_not_serve_is_told(server: ApiServer, said: Said) -> None:
    said("deploy", "app.py:Sliced", *IMAGE)
    labels = server.objects.get(DEPLOYED, "default", "sliced")["metadata"]["labels"]
    waiting = {"reason": "ImagePullBackOff", "message": "no such image"}
    full = {
        "type": "PodScheduled",
        "status": "False",
        "message": "0/1 nodes are available: cannot allocate all claims.",
    }
    for name, status in (
        ("ready", {"conditions": [{"type": "Ready", "status": "True"}]}),
        ("full", {"conditions": [full]}),
        ("pulling", {"containerStatuses": [{"state": {"waiting": waiting}}]}),
        ("starting", {"containerStatuses": [{"ready": False, "state": {"running": {"startedAt": "now"}}}]}),
        ("creating", {"containerStatuses": [{"state": {"waiting": {"reason": "ContainerCreating"}}}]}),
    ):
        server.objects.create(
            PODS, "default", {"metadata": {"name": name, "labels": labels}, "spec": {}, "status": status}
        )
    (found,) = validate("cluster-functions", said("functions", "--runtime", "kubernetes", "--json"))["functions"]
    assert (found["ready"], found["replicas"]) == (1, 5)
    pods = "-l pgpu.io/function=sliced -n default"
    no_room = "no node has a GPU with room for its slice (1 GPU, 4 GiB, 25%)"
    assert sorted(found["reasons"]) == [
        "ImagePullBackOff: no such image",
        f"it runs and takes no calls yet; if that stays so, its log says why: kubectl logs {pods}",
        f"{no_room}: a new version starts beside the old one, or with --recreate after its end",
    ]
    assert "serving" in said("functions", "--runtime", "kubernetes")


def test_what_a_cluster_does_otherwise_than_a_server_is_said(remarked: Said, source: Path) -> None:
    declared = 'network = "bridge"\nkeep_warm = "auto"\nrequirements = ["numpy"]\nmax_replicas = 4\n'
    (source / "pgpu.toml").write_text(f'[function.doubler]\napp = "app.py:Doubler"\n{declared}')
    said = remarked("deploy", "doubler", *IMAGE, "--dry-run")
    for words in (
        "NetworkPolicy",
        "keep_warm has no effect",
        "in the image: numpy",
        "1 of 4 replicas",
        "calls need no token",
    ):
        assert words in said
    assert "token" not in remarked("deploy", "doubler", *IMAGE, "--dry-run", "--public")
    assert "1 of 4" not in remarked("deploy", "doubler", *IMAGE, "--dry-run", "--autoscale")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--runtime", "kubernetes"), "needs an image"),
        ((*IMAGE, "--no-rollout"), "kubectl rollout"),
        ((*IMAGE, "--network", "bridge"), "NetworkPolicy"),
        ((*IMAGE, "--requirements", "lock.txt"), "packages stand in the image"),
        ((*IMAGE, "--name", "my_model"), "cannot be the name of a Service"),
        ((*IMAGE, "--namespace", "Vision"), "no name of a namespace"),
        ((*IMAGE, "--output", "xml"), "--output yaml or json"),
        ((*IMAGE, "--cpu", "much"), "2 or 500m"),
        ((*IMAGE, "--gpus", "17"), "16 GPUs at most"),
        ((*IMAGE, "--source-in-image", "app"), "no directory of an image"),
        ((*IMAGE, "--knative"), "not deployed to Knative any more"),
        ((*IMAGE, "--context", "other"), "'other' not found"),
        (("--namespace", "vision"), "add --runtime kubernetes"),
        (("--dry-run",), "add --runtime kubernetes"),
        (("--runtime", "vm"), "process, docker or kubernetes"),
    ],
)
def test_what_a_cluster_cannot_do_is_refused_in_one_line_with_a_hint(
    server: ApiServer, said: Said, words: tuple[str, ...], complaint: str
) -> None:
    heard = said("deploy", "app.py:Doubler", *words, code=125)
    assert complaint in heard
    lines = [line for line in heard.splitlines() if "hint" not in line]
    assert len(lines) == 1
    assert stored(server) == []


def test_a_source_that_no_config_map_holds_is_refused(server: ApiServer, said: Said, source: Path) -> None:
    (source / "weights.bin").write_bytes(bytes(2 << 20))
    assert "--source-in-image" in said("deploy", "app.py:Doubler", *IMAGE, code=125)
    said("deploy", "app.py:Doubler", *IMAGE, "--source-in-image", "/app")
    (source / "weights.bin").unlink()
    (source / "link").symlink_to("app.py")
    assert "is a link" in said("deploy", "app.py:Doubler", *IMAGE, code=125)
    assert names(server, SOURCES) == []
