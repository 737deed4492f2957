"""The audit log: lines of JSON, in a file of bounded size and in systemd's journal, and refusals that fill neither."""

import asyncio
import json
import os
import resource
import socket
import stat
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import HTTPConnection

from pgpu.errors import AccessError, JobNotFoundError, PgpuError, UnauthenticatedError
from pgpu.host.audit_log import MOST_BYTES, NAME, AuditLog
from pgpu.server.refusals import HOUR_SECONDS, INTERVAL_SECONDS, MOST_ENTRIES, RefusalLog


def _entries(directory: Path) -> list[dict[str, Any]]:
    path = directory / NAME
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_an_entry_is_a_line_of_json_that_only_its_owner_reads(tmp_path: Path) -> None:
    log = AuditLog(tmp_path, tmp_path / "no-journal")
    log.write("token.create", uid=0, token="0a1b\n")
    log.write("token.revoke", uid=0, token="0a1b")
    first, second = _entries(tmp_path)
    assert (first["action"], first["uid"], first["token"]) == ("token.create", 0, "0a1b\n")
    assert first["time"] <= second["time"]
    assert stat.S_IMODE((tmp_path / NAME).stat().st_mode) == 0o600


def test_a_full_log_is_kept_beside_a_new_one(tmp_path: Path) -> None:
    log = AuditLog(tmp_path, tmp_path / "no-journal")
    log.write("first")
    with (tmp_path / NAME).open("ab") as file:
        file.truncate(MOST_BYTES)
    log.write("second")
    assert [each["action"] for each in _entries(tmp_path)] == ["second"]
    assert (tmp_path / f"{NAME}.1").stat().st_size == MOST_BYTES


def test_an_entry_for_which_there_is_no_room_leaves_no_part_of_a_line(tmp_path: Path) -> None:
    log = AuditLog(tmp_path, tmp_path / "no-journal")
    log.write("first")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, ((tmp_path / NAME).stat().st_size + 10, hard))
    try:
        log.write("second")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    log.write("third")
    assert [each["action"] for each in _entries(tmp_path)] == ["first", "third"]


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").touch()
    (tmp_path / NAME).symlink_to("elsewhere")
    AuditLog(tmp_path, tmp_path / "no-journal").write("first")
    assert (tmp_path / "elsewhere").stat().st_size == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only entries of root go to the machine's journal")
def test_entries_of_root_go_to_the_journal(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as journal:
        journal.bind(str(tmp_path / "journal"))
        AuditLog(tmp_path, tmp_path / "journal").write("quota.set", uid=0)
        fields = dict(line.split("=", 1) for line in journal.recv(4096).decode().splitlines())
    assert fields["SYSLOG_IDENTIFIER"] == "pgpu-audit"
    assert fields["PGPU_ACTION"] == "quota.set"
    assert json.loads(fields["MESSAGE"]) == _entries(tmp_path)[0]


class _Refused:
    """Refusals at times that the test sets."""

    def __init__(self, directory: Path) -> None:
        self.now_seconds = 0.0
        self._directory = directory
        self._refusals = RefusalLog(AuditLog(directory, directory / "no-journal"), lambda: self.now_seconds)

    def note(self, *addresses: str, error: PgpuError | None = None, path: str = "/v1/jobs") -> None:
        scope = {"type": "http", "method": "GET", "path": path, "headers": [], "state": {}}

        async def note_all() -> None:
            for address in addresses or ["10.0.0.1"]:
                connection = HTTPConnection({**scope, "client": (address, 1)})
                await self._refusals.note(connection, error or UnauthenticatedError("no"))

        asyncio.run(note_all())

    def entries(self) -> list[tuple[str, str, int]]:
        return [(each["action"], each["address"], each["left_out"]) for each in _entries(self._directory)]


def test_a_refused_login_is_written_with_its_address_and_those_of_the_next_minute_are_counted(tmp_path: Path) -> None:
    refused = _Refused(tmp_path)
    for _ in range(4):
        refused.note()
    refused.note("10.0.0.2")
    refused.now_seconds = INTERVAL_SECONDS
    refused.note()
    login = "login.refused"
    assert refused.entries() == [(login, "10.0.0.1", 0), (login, "10.0.0.2", 0), (login, "10.0.0.1", 3)]


def test_refusals_of_many_addresses_with_long_paths_fill_no_log(tmp_path: Path) -> None:
    refused = _Refused(tmp_path)
    addresses = [f"10.0.{number // 256}.{number % 256}" for number in range(MOST_ENTRIES + 3)]
    refused.note(*addresses, path="/v1/" + "x" * 60_000)
    refused.note(error=AccessError("no"), path="/v1/admin/quotas")
    last = addresses[-1]
    assert len(refused.entries()) == MOST_ENTRIES + 1
    assert (tmp_path / NAME).stat().st_size < 400 * MOST_ENTRIES
    refused.now_seconds = HOUR_SECONDS
    refused.note(last)
    assert refused.entries()[-2:] == [("admin.refused", "10.0.0.1", 0), ("login.refused", last, 1)]


def test_other_errors_and_pages_whose_session_is_over_are_no_refused_logins(tmp_path: Path) -> None:
    refused = _Refused(tmp_path)
    refused.note(error=JobNotFoundError("no"))
    refused.note(error=AccessError("no"))
    refused.note(path="/dashboard/events")
    assert refused.entries() == []
    refused.note(error=AccessError("no"), path="/v1/admin/quotas")
    refused.note()
    assert refused.entries() == [("admin.refused", "10.0.0.1", 0), ("login.refused", "10.0.0.1", 0)]
