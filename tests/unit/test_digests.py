"""Digests without OpenSSL are those of the standard library: names in ledgers and directories are made of them."""

import hashlib
import uuid

from pgpu.digests import named_uuid, sha256


def test_digests_are_those_of_the_standard_library() -> None:
    assert sha256(b"pgpu").hexdigest() == hashlib.sha256(b"pgpu").hexdigest()
    assert named_uuid(uuid.NAMESPACE_URL, "pgpu ü") == uuid.uuid5(uuid.NAMESPACE_URL, "pgpu ü")
