"""Real trees become bundles and trees again, and an archive that means ill writes nothing outside of its directory."""

import contextlib
import io
import os
import stat
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples

from pgpu.errors import RequestError
from pgpu.functions.deploy.source_bundle import IGNORE_FILE, pack_tree, unpack


def write(root: Path, **files: str) -> Path:
    """Write files; `/` stands in their names as it is, so they are handed in by `**{}`."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def there_and_back(root: Path, target: Path) -> Path:
    out = io.BytesIO()
    pack_tree(root, out)
    unpack(out, target)
    return target


def listed(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir()}


def test_a_tree_comes_back_with_its_links_and_what_may_be_executed(tmp_path: Path) -> None:
    root = write(tmp_path / "in", **{"app.py": "x = 1", "data/weights": "w" * 5000})
    (root / "data" / "empty").mkdir()
    (root / "run").write_text("#!/bin/sh")
    (root / "run").chmod(0o4777)
    (root / "data" / "link").symlink_to("../app.py")
    back = there_and_back(root, tmp_path / "out")
    assert listed(back) == {"app.py", "data/weights", "data/link", "run"}
    assert (back / "data" / "empty").is_dir()
    assert (back / "data" / "link").read_text() == "x = 1"
    assert stat.S_IMODE((back / "run").stat().st_mode) == 0o755
    assert stat.S_IMODE((back / "app.py").stat().st_mode) == 0o644


def test_a_tree_is_the_same_bundle_wherever_and_whenever_it_is_packed(tmp_path: Path) -> None:
    outs = []
    for name, mode in (("one", 0o600), ("two", 0o664)):
        root = write(tmp_path / name, **{"app.py": "x", "b/c": "y"})
        (root / "app.py").chmod(mode)
        os.utime(root / "app.py", (mode, mode))
        outs.append(io.BytesIO())
        pack_tree(root, outs[-1])
    assert outs[0].getvalue() == outs[1].getvalue()


def test_what_is_hidden_built_or_ignored_stays_out(tmp_path: Path) -> None:
    out = (".env", ".git/config", "a/__pycache__/x.pyc", "build/x", "env/pyvenv.cfg", "env/lib", "logs/a")
    kept = ("app.py", "logs/keep", "a/build/kept", ".shown")
    root = write(tmp_path / "in", **dict.fromkeys([*out, *kept], ""))
    (root / IGNORE_FILE).write_text("logs/*\n!logs/keep\n!.shown\n")
    assert listed(there_and_back(root, tmp_path / "out")) == set(kept)


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/etc/passwd")])
def test_what_no_bundle_holds_is_refused_by_name(tmp_path: Path, make: Callable[[Path], None]) -> None:
    root = write(tmp_path / "in", **{"app.py": ""})
    make(root / "odd")
    with pytest.raises(RequestError, match="odd"):
        pack_tree(root, io.BytesIO())


def archive(*members: tuple[str, dict[str, Any]], data: bytes = b"x") -> io.BytesIO:
    out = io.BytesIO()
    for name, fields in members:
        header = tarfile.TarInfo(name)
        for field, value in fields.items():
            setattr(header, field, value)
        content = data if header.isreg() else b""
        header.size = header.size or len(content)
        out.write(header.tobuf(tarfile.PAX_FORMAT) + content + b"\0" * (-len(content) % 512))
    out.write(b"\0" * 1024)
    return out


LINK = {"type": tarfile.SYMTYPE}
ILL: dict[str, io.BytesIO] = {
    "an absolute path": archive(("/tmp/x", {})),
    "a path that goes up": archive(("../x", {})),
    "one that goes up inside": archive(("a", {"type": tarfile.DIRTYPE}), ("a/../../x", {})),
    "a link out": archive(("l", {**LINK, "linkname": "../.."})),
    "a file through a link": archive(("l", {**LINK, "linkname": "."}), ("l/x", {})),
    "a link in the place of a directory": archive(("l", {"type": tarfile.DIRTYPE}), ("l", {**LINK, "linkname": "."})),
    "a chain of links": archive(("a", {**LINK, "linkname": "."}), ("b", {**LINK, "linkname": "a/../.."})),
    "a hard link": archive(("h", {"type": tarfile.LNKTYPE, "linkname": "/etc/passwd"})),
    "a device": archive(("d", {"type": tarfile.CHRTYPE, "devmajor": 1, "devminor": 5})),
    "a pipe": archive(("p", {"type": tarfile.FIFOTYPE})),
    "a file twice": archive(("a", {}), ("a", {})),
    "a file in no directory": archive(("a/b", {})),
    "no name": archive(("", {})),
    "a bomb": archive(("a", {"size": 1 << 40})),
    "one compressed": io.BytesIO(bytes.fromhex("1f8b0800000000000003") + b"x" * 600),
    "nothing": io.BytesIO(b""),
    "half of one": io.BytesIO(archive(("a", {}), data=b"x" * 5000).getvalue()[:2000]),
}


@pytest.mark.parametrize("has_filter", [True, False])
@pytest.mark.parametrize("what", ILL)
def test_an_archive_that_means_ill_is_refused(
    tmp_path: Path, what: str, has_filter: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_filter:  # as in Debian 12, whose Python is 3.11.2
        monkeypatch.delattr(tarfile, "data_filter", raising=False)
    (tmp_path / "inner").mkdir()
    ILL[what].seek(0)
    with pytest.raises(RequestError):
        unpack(ILL[what], tmp_path / "inner" / "out")
    assert [str(path) for path in tmp_path.iterdir()] == [str(tmp_path / "inner")]
    assert [path.name for path in (tmp_path / "inner").iterdir()] == ["out"]


def test_a_python_without_the_data_filter_unpacks_bundles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(tarfile, "data_filter", raising=False)
    assert unpack(archive(("a", {})), tmp_path / "out").members == 1


def test_no_bit_beyond_read_write_and_execute_is_taken_over(tmp_path: Path) -> None:
    unpack(archive(("a", {"mode": 0o7777, "uid": 1234})), tmp_path / "out")
    status = (tmp_path / "out" / "a").stat()
    assert (stat.S_IMODE(status.st_mode), status.st_uid) == (0o755, os.geteuid())


@examples(40, 150)
@given(st.data())
def test_whatever_bytes_come_nothing_else_is_raised_and_nothing_leaves(data: st.DataObject) -> None:
    good = ILL[data.draw(st.sampled_from([*ILL]))].getvalue()[:4096]
    mutated = bytearray(good)
    for place, byte in data.draw(st.lists(st.tuples(st.integers(0, 1600), st.integers(0, 255)), max_size=8)):
        if place < len(mutated):
            mutated[place] = byte
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        with contextlib.suppress(RequestError):
            unpack(io.BytesIO(bytes(mutated)), Path(directory, "out"))
        assert {path.name for path in Path(directory).iterdir()} <= {"out"}
