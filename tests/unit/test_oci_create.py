"""What `docker run --runtime=pgpu` makes of a container's configuration: pure, and in milliseconds."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pgpu.app.oci.container_slice import OWNER_UID, Rootfs, View, lay_out, put_in_slice, refuse_covered, take_away
from pgpu.app.oci.create import _make_record
from pgpu.app.oci.gpu_request import MODES, parse_gpu_request
from pgpu.app.oci.runc_call import ContainerRefusedError, RuncCall
from pgpu.enforcement import meter
from pgpu.enforcement.slice_files import LAID_OUT, SliceFiles
from pgpu.libraries import CUDA_SHIM, HOLD, NVML_SHIM, PROBE
from pgpu.model import SharingWish
from pgpu.runtimes.container_record import RECORD, container_of

_CREATE = ["--root", "/r", "--log", "/l", "--log-format=json", "create", "--bundle", "/b", "--pid-file", "/p", "abc"]
_SOURCES = Path(__file__).parents[2] / "src"


def test_words_of_ours_stand_before_runcs_and_are_not_handed_on() -> None:
    words = RuncCall(["--pgpu-runc=/bin/runc", "--pgpu-state-dir=/s", *_CREATE])
    assert (words.runc, words.state_dir, words.config) == ("/bin/runc", "/s", "/etc/pgpu/config.toml")
    assert words.runcs == _CREATE
    assert (words.command, words.bundle, words.container_id) == ("create", "/b", "abc")
    assert (words.flags["root"], words.flags["log"], words.flags["pid-file"]) == ("/r", "/l", "/p")


@pytest.mark.parametrize("words", [["-b", "/b"], ["-b=/b"], ["--bundle=/b"], ["-bundle", "/b"]])
def test_a_bundle_is_named_in_each_way_that_runc_reads(words: list[str]) -> None:
    assert RuncCall(["create", *words, "abc"]).bundle == "/b"


def _asked(*environment: str, image: tuple[str, ...] = (), allow: bool = False, **annotations: str) -> Any:
    configuration = {"process": {"env": list(environment)}, "annotations": annotations}
    return parse_gpu_request(configuration, lambda: list(image), images_may_ask=allow)


def test_nothing_is_asked_for_without_an_amount() -> None:
    assert _asked("PATH=/bin", "PGPU_GPUS=2") is None
    assert _asked("PGPU_MEMORY=") is None


def test_a_variable_asks() -> None:
    ask = _asked("PGPU_MEMORY=4GiB", "PGPU_GPUS=2", "PGPU_WAIT_TIMEOUT=5m")
    assert (ask.memory_bytes, ask.gpu_count, ask.wait_timeout_seconds) == (4 << 30, 2, 300.0)


def test_a_share_of_compute_and_a_mode_are_asked_for_in_the_same_way() -> None:
    ask = _asked("PGPU_MEMORY=4GiB", "PGPU_COMPUTE=30%", "PGPU_STRICT=1")
    assert (ask.compute_share, ask.is_strict, ask.sharing) == (0.3, True, "time-slice")
    alone = _asked("PGPU_MEMORY=4GiB", "PGPU_SHARING=exclusive")
    assert (alone.compute_share, alone.is_strict, alone.sharing) == (None, False, "exclusive")
    assert {*MODES} == {*SharingWish}


@pytest.mark.parametrize(
    "words",
    [
        ("PGPU_COMPUTE=30",),
        ("PGPU_STRICT=1",),
        ("PGPU_STRICT=yes",),
        ("PGPU_SHARING=both",),
        ("PGPU_SHARING=mps", "PGPU_GPUS=2"),
        ("PGPU_SHARING=exclusive", "PGPU_COMPUTE=30%"),
    ],
)
def test_a_share_or_a_mode_that_cannot_be_is_refused_with_a_hint(words: tuple[str, ...]) -> None:
    with pytest.raises(ContainerRefusedError) as refusal:
        _asked("PGPU_MEMORY=4GiB", *words)
    assert "(" in str(refusal.value)


@pytest.mark.parametrize("mode", ["mps", "auto"])
def test_a_container_asks_for_mps_as_for_every_mode(mode: str) -> None:
    assert _asked("PGPU_MEMORY=1GiB", f"PGPU_SHARING={mode}").sharing == mode


def test_a_container_whose_users_are_mapped_to_others_is_refused_mps() -> None:
    configuration = {
        "process": {"env": ["PGPU_MEMORY=4GiB"]},
        "annotations": {"pgpu.sharing": "mps", "pgpu.memory": "1GiB"},
        "linux": {"uidMappings": [{"containerID": 0, "hostID": 100000, "size": 65536}]},
    }
    with pytest.raises(ContainerRefusedError, match="userns=host"):
        parse_gpu_request(configuration, list, images_may_ask=False)


def test_a_container_whose_users_are_mapped_to_others_and_that_leaves_its_mode_to_pgpu_has_time_slices() -> None:
    configuration: dict[str, Any] = {"annotations": {"pgpu.sharing": "auto", "pgpu.memory": "1GiB"}}
    assert parse_gpu_request(configuration, list, images_may_ask=False).sharing == "auto"  # type: ignore[union-attr]
    configuration["linux"] = {"uidMappings": [{"containerID": 0, "hostID": 100000, "size": 65536}]}
    assert parse_gpu_request(configuration, list, images_may_ask=False).sharing == "time-slice"  # type: ignore[union-attr]


def test_waiting_for_ever_is_told_from_having_said_nothing() -> None:
    assert _asked("PGPU_MEMORY=1GiB", "PGPU_WAIT_TIMEOUT=forever").has_timeout
    assert not _asked("PGPU_MEMORY=1GiB").has_timeout


def test_an_annotation_beats_a_variable_and_needs_no_engine() -> None:
    def nobody() -> list[str]:
        raise AssertionError("the engine was asked")

    annotations = {"pgpu.memory": "2GiB", "pgpu.gpus": "1", "pgpu.wait-timeout": "1s"}
    configuration = {"process": {"env": ["PGPU_MEMORY=4GiB"]}, "annotations": annotations}
    ask = parse_gpu_request(configuration, nobody, images_may_ask=False)
    assert ask is not None
    assert ask.memory_bytes == 2 << 30


def test_what_stands_in_the_image_asks_for_nothing_unless_it_may() -> None:
    assert _asked("PGPU_MEMORY=4GiB", image=("PGPU_MEMORY=4GiB",)) is None
    assert _asked("PGPU_MEMORY=2GiB", image=("PGPU_MEMORY=4GiB",)).memory_bytes == 2 << 30
    assert _asked("PGPU_MEMORY=4GiB", image=("PGPU_MEMORY=4GiB",), allow=True).memory_bytes == 4 << 30


@pytest.mark.parametrize("word", ["PGPU_MEMORY=4G", "PGPU_MEMORY=-1", "PGPU_MEMORY=0"])
def test_an_amount_that_cannot_be_read_is_refused(word: str) -> None:
    with pytest.raises(ContainerRefusedError, match=r"memory|ambiguous|MiB"):
        _asked(word)


@pytest.mark.parametrize("count", ["0", "17", "two", "9" * 5000])
def test_a_number_of_gpus_that_cannot_be_is_refused(count: str) -> None:
    """A number of more than 4,300 digits is more than Python's int() reads."""
    with pytest.raises(ContainerRefusedError, match="no number of GPUs"):
        _asked("PGPU_MEMORY=4GiB", f"PGPU_GPUS={count}")


@pytest.mark.parametrize(
    "other",
    [
        {"hooks": {"prestart": [{"path": "/usr/bin/nvidia-container-runtime-hook"}]}},
        {"linux": {"devices": [{"path": "/dev/nvidia0"}]}},
    ],
)
def test_gpus_of_docker_beside_a_slice_are_refused(other: dict[str, Any]) -> None:
    with pytest.raises(ContainerRefusedError, match="were both requested"):
        parse_gpu_request({"process": {"env": ["PGPU_MEMORY=4GiB"]}, **other}, list, images_may_ask=True)


@pytest.mark.parametrize("target", ["/.pgpu", "/.pgpu/x", "//.pgpu/", "/etc/ld.so.preload", "/x/libcuda.so.1"])
def test_volumes_over_the_slice_are_refused(target: str) -> None:
    with pytest.raises(ContainerRefusedError, match="a volume lies"):
        refuse_covered({"mounts": [{"destination": target, "source": "/tmp", "type": "bind"}]})


def test_links_in_an_image_never_lead_out_of_it(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "usr/lib").mkdir(parents=True)
    (root / "lib").symlink_to("/usr/lib")
    (root / "out").symlink_to("../../../../etc/passwd")
    (root / "loop").symlink_to("loop")
    (root / "usr/lib/real").write_text("x")
    files = Rootfs(str(root), [])
    assert files.resolve("/lib/real") == "/usr/lib/real"
    assert files.read("/lib/real") == b"x"
    assert files.resolve("/out") is None
    assert files.resolve("/loop") is None


def test_what_a_container_mounts_is_seen_and_what_it_covers_is_not(tmp_path: Path) -> None:
    root, volume = tmp_path / "root", tmp_path / "volume"
    (root / "etc").mkdir(parents=True)
    (root / "etc/hidden").write_text("x")
    volume.mkdir()
    (volume / "shown").write_text("y")
    files = Rootfs(str(root), [{"destination": "/etc", "source": str(volume), "type": "bind"}])
    assert files.read("/etc/shown") == b"y"
    assert files.resolve("/etc/hidden") is None
    assert Rootfs(str(root), [{"destination": "/etc", "type": "tmpfs"}]).resolve("/etc/hidden") is None


def test_a_file_of_an_image_that_is_too_large_to_be_meant_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/ld.so.preload").write_bytes(b"/lib/x.so\n" * 100)
    files = Rootfs(str(tmp_path), [])
    assert View(files, []).preload_lines == ["/lib/x.so"] * 100
    with (tmp_path / "etc/ld.so.preload").open("ab") as file:
        file.truncate(1 << 40)
    assert (files.read("/etc/ld.so.preload"), View(files, []).preload_lines) == (None, [])


def _prepared(tmp_path: Path) -> dict[str, Any]:
    libraries = {}
    (tmp_path / "store").mkdir()
    for name in (CUDA_SHIM, NVML_SHIM, PROBE, HOLD, "driver/libcuda.so.1", "driver/libnvidia-ml.so.1"):
        (tmp_path / "store" / name.replace("/", "-")).write_text(name)
        libraries[name] = str(tmp_path / "store" / name.replace("/", "-"))
    return {
        "runtime_directory": str(tmp_path),
        "libraries": libraries,
        "driver_files": {},
        "simulated": "/simulated",
        "cdi": None,
    }


def test_the_slice_of_a_waiting_container_is_laid_out_as_any_other(tmp_path: Path) -> None:
    prepared = _prepared(tmp_path)
    early = Path(lay_out(prepared, "0123456789ab", []))
    usual = SliceFiles(tmp_path / "slices" / "usual")
    libraries = {name: Path(path) for name, path in prepared["libraries"].items()}
    usual.make(libraries, OWNER_UID)
    usual.make_simulated_mount_point()
    try:
        of_both = {path.relative_to(usual.home): path.lstat() for path in usual.home.rglob("*")}
        ours = {path.relative_to(early): path.lstat() for path in early.rglob("*")}
        more = {str(path) for path in ours.keys() - of_both.keys()}
        assert more == {"view/gate", "view/environment"}
        assert not of_both.keys() - ours.keys()
        assert {path: ours[path].st_mode for path in of_both} == {path: was.st_mode for path, was in of_both.items()}
        assert (early / "view/ld.so.preload").read_text() == (usual.view / "ld.so.preload").read_text()
        assert ours[Path("meter/usage")].st_size == meter.USAGE_BYTES
        assert LAID_OUT == RECORD
    finally:
        take_away(str(early))
        usual.remove()
    assert not early.exists()


def test_a_configuration_gets_the_slice_and_is_held_first(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "usr/lib64").mkdir(parents=True)
    (root / "usr/lib64/libc.so.6").write_text("")
    configuration: dict[str, Any] = {"process": {"args": ["train", "-v"], "env": ["NVIDIA_VISIBLE_DEVICES=all", "A=b"]}}
    put_in_slice(configuration, "/home", View(Rootfs(str(root), []), []), _prepared(tmp_path), "0123456789ab")
    assert configuration["process"]["args"] == ["/.pgpu/pgpu-hold", "train", "-v"]
    assert configuration["process"]["env"] == ["A=b", "NVIDIA_VISIBLE_DEVICES=void"]
    assert configuration["annotations"] == {"pgpu.job": "0123456789ab"}
    mounts = {mount["destination"]: mount for mount in configuration["mounts"]}
    assert mounts["/.pgpu"]["options"] == ["bind", "ro", "rprivate"]
    assert mounts["/.pgpu/usage"]["options"] == ["bind", "rw", "rprivate"]
    assert mounts["/.pgpu/time"]["options"] == ["bind", "rw", "rprivate"]
    assert mounts["/.pgpu/board"]["options"] == ["bind", "ro", "rprivate"]
    assert mounts["/usr/lib64/libcuda.so.1"]["source"] == "/home/view/libpgpu.so"
    assert mounts["/usr/lib64/libnvidia-ml.so.1"]["source"] == "/home/view/libpgpu-ml.so"
    assert mounts["/etc/ld.so.preload"]["source"] == "/home/view/ld.so.preload"


def test_creating_a_container_loads_the_standard_library_alone() -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(_SOURCES)!r}); import pgpu.app.oci.create;"
        "print(*{name.partition('.')[0] for name in sys.modules} - set(sys.stdlib_module_names));"
        "print(*sorted(name for name in sys.modules if name.startswith('pgpu.')));"
        "print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    foreign, ours, loaded = done.stdout.splitlines()
    assert sorted(foreign.split()) == ["__main__", "pgpu"]
    rooms = {name.split(".")[1] for name in ours.split()}
    assert rooms == {"app", "errors", "tmpfs", "units"}
    assert not {"dataclasses", "pathlib", "socket", "sqlite3", "tomllib", "typing", "typing_extensions"} & set(
        loaded.split()
    )


def test_the_record_of_a_container_is_read_as_it_was_written(tmp_path: Path) -> None:
    words = RuncCall(["--pgpu-engine=unix:///e", *_CREATE])
    ask = _asked("PGPU_MEMORY=4GiB")
    record = _make_record(words, {"process": {"user": {"uid": 5, "gid": 6}}}, ask, ["train"])
    record.update(image_id="i", image="n", name="c", glibc=True)
    (tmp_path / RECORD).write_text(json.dumps(record))
    container = container_of(tmp_path)
    assert (container.container_id, container.runc, container.engine) == ("abc", ("runc", "--root", "/r"), "unix:///e")
    assert (container.memory_bytes, container.command, container.user) == (4 << 30, ("train",), "5:6")
    assert container.bundle == Path("/b")
