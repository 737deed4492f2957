"""What a sealed container is asked to be, for root and for others, and which words of a seal are refused: all of it pure."""

from typing import Any

import pytest

from pgpu.enforcement.enforcer_selector import WithoutGpu
from pgpu.errors import RequestError
from pgpu.model import Account, Job, JobSpec, JobState, Lease, Mount, Request
from pgpu.runtimes.docker.confinement import confined, refuse_more_than_own
from pgpu.runtimes.docker.create_request import container_configuration
from pgpu.runtimes.docker.refusals import refuse_bad_words, refuse_more_than_the_machine_has
from pgpu.units import GIB

ALICE = Account(61001, 61001)


def spec(**fields: Any) -> JobSpec:
    return JobSpec(**{"command": ("true",), "runtime": "docker", "image": "some:image", "is_sealed": True, **fields})


def created(asked: JobSpec, account: Account | None = None) -> dict[str, Any]:
    job = Job("0123456789ab", asked, Request(0, 0), JobState.STARTING, 0.0, lease=Lease("0123456789ab", (), 0.0))
    made = container_configuration(job, WithoutGpu().prepare(job, ()), (), {})
    return made if account is None else confined(made, account, asked.volumes, {"Config": {}})


@pytest.mark.parametrize("account", [None, ALICE])
def test_a_sealed_container_reaches_nothing_and_writes_nothing(account: Account | None) -> None:
    host = created(spec(), account)["HostConfig"]
    assert (host["NetworkMode"], host["ReadonlyRootfs"], host["CapDrop"]) == ("none", True, ["ALL"])
    assert host["SecurityOpt"] == ["no-new-privileges"]
    assert list(host["Tmpfs"]) == ["/tmp"]
    assert created(spec(network="bridge"), account)["HostConfig"]["NetworkMode"] == "bridge"
    bare = created(spec(is_sealed=False), account)["HostConfig"]
    assert (bare.get("NetworkMode", "default"), bare.get("ReadonlyRootfs", False)) == ("default", False)


@pytest.mark.parametrize("account", [None, ALICE])
def test_what_pgpu_provides_is_read_only_unless_it_says_otherwise(account: Account | None) -> None:
    asked = spec(provisions=(Mount("/s", "/function", "ro"), Mount("/r", "/sockets", "rw"), Mount("/t", "/t")))
    mounts = {mount["Target"]: mount["ReadOnly"] for mount in created(asked, account)["HostConfig"]["Mounts"]}
    assert mounts == {"/function": True, "/sockets": False, "/t": True}


@pytest.mark.parametrize("network", ["host", "container:0123", "ns:/proc/1/ns/net", "of-another", ""])
def test_a_user_has_no_network_but_the_engine_s_own(network: str) -> None:
    with pytest.raises(RequestError, match="network"):
        refuse_more_than_own(spec(network=network), ALICE)
    for allowed in (None, "none", "bridge", "default"):
        refuse_more_than_own(spec(network=allowed), ALICE)


def test_a_network_is_a_word_about_sealed_containers_alone() -> None:
    refuse_bad_words(spec(network="bridge"))
    for wrong in (spec(network="bridge", is_sealed=False), spec(network="a b"), spec(network="\0")):
        with pytest.raises(RequestError, match="network"):
            refuse_bad_words(wrong)


def test_what_pgpu_provides_lies_over_nothing_of_the_slice() -> None:
    for target in ("/.pgpu", "/.pgpu/limit", "/usr/lib/libcuda.so.1", "relative"):
        with pytest.raises(RequestError):
            refuse_bad_words(spec(provisions=(Mount("/s", target),)))


@pytest.mark.parametrize("account", [None, ALICE])
@pytest.mark.parametrize(("said", "has"), [(None, (4 * GIB, GIB)), (GIB, (GIB, GIB // 2)), (8 * GIB, (8 * GIB, GIB))])
def test_a_sealed_container_has_so_much_host_memory_and_never_all_of_it_is_scratch(
    account: Account | None, said: int | None, has: tuple[int, int]
) -> None:
    host = created(spec(host_memory_bytes=said), account)["HostConfig"]
    assert (host["Memory"], host["MemorySwap"]) == (has[0], has[0])
    assert host["Tmpfs"]["/tmp"].endswith(f"size={has[1]}")
    assert host["PidsLimit"] == 4096
    assert "Memory" not in created(spec(is_sealed=False), account)["HostConfig"]


def test_host_memory_is_a_word_about_sealed_containers_alone_and_no_more_than_there_is() -> None:
    refuse_bad_words(spec(host_memory_bytes=GIB))
    for wrong in (spec(host_memory_bytes=GIB, is_sealed=False), spec(host_memory_bytes=1), spec(host_memory_bytes=-1)):
        with pytest.raises(RequestError, match="host memory"):
            refuse_bad_words(wrong)
    refuse_more_than_the_machine_has(spec(), {})
    refuse_more_than_the_machine_has(spec(host_memory_bytes=GIB), {"MemTotal": GIB})
    with pytest.raises(RequestError, match="more than this machine's"):
        refuse_more_than_the_machine_has(spec(host_memory_bytes=2 * GIB), {"MemTotal": GIB})
