"""A function's callable is found in files as its author wrote them, and `import pgpu` costs it nothing."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pgpu.errors import RequestError
from pgpu.functions.api import Declaration
from pgpu.functions.handler import load
from pgpu.units import GIB

APP = """
import pgpu

@pgpu.function(memory="2GiB")
class Detector:
    def __call__(self, x: int) -> int:
        return x + 1

def plain(x: int) -> int:
    return x

number = 3
"""


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Path]:
    before, path = set(sys.modules), list(sys.path)
    (tmp_path / "my_app.py").write_text(APP)
    (tmp_path / "package").mkdir()
    (tmp_path / "package/inner.py").write_text(APP)
    (tmp_path / "json.py").write_text(APP)
    (tmp_path / "broken.py").write_text("raise KeyError('x')")
    (tmp_path / "missing.py").write_text("import surely_not_installed")
    (tmp_path / "two.py").write_text(APP + "\n@pgpu.function()\ndef other(): ...\n")
    yield tmp_path
    sys.path[:] = path
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.mark.parametrize(
    "app", ["my_app.py:Detector", "my_app:Detector", "my_app.py", "package/inner.py:Detector", "package.inner:Detector"]
)
def test_a_callable_is_found_by_file_or_module(source: Path, app: str) -> None:
    found = load(app, source)
    assert found.attribute == "Detector"
    assert found.declaration == Declaration(memory_bytes=2 * GIB, gpus=1)
    assert found.construct(found.declaration).target(1) == 2


def test_a_file_that_is_called_like_a_module_of_pythons_is_still_that_file(source: Path) -> None:
    assert load("json.py:plain", source).target(3) == 3
    assert load("json:loads", source).target("3") == 3


@pytest.mark.parametrize(
    ("app", "said"),
    [
        ("my_app.py:Detectr", "no 'Detectr'"),
        ("my_app.py:number", "not callable"),
        ("my_app.py:", "names no callable"),
        ("absent.py:it", "no file"),
        ("absent:it", "no module"),
        ("a..b:it", "names no module"),
        ("..:it", "names no module"),
        ("../my_app.py:it", "no file"),
        ("two.py", "declares 2 functions"),
    ],
)
def test_what_is_not_there_is_refused_with_a_hint(source: Path, app: str, said: str) -> None:
    with pytest.raises(RequestError, match=said) as caught:
        load(app, source)
    assert caught.value.hint


def test_what_a_module_raises_goes_through_as_it_is(source: Path) -> None:
    with pytest.raises(KeyError):
        load("broken.py:it", source)
    with pytest.raises(ModuleNotFoundError, match="surely_not_installed"):
        load("missing.py:it", source)


def test_importing_pgpu_and_declaring_loads_no_package_of_others() -> None:
    code = (
        "import sys; before = set(sys.modules); import pgpu; bare = set(sys.modules) - before;"
        "pgpu.function(memory='1GiB')(type('D', (), {}));"
        "new = {name.partition('.')[0] for name in set(sys.modules) - before} - sys.stdlib_module_names;"
        "print(len([n for n in bare if n.startswith('pgpu.')]), *sorted(new))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "pgpu"]
