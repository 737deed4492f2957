"""Removal of a tree: all of it, and nothing behind its links."""

from pathlib import Path

from pgpu.host.file_tree import remove_tree


def test_a_tree_goes_with_all_that_is_in_it_and_without_what_its_links_name(tmp_path: Path) -> None:
    kept, tree = tmp_path / "kept", tmp_path / "tree"
    kept.mkdir()
    (kept / "file").touch()
    (tree / "one" / "two").mkdir(parents=True)
    (tree / "one" / "two" / "file").touch()
    (tree / "one" / "to_directory").symlink_to(kept)
    (tree / "to_nothing").symlink_to(tmp_path / "missing")
    remove_tree(tree)
    assert not tree.exists()
    assert (kept / "file").exists()


def test_a_tree_that_is_gone_is_no_error(tmp_path: Path) -> None:
    remove_tree(tmp_path / "gone")
