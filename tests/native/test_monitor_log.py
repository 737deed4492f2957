"""What a job's log promises: every byte an offset for ever, a cap, and no trouble for the job."""

import os
import shutil
import signal
import struct
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.monitored import Monitored
from tests.waiting import until

from pgpu.engine.streams.log import stored
from pgpu.engine.streams.records import HEADER, Record, RecordDecoder, encode

HEAD = b"PGPULOG\x01" + struct.pack(">Q", 0)


def record(number: int) -> Record:
    return Record("stdout", b"%d " % number + b"x" * 50, number)


def stored_records(path: Path) -> list[Record]:
    decoder = RecordDecoder()
    return [found for _, data in stored(path) for found in decoder.feed(data)]


def payloads(path: Path) -> list[bytes]:
    return [found.payload for found in stored_records(path)]


def _ends_with(job: Monitored, piece: bytes) -> bool:
    return job.output().endswith(piece)


def carry(job: Monitored, *pieces: bytes) -> None:
    """Have a monitor add these pieces to the log, each as one record."""
    ends = job.carry()
    until(job.log.exists)
    for piece in pieces:
        os.write(ends[1], piece)
        until(partial(_ends_with, job, piece))
    job.order("end")
    job.order("finish")
    assert job.wait() == 0
    for end in ends:
        os.close(end)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Monitored]:
    made = Monitored(tmp_path)
    yield made
    made.close()


def test_offsets_go_on_after_a_rotation_and_in_the_next_process(tmp_path: Path) -> None:
    job = Monitored(tmp_path, cap_bytes=2000)
    carry(job, *(b"%03d" % number + b"x" * 100 for number in range(60)))
    assert next(iter(stored(job.log)))[0] > 0
    end = max(offset + len(data) for offset, data in stored(job.log))
    carry(job, b"the next")
    assert next(iter(stored(job.log, end))) == (end, stored_bytes(job.log)[-len(b"the next") - HEADER.size :])
    job.close()


def stored_bytes(path: Path) -> bytes:
    return b"".join(data for _, data in stored(path))


@pytest.mark.parametrize("cut_bytes", [1, 12, 13, 14, 40])
def test_a_record_whose_writer_died_keeps_what_was_written_of_it(job: Monitored, cut_bytes: int) -> None:
    whole = [encode(record(number)) for number in range(3)]
    job.log.write_bytes(HEAD + whole[0] + whole[1] + whole[2][:cut_bytes])
    carry(job, b"next")
    kept = record(2).payload[: max(0, cut_bytes - HEADER.size)]
    assert payloads(job.log) == [record(0).payload, record(1).payload, *([kept] if kept else []), b"next"]


def test_garbage_behind_the_last_record_is_cut_off(job: Monitored) -> None:
    job.log.write_bytes(HEAD + encode(record(0)) + b"\xff" * 100)
    carry(job)
    assert stored_records(job.log) == [record(0)]


@pytest.mark.parametrize("content", [b"", b"PGPU", b"something else entirely"])
def test_a_file_that_is_no_log_is_begun_anew(job: Monitored, content: bytes) -> None:
    job.log.write_bytes(content)
    ends = job.carry()
    os.write(ends[1], b"first")
    until(lambda: payloads(job.log) == [b"first"])
    job.order("quit")
    assert job.wait() == 0
    for end in ends:
        os.close(end)


def test_a_log_that_cannot_be_opened_is_kept_in_memory(job: Monitored) -> None:
    (job.directory / "file").touch()
    job.log = job.directory / "file" / "log"
    ends = job.carry()
    os.write(ends[1], b"kept")
    client = job.attach()
    job.order("end")
    job.order("finish")
    assert client.output() == b"kept"
    for end in ends:
        os.close(end)


def test_a_log_whose_directory_was_removed_is_kept_in_memory(job: Monitored) -> None:
    job.log, job.cap_bytes = job.directory / "live" / "log", 1000
    job.log.parent.mkdir()
    ends = job.carry()
    os.write(ends[1], b"f" * 400)
    until(lambda: job.output() == b"f" * 400)
    shutil.rmtree(job.log.parent)
    for _ in range(8):
        os.write(ends[1], b"g" * 400)
    client = job.attach()
    job.order("end")
    job.order("finish")
    assert client.output() == b"f" * 400 + b"g" * 3200
    assert job.wait() == 0
    for end in ends:
        os.close(end)


def test_a_monitor_that_takes_from_a_pipe_and_is_killed_at_any_time_loses_no_byte(job: Monitored) -> None:
    job.cap_bytes = 64 << 20
    streams = job.pipes()
    expected = b""
    for turn in range(12):
        job.carry(streams)
        for number in range(turn * 3 + 1):
            piece = b"%d %d\n" % (turn, number) * (number % 7 * 500 + 1)
            os.write(streams[1][1], piece)
            expected += piece
        os.kill(job.pid, signal.SIGKILL)
        job.wait()
    job.carry(streams)
    until(lambda: len(job.output()) == len(expected))
    job.order("quit")
    job.wait()
    assert job.output() == expected
    for end in {*streams[0], *streams[1]}:
        os.close(end)


def test_what_a_full_disk_did_not_take_is_written_once_it_has_room(job: Monitored, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("no tmpfs can be mounted here")
    (disk / "filler").write_bytes(b"x" * ((2 << 20) - (64 << 10)))
    job.log, job.cap_bytes = disk / "log", 16 << 20
    ends = job.carry()
    for _ in range(20):
        os.write(ends[1], b"y" * (16 << 10))
    client = job.attach()
    (disk / "filler").unlink()
    job.order("end")
    job.order("finish")
    assert client.output() == b"y" * (320 << 10)
    assert job.wait() == 0
    assert job.output() == b"y" * (320 << 10)
    for end in ends:
        os.close(end)
    subprocess.run(["umount", "--lazy", disk], check=True)
