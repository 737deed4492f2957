import re
import subprocess
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from pgpu import distribution
from pgpu.app import machine_checks
from pgpu.app.settings import Settings
from pgpu.model.finding import Result

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
BARE_NAME = re.compile(
    r"(?:pip3?|pipx|uv(?: pip| tool)?)\s+(?:install|add|run|download|wheel)\b(?:\s+-{1,2}[\w-]+)*"
    r"\s+['\"]?(?:pgpu|gpuslice)(?![\w./-])"
)


def test_no_requirement_names_a_distribution_of_another_project() -> None:
    required = metadata.requires("gpuslice") or []
    assert required
    names = {re.split(r"[\s\[<>=!~;(]", each)[0].lower() for each in required}
    assert "pgpu" not in names


def test_the_core_requires_no_cuda_binding() -> None:
    holders = {name for name, needed in PROJECT["optional-dependencies"].items() if "cuda-bindings" in " ".join(needed)}
    assert not any(each.startswith("cuda-bindings") for each in PROJECT["dependencies"])
    assert holders == {"workloads"}


@pytest.mark.parametrize(
    "text",
    [
        "pip install pgpu",
        "`pip install 'pgpu[server]'`",
        "uv pip install --system 'gpuslice>=0.1'",
        "pipx install pgpu\n",
    ],
)
def test_a_bare_name_is_found(text: str) -> None:
    assert BARE_NAME.search(text)


@pytest.mark.parametrize(
    "text",
    [
        "pip install '.[server]'",
        "pip install dist/gpuslice-0.1.0-py3-none-any.whl",
        "helm install pgpu deploy/helm/pgpu",
    ],
)
def test_a_file_or_checkout_is_no_bare_name(text: str) -> None:
    assert not BARE_NAME.search(text)


def test_docs_and_hints_install_a_file_or_a_checkout_and_never_a_bare_name() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    found = []
    for name in listed.stdout.decode().split("\0"):
        path = ROOT / name
        if name == "tests/unit/test_distribution.py" or not path.is_file():
            continue
        text = path.read_bytes().decode("utf-8", "replace")
        found += [f"{name}: {match.group(0)}" for match in BARE_NAME.finditer(text)]
    assert not found


def test_the_readme_installs_by_six_lines_each_with_the_path_of_a_file_or_a_checkout() -> None:
    section = (ROOT / "README.md").read_text("utf-8").partition("## Install\n")[2].partition("\n## ")[0]
    (block,) = re.findall(r"^```text\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    lines = block.splitlines()
    starts = ("uv tool install .", "pipx install .", "pip install .", "pgpu doctor", "pgpu --install-completion")
    assert len(lines) == 6
    for line, start in zip(lines, (*starts, f"uv tool uninstall {distribution.NAME}"), strict=True):
        assert re.match(rf"{re.escape(start)}(?: |$)", line)
    assert f"dist/{distribution.NAME}-{PROJECT['version']}-py3-none-" in lines[0]


def test_the_version_of_the_project_heads_the_changelog_with_a_date() -> None:
    headings = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    released = [heading for heading in headings if heading != "[Unreleased]"]
    assert re.fullmatch(rf"\[{re.escape(PROJECT['version'])}\] - \d{{4}}-\d\d-\d\d", released[0])


def test_a_tag_of_a_checkout_is_the_version_that_it_had() -> None:
    tags = subprocess.run(["git", "tag", "--points-at", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert {tag for tag in tags.stdout.split() if tag.startswith("v")} <= {f"v{PROJECT['version']}"}


def test_a_hint_names_the_extra_and_no_distribution() -> None:
    assert "[lab]" in distribution.extra_hint("lab")
    assert not BARE_NAME.search(distribution.extra_hint("lab"))


def test_the_doctor_warns_of_the_other_project_of_the_same_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [each.result for each in machine_checks.foreign_distribution(Settings())] == [Result.OK]
    info = tmp_path / "pgpu-2.0.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: pgpu\nVersion: 2.0.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    (found,) = machine_checks.foreign_distribution(Settings())
    assert found.result is Result.WARNING
    assert "2.0.0" in found.finding
