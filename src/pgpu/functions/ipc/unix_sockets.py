"""Unix sockets on which a function's processes listen: only their own user opens them, wherever they lie.

It refuses to rely on the directory or on the umask that it was started with.
"""

import os
import socket
from pathlib import Path

_OTHERS = 0o077


def listening_socket(path: Path, backlog: int) -> socket.socket:
    """Listen at a path, in place of what was there.

    Call it where no other thread makes files: the umask is the process's.
    """
    path.unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    before = os.umask(_OTHERS)
    try:
        listening.bind(os.fspath(path))
    finally:
        os.umask(before)
    listening.listen(backlog)
    return listening
