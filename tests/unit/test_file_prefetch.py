"""What of a function's source is asked for before its module needs it."""

import os
from pathlib import Path

from pgpu.functions.replica.startup import LARGE_BYTES, read_ahead


def test_large_files_are_asked_for_and_nothing_else_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "weights").mkdir()
    large = tmp_path / "weights" / "ssd.onnx"
    large.write_bytes(bytes(LARGE_BYTES))
    (tmp_path / "app.py").write_text("x = 1")
    (tmp_path / "nowhere").symlink_to(tmp_path / "missing")
    os.mkfifo(tmp_path / "pipe")
    assert read_ahead(tmp_path) == [large]
    assert read_ahead(tmp_path / "missing") == []
