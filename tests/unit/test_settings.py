"""Settings: later places win, and what cannot be read names its place."""

import ast
import inspect
import itertools
import os
from pathlib import Path

import pytest

from pgpu.app import settings as module
from pgpu.app.settings import NAMES, Settings, load_settings
from pgpu.errors import NodeError, RequestError
from pgpu.scheduling.capacity import Headroom
from pgpu.units import MIB


@pytest.fixture
def system_file(tmp_path: Path) -> Path:
    return tmp_path / "etc.toml"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "pgpu").mkdir()
    return {"XDG_CONFIG_HOME": str(tmp_path)}


def test_later_places_win(tmp_path: Path, system_file: Path, environment: dict[str, str]) -> None:
    def grace() -> float:
        return load_settings({}, environment, system_file).stop_grace

    assert grace() == 10
    system_file.write_text("stop_grace = 1")
    assert grace() == 1
    (tmp_path / "pgpu" / "config.toml").write_text('stop_grace = "2s"')
    assert grace() == 2
    environment["PGPU_STOP_GRACE"] = "3s"
    assert grace() == 3
    assert load_settings({"stop_grace": "4s"}, environment, system_file).stop_grace == 4


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("nonsense = 1", "nonsense is no setting"),
        ("stop_grace = [1]", "stop_grace must be text or a number"),
        ("on_violation = true", "on_violation must be text or a number"),
        ("on_violation = 'panic'", "on_violation: 'panic' is neither"),
        ("headroom = '120%'", "headroom: '120%' is not a share"),
        ("headroom = '4G'", "headroom: '4G' is ambiguous"),
        ("log_cap = 'much'", "log_cap: 'much' is not an amount"),
        ("state_dir = ''", "state_dir: an empty path"),
        ("stop_grace = ", "is not TOML"),
        ("\udcff", "cannot be read"),
    ],
)
def test_a_bad_file_is_named_with_its_key(system_file: Path, environment: dict[str, str], text: str, says: str) -> None:
    system_file.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(NodeError) as caught:
        load_settings({}, environment, system_file)
    assert str(system_file) in str(caught.value)
    assert says in str(caught.value)


def test_a_bad_variable_is_named(system_file: Path, environment: dict[str, str]) -> None:
    environment["PGPU_LOG_CAP"] = "4G"
    with pytest.raises(NodeError, match="PGPU_LOG_CAP: '4G' is ambiguous"):
        load_settings({}, environment, system_file)


def test_a_bad_flag_is_its_asker_s(system_file: Path, environment: dict[str, str]) -> None:
    with pytest.raises(RequestError):
        load_settings({"wait_timeout": "soon"}, environment, system_file)


@pytest.mark.parametrize(
    ("text", "headroom"),
    [
        ("0", Headroom(0, 0.0)),
        ("5%", Headroom(0, 0.05)),
        ("512MiB", Headroom(512 * MIB, 0.0)),
        ("auto", Headroom(yields=True)),
    ],
)
def test_headroom_is_nothing_a_share_or_an_amount(
    system_file: Path, environment: dict[str, str], text: str, headroom: Headroom
) -> None:
    assert load_settings({"headroom": text}, environment, system_file).headroom == headroom


@pytest.mark.skipif(os.geteuid() != 0, reason="other users' files may be written by their group")
@pytest.mark.parametrize("mode", [0o664, 0o646])
def test_a_settings_file_of_root_that_others_can_write_is_refused(
    system_file: Path, environment: dict[str, str], mode: int
) -> None:
    system_file.write_text("stop_grace = 1")
    system_file.chmod(mode)
    with pytest.raises(NodeError, match=r"etc\.toml can be written by other users") as refusal:
        load_settings({}, environment, system_file)
    assert refusal.value.hint == f"chmod go-w {system_file}"


def test_a_pipe_in_place_of_a_settings_file_is_not_waited_for(system_file: Path, environment: dict[str, str]) -> None:
    os.mkfifo(system_file)
    assert load_settings({}, environment, system_file).stop_grace == 10


def test_paths_may_begin_at_home(system_file: Path, environment: dict[str, str]) -> None:
    assert load_settings({"state_dir": "~/x"}, environment, system_file).state_dir == Path.home() / "x"


def test_every_setting_is_explained_with_its_default() -> None:
    explained = explanations()
    assert set(explained) == set(NAMES)
    for name, text in explained.items():
        assert "Default:" in text, name


def explanations() -> dict[str, str]:
    tree = ast.parse(inspect.getsource(module))
    body = next(node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == Settings.__name__)
    found = {}
    for field, text in itertools.pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            assert isinstance(field.target, ast.Name)
            found[field.target.id] = str(text.value.value)
    return found
