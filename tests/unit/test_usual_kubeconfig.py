"""Which cluster somebody at a terminal means."""

from pathlib import Path

from pgpu.kubernetes.api.api_connection import default_kubeconfig


def test_the_named_one_comes_before_all(tmp_path: Path) -> None:
    assert default_kubeconfig(tmp_path, {"KUBECONFIG": "/else"}) == tmp_path


def test_of_several_the_first_counts() -> None:
    assert default_kubeconfig(None, {"KUBECONFIG": "/first:/second", "HOME": "/home"}) == Path("/first")


def test_a_user_s_own_is_the_usual_place(tmp_path: Path) -> None:
    assert default_kubeconfig(None, {"HOME": str(tmp_path)}) == tmp_path / ".kube" / "config"


def test_in_a_pod_it_is_the_pods_cluster_unless_the_user_has_one(tmp_path: Path) -> None:
    environment = {"HOME": str(tmp_path), "KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    assert default_kubeconfig(None, environment) is None
    own = tmp_path / ".kube" / "config"
    own.parent.mkdir()
    own.touch()
    assert default_kubeconfig(None, environment) == own
