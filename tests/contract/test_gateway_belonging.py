"""The gateway carries no call to somebody else's socket, whatever a replica's owner links there."""

import os
import socket
from pathlib import Path

import pytest

from pgpu.functions.gateway.calling.belonging import check_belongs


def reached(path: Path) -> socket.socket:
    end = socket.socket(socket.AF_UNIX)
    end.connect(str(path))
    return end


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has two users")
def test_a_link_to_another_user_s_socket_is_seen_through(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for directory in (ours, theirs):
        directory.mkdir()
    os.chown(theirs, 61001, 61001)
    (theirs / "calls.sock").symlink_to(ours / "calls.sock")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(ours / "calls.sock"))
        listener.listen()
        with reached(ours / "calls.sock") as end:
            check_belongs(end, ours)
        with reached(theirs / "calls.sock") as end, pytest.raises(PermissionError, match="61001"):
            check_belongs(end, theirs)
        with reached(ours / "calls.sock") as end, pytest.raises(FileNotFoundError):
            check_belongs(end, tmp_path / "gone")
