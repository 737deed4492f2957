"""Whether who answers at a replica's socket is its owner.

The owner may write the directory of the sockets and put a link there, to another user's replica or to a service of root's: the
gateway, which may connect to all of them, would carry calls there. So it asks the kernel who listens. It refuses to follow
names: who is at their end counts. Source: unix(7), SO_PEERCRED.
"""

import os
import socket
import struct
from pathlib import Path

_CREDENTIALS = struct.Struct("3i")


def check_peer_owner(end: socket.socket, directory: Path) -> None:
    """Raise where somebody else listens than whose directory it is; the directory itself is the server's to name.

    Raises:
        PermissionError: Somebody else does.
        OSError: The directory is gone.
    """
    _, uid, _ = _CREDENTIALS.unpack(end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    owner_uid = os.lstat(directory).st_uid
    if uid != owner_uid:
        raise PermissionError(f"user {uid} answers at a socket of user {owner_uid}")
