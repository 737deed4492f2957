"""What a job's log promises: every byte an offset for ever, a cap, and no trouble for the job."""

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pgpu.engine.streams.log import MEMORY_BYTES, OutputLog, stored
from pgpu.engine.streams.records import HEADER, Record, RecordDecoder, encode
from pgpu.structs import replace

CAP_BYTES = 2000


def record(number: int, payload_bytes: int = 50) -> Record:
    return Record("stdout", b"%d " % number + b"x" * payload_bytes, number)


def read_all(log: OutputLog, offset: int = 0) -> bytes:
    parts = []
    offset = log.oldest_from(offset)
    while data := log.read(offset, 77):
        parts.append(data)
        offset += len(data)
    return b"".join(parts)


def stored_records(path: Path) -> list[Record]:
    decoder = RecordDecoder()
    return [found for _, data in stored(path) for found in decoder.feed(data)]


def test_what_was_written_is_read_from_any_offset(tmp_path: Path) -> None:
    log = OutputLog(tmp_path / "log", 1 << 20)
    for number in range(20):
        log.append(record(number))
    whole = b"".join(encode(record(number)) for number in range(20))
    assert (read_all(log), log.end) == (whole, len(whole))
    assert read_all(log, 100) == whole[100:]
    log.close()
    assert stored_records(tmp_path / "log") == [record(number) for number in range(20)]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 3000), max_size=30))
def test_both_files_together_stay_below_the_cap_and_keep_the_newest(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int]
) -> None:
    path = tmp_path_factory.mktemp("log") / "log"
    log = OutputLog(path, 10_000)
    written = [record(number, size) for number, size in enumerate(sizes)]
    for each in written:
        log.append(each)
        assert sum(file.stat().st_size for file in path.parent.iterdir()) <= 10_000
    log.close()
    kept = stored_records(path)
    assert kept == written[len(written) - len(kept) :]
    assert kept or not written


def test_offsets_go_on_after_a_rotation_and_in_the_next_process(tmp_path: Path) -> None:
    path = tmp_path / "log"
    first = OutputLog(path, CAP_BYTES)
    for number in range(100):
        first.append(record(number))
    end = first.end
    first.close()
    second = OutputLog(path, CAP_BYTES)
    assert second.end == end
    second.append(record(100))
    assert RecordDecoder().feed(second.read(end, 1000)).__next__() == record(100)
    assert second.oldest_from(0) > 0
    assert second.oldest_from(end) == end
    second.close()


@pytest.mark.parametrize("cut_bytes", [1, 12, 13, 14, 40])
def test_a_record_whose_writer_died_keeps_what_was_written_of_it(tmp_path: Path, cut_bytes: int) -> None:
    path = tmp_path / "log"
    log = OutputLog(path, 1 << 20)
    log.append(record(0))
    log.append(record(1))
    log.close()
    with path.open("ab") as file:
        file.write(encode(record(2))[:cut_bytes])
    again = OutputLog(path, 1 << 20)
    again.append(record(3))
    again.close()
    kept = record(2).payload[: max(0, cut_bytes - HEADER.size)]
    between = [replace(record(2), payload=kept)] if kept else []
    assert stored_records(path) == [record(0), record(1), *between, record(3)]


def test_garbage_behind_the_last_record_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = OutputLog(path, 1 << 20)
    log.append(record(0))
    log.close()
    with path.open("ab") as file:
        file.write(b"\xff" * 100)
    OutputLog(path, 1 << 20).close()
    assert stored_records(path) == [record(0)]


def test_what_waits_in_a_pipe_becomes_a_record(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = OutputLog(path, 1 << 20)
    reader, writer = os.pipe()
    assert not log.take("stdout", reader, 100, 1)
    os.write(writer, b"x" * 150)
    assert log.take("stdout", reader, 100, 2)
    assert log.take("stderr", reader, 100, 3)
    assert log.end == len(read_all(log))
    log.close()
    assert stored_records(path) == [Record("stdout", b"x" * 100, 2), Record("stderr", b"x" * 50, 3)]
    os.close(reader)
    os.close(writer)


TAKE = """
import sys; from pathlib import Path
from pgpu.engine.streams.log import OutputLog
log = OutputLog(Path(sys.argv[1]), int(sys.argv[2]))
print("ready", flush=True)
while True:
    log.take("stdout", 0, 1 << 16, 0)
"""


@pytest.mark.soak
def test_who_takes_from_a_pipe_and_is_killed_at_any_time_loses_no_byte(tmp_path: Path) -> None:
    path = tmp_path / "log"
    expected = b""
    reader, writer = os.pipe()
    for round_number in range(30):
        taker = subprocess.Popen([sys.executable, "-c", TAKE, str(path), str(1 << 24)], stdin=reader, stdout=-1)
        assert taker.stdout is not None
        taker.stdout.readline()
        for number in range(round_number * 3 + 1):
            piece = b"%d %d\n" % (round_number, number) * (number % 7 * 500 + 1)
            os.write(writer, piece)
            expected += piece
        taker.kill()
        taker.wait()
        taker.stdout.close()
    log = OutputLog(path, 1 << 24)
    while log.take("stdout", reader, 1 << 16, 0):
        pass
    log.close()
    os.close(reader)
    os.close(writer)
    assert b"".join(each.payload for each in stored_records(path)) == expected


def test_a_disk_that_fills_up_while_a_pipe_is_emptied_loses_no_byte(tmp_path: Path) -> None:
    path = tmp_path / "log"
    reader, writer = os.pipe()
    written = bytes(range(256)) * 200
    os.write(writer, written)
    code = """
import sys; from pathlib import Path
from pgpu.engine.streams.log import OutputLog
log = OutputLog(Path(sys.argv[1]), 1 << 20)
assert log.take("stdout", 0, 1 << 16, 0)
assert not log.take("stdout", 0, 1 << 16, 0)
"""
    limit = (20_000, 20_000)
    subprocess.run(
        [sys.executable, "-c", code, str(path)],
        stdin=reader,
        check=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit),
    )
    kept = b"".join(each.payload for each in stored_records(path))
    assert 0 < len(kept) < 20_000
    assert kept + os.read(reader, 1 << 16) == written
    os.close(reader)
    os.close(writer)


@pytest.mark.parametrize("content", [b"", b"PGPU", b"something else entirely"])
def test_a_file_that_is_no_log_is_begun_anew(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "log"
    path.write_bytes(content)
    log = OutputLog(path, 1 << 20)
    log.append(record(0))
    log.close()
    assert stored_records(path) == [record(0)]


def test_a_log_that_cannot_be_opened_is_kept_in_memory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    log = OutputLog(tmp_path / "file" / "log", 1 << 20)
    log.append(record(0))
    assert log.trouble is not None
    assert read_all(log) == encode(record(0))
    for number in range(3):
        log.append(record(number, MEMORY_BYTES // 2))
    assert log.oldest_from(0) == log.end - MEMORY_BYTES
    log.close()


FILL = """
import sys; from pathlib import Path
from pgpu.engine.streams.log import OutputLog; from pgpu.engine.streams.records import Record
log = OutputLog(Path(sys.argv[1]), 1 << 20)
for number in range(100):
    log.append(Record("stdout", b"x" * 1000, number))
data = log.read(0, 1 << 20)
offset = len(data)
while more := log.read(offset, 1 << 20): data += more; offset += len(more)
print(len(data) == log.end, log.trouble)
"""


def test_a_full_disk_loses_nothing_for_those_who_follow_now(tmp_path: Path) -> None:
    path = tmp_path / "log"
    done = subprocess.run(
        [sys.executable, "-c", FILL, str(path)],
        capture_output=True,
        text=True,
        check=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000)),
    )
    assert done.stdout.startswith(f"True the log {path} is incomplete: ")
    kept = stored_records(path)
    assert [found.time_ns for found in kept] == list(range(len(kept)))
    assert len(kept) == 19


FILL_AND_MAKE_ROOM = """
import resource, sys; from pathlib import Path
from pgpu.engine.streams.log import RETRY_NS, OutputLog; from pgpu.engine.streams.records import Record
log = OutputLog(Path(sys.argv[1]), 1 << 20)
for number in range(100):
    log.append(Record("stdout", b"x" * 1000, number))
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30, 1 << 30))
if sys.argv[2] == "more":
    log.append(Record("stdout", b"x" * 1000, RETRY_NS + 200))
else:
    log.save()
print(log.trouble)
"""


@pytest.mark.parametrize(("then", "count"), [("more", 101), ("nothing more", 100)])
def test_what_a_full_disk_did_not_take_is_written_once_it_has_room(tmp_path: Path, then: str, count: int) -> None:
    path = tmp_path / "log"
    done = subprocess.run(
        [sys.executable, "-c", FILL_AND_MAKE_ROOM, str(path), then],
        capture_output=True,
        text=True,
        check=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 1 << 30)),
    )
    assert done.stdout == "None\n"
    assert len(stored_records(path)) == count


WRITE = """
import sys; from pathlib import Path
from pgpu.engine.streams.log import OutputLog; from pgpu.engine.streams.records import Record
log = OutputLog(Path(sys.argv[1]), 400_000)
number = log.end
while True:
    log.append(Record("stdout", b"x" * (number % 5000), number))
    number += 1
    print(number, flush=True)
"""


def test_a_log_whose_writer_is_killed_at_any_time_can_be_read_and_gone_on_with(tmp_path: Path) -> None:
    path = tmp_path / "log"
    for _ in range(5):
        writer = subprocess.Popen([sys.executable, "-c", WRITE, str(path)], stdout=subprocess.PIPE)
        assert writer.stdout is not None
        for _ in range(200):
            writer.stdout.readline()
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait()
        writer.stdout.close()
        log = OutputLog(path, 400_000)
        log.close()
        assert stored_records(path)
