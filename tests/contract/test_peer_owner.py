"""The gateway carries no call to somebody else's socket, whatever a replica's owner links there."""

import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pgpu.functions.ipc.local_sockets import check_peer_owner


def reached(path: Path) -> socket.socket:
    end = socket.socket(socket.AF_UNIX)
    end.connect(str(path))
    return end


@pytest.fixture
def near() -> Iterator[Path]:
    """A directory whose name leaves room for a socket's."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as path:
        yield Path(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has two users")
def test_a_link_to_another_user_s_socket_is_seen_through(near: Path) -> None:
    ours, theirs = near / "ours", near / "theirs"
    for directory in (ours, theirs):
        directory.mkdir()
    os.chown(theirs, 61001, 61001)
    (theirs / "calls.sock").symlink_to(ours / "calls.sock")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(ours / "calls.sock"))
        listener.listen()
        with reached(ours / "calls.sock") as end:
            check_peer_owner(end, ours)
        with reached(theirs / "calls.sock") as end, pytest.raises(PermissionError, match="61001"):
            check_peer_owner(end, theirs)
        with reached(ours / "calls.sock") as end, pytest.raises(FileNotFoundError):
            check_peer_owner(end, near / "gone")
