"""SHA-256 and SHA-1 of short texts by Python's own modules: `hashlib` loads OpenSSL, which takes 2 ms at each start of a process.

OpenSSL is three times as fast, which pays from half a megabyte on.
"""

from typing import TYPE_CHECKING
from uuid import UUID

if TYPE_CHECKING:
    from hashlib import sha1, sha256
else:
    try:
        from _sha1 import sha1

        try:  # its name since Python 3.12
            from _sha2 import sha256
        except ImportError:
            from _sha256 import sha256
    except ImportError:  # a Python that was built without them
        from hashlib import sha1, sha256

__all__ = ["named_uuid", "sha256"]


def named_uuid(namespace: UUID, name: str) -> UUID:
    """Return what `uuid.uuid5` returns, which imports `hashlib`."""
    return UUID(bytes=sha1(namespace.bytes + name.encode(), usedforsecurity=False).digest()[:16], version=5)
