"""Bundles: the same tree is the same bytes, and whatever bytes come, nothing leaves the tree."""

import io
import posixpath
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgpu.errors import RequestError
from pgpu.functions.deploy.source_bundle import (
    BundleInspector,
    BundleMember,
    MemberKind,
    PackedBundle,
    pack,
    sort_members,
)

NAMES = st.sampled_from(["a", "b", "ü", ".c", "..", ".", "", "a" * 256, "d e", "x\n"])
PATHS = st.lists(NAMES, min_size=1, max_size=4).map("/".join)
TARGETS = st.lists(st.sampled_from(["..", ".", "", "a", "b", "ü"]), max_size=5).map("/".join)
MEMBERS = st.builds(BundleMember, PATHS, st.sampled_from(MemberKind), st.integers(-1, 99), TARGETS, st.booleans())


def packed(*found: BundleMember, content: dict[str, bytes] | None = None) -> tuple[PackedBundle, bytes]:
    out = io.BytesIO()
    return pack(found, lambda member: (content or {}).get(member.path, b""), out), out.getvalue()


@given(st.lists(MEMBERS, max_size=12))
def test_what_is_admitted_stays_inside_and_is_written_through_no_link(found: list[BundleMember]) -> None:
    inspector, kinds = BundleInspector(), dict[str, MemberKind]()
    for member in found:
        try:
            inspector.admit(member)
        except RequestError:
            continue
        parents = [str(parent) for parent in Path(member.path).parents][:-1]
        assert all(kinds[parent] is MemberKind.DIRECTORY for parent in parents)
        assert member.path not in kinds
        assert posixpath.normpath(member.path) == member.path
        assert not member.path.startswith(("/", "../"))
        if member.kind is MemberKind.LINK:
            leads = posixpath.normpath(posixpath.join(posixpath.dirname(member.path), member.target))
            assert not leads.startswith(("/", "../"))
            assert leads != ".."
        kinds[member.path] = member.kind


@given(st.dictionaries(st.text("abc/ü", min_size=1, max_size=8), st.binary(max_size=50), max_size=6), st.randoms())
def test_the_same_tree_is_the_same_bytes_in_whatever_order_it_is_found(files: dict[str, bytes], dice: object) -> None:
    tree = {posixpath.normpath("/" + path).strip("/"): content for path, content in files.items() if path.strip("/")}
    parents = {str(parent) for path in tree for parent in Path(path).parents} - {"."}
    content = {path: data for path, data in tree.items() if path not in parents}
    found = [BundleMember(path, MemberKind.FILE, len(data)) for path, data in content.items()]
    found += [BundleMember(path, MemberKind.DIRECTORY) for path in parents]
    first, data = packed(*sort_members(found), content=content)
    dice.shuffle(found)  # type: ignore[attr-defined] # Hypothesis has no public name for it
    again, others = packed(*sort_members(found), content=content)
    assert (first, data) == (again, others)
    assert len(data) == first.size_bytes


def test_a_bundle_tells_nothing_of_who_packed_it_and_when() -> None:
    _, data = packed(BundleMember("ü" * 60, MemberKind.FILE, 1, is_executable=True), content={"ü" * 60: b"x"})
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        (header,) = archive.getmembers()
    assert (header.mtime, header.uid, header.gid, header.uname, header.gname) == (0, 0, 0, "", "")
    assert (header.mode, header.name) == (0o755, "ü" * 60)


def test_a_bundle_has_bounds() -> None:
    inspector = BundleInspector(most_bytes=10)
    inspector.admit(BundleMember("a", MemberKind.FILE, 10))
    with pytest.raises(RequestError, match="larger than"):
        inspector.admit(BundleMember("b", MemberKind.FILE, 1))
    inspector = BundleInspector(most_members=2)
    for name in "ab":
        inspector.admit(BundleMember(name, MemberKind.FILE))
    with pytest.raises(RequestError, match="more than"):
        inspector.admit(BundleMember("c", MemberKind.FILE))


def test_a_file_that_grows_while_it_is_packed_is_told() -> None:
    with pytest.raises(RequestError, match="changed"):
        packed(BundleMember("a", MemberKind.FILE, 1), content={"a": b"xy"})


@pytest.mark.parametrize("target", ["", "/etc/passwd", "../..", "../../b", "a/../../x", "b/..", "x\0y"])
def test_no_link_leads_out(target: str) -> None:
    inspector = BundleInspector()
    inspector.admit(BundleMember("d", MemberKind.DIRECTORY))
    with pytest.raises(RequestError):
        inspector.admit(BundleMember("d/link", MemberKind.LINK, target=target))
