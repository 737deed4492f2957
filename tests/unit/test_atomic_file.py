import threading
from pathlib import Path

from pgpu.host.atomic_file import write_atomically


def test_threads_that_write_one_file_at_the_same_time_leave_one_whole_version(tmp_path: Path) -> None:
    path, contents = tmp_path / "file", [bytes([number]) * 4096 for number in range(8)]
    failures: list[OSError] = []
    start = threading.Barrier(len(contents))

    def write(content: bytes) -> None:
        start.wait()
        try:
            for _ in range(100):
                write_atomically(path, content, 0o600)
        except OSError as exc:
            failures.append(exc)

    threads = [threading.Thread(target=write, args=(content,)) for content in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert path.read_bytes() in contents
    assert [each.name for each in tmp_path.iterdir()] == ["file"]
