"""The driver before a kubelet: claims become slices and CDI files, and go again, whatever order they are asked in."""

import shutil
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from tests.fakes.api_server import CLAIMS, Fault
from tests.fakes.claims import FakeClaims, gpu
from tests.fakes.kubelet import in_threads
from tests.system.kubernetes.driver_world import GPU, NODE, World, allocated, result, world
from tests.waiting import until

from pgpu.kubernetes import names
from pgpu.kubernetes.dra.claim_allocation import API_VERSION, KIND
from pgpu.kubernetes.dra.dra_driver import SLICES
from pgpu.kubernetes.generated import dra_v1_pb2 as dra
from pgpu.model import Claim, HeldClaim, SharingWish, Slice
from pgpu.units import GIB, MIB


@pytest.fixture
def node() -> Iterator[World]:
    with world(gpus=2) as made:
        yield made


def opaque(**fields: Any) -> dict[str, Any]:
    """Return parameters that a claim says."""
    said = {"apiVersion": API_VERSION, "kind": KIND, **fields}
    return {"source": "FromClaim", "opaque": {"driver": names.DRIVER, "parameters": said}}


def test_a_claim_becomes_a_slice_and_a_cdi_file(node: World) -> None:
    claim = node.add(allocated("c"))
    with node.running():
        answer = node.kubelet.prepare(claim)[claim.uid]
    (device,) = answer.devices
    assert not answer.error
    assert (device.pool_name, device.device_name) == (NODE, names.shared_device(GPU.uuid))
    assert (list(device.request_names), device.share_id) == (["gpu"], "share-1")
    assert list(device.cdi_device_ids) == [f"pgpu.io/gpu={claim.uid}"]
    (held,) = node.claims.held()
    assert [(part.gpu_uuid, part.memory_bytes) for part in held.claim.slices] == [(GPU.uuid, 30 * GIB)]
    assert {"/.pgpu", "/.pgpu/usage", "/etc/ld.so.preload"} <= {
        each["containerPath"] for each in node.edits(claim)["mounts"]
    }


def test_an_unprepared_claim_leaves_nothing(node: World) -> None:
    claim = node.add(allocated("c"))
    with node.running():
        node.kubelet.prepare(claim)
        assert not node.kubelet.unprepare(claim)[claim.uid].error
        assert not node.cdi_file(claim).exists()
        assert not list((node.root / "seals").iterdir())
    assert not node.claims.held()


def test_what_is_asked_again_is_answered_again(node: World) -> None:
    claim = node.add(allocated("c"))
    with node.running():
        first = node.kubelet.prepare(claim)
        before = node.cdi_file(claim).read_bytes()
        assert node.kubelet.prepare(claim) == first
        assert node.cdi_file(claim).read_bytes() == before
        assert not node.kubelet.unprepare(claim)[claim.uid].error
        assert not node.kubelet.unprepare(claim)[claim.uid].error
        assert node.kubelet.prepare(claim) == first
    assert len([line for line in node.said if line.startswith("prepared")]) == 2


def test_the_wrong_order_is_answered_too(node: World) -> None:
    claim = node.add(allocated("c"))
    with node.running():
        assert not node.kubelet.unprepare(claim)[claim.uid].error
        assert not node.kubelet.prepare(claim)[claim.uid].error
    assert node.cdi_file(claim).exists()


def test_claims_that_nobody_knows(node: World) -> None:
    unknown = dra.Claim(namespace="default", name="nobody", uid="7ca79b77-3b7d-4e98-b39d-4bc677a79456")
    with node.running():
        assert "no such object" in node.kubelet.prepare(unknown)[unknown.uid].error
        assert not node.kubelet.unprepare(unknown)[unknown.uid].error
    assert not node.claims.held()


@pytest.mark.parametrize("uid", ["", "../../etc", "a/b", "x" * 64])
def test_a_uid_that_is_none_touches_nothing(node: World, uid: str) -> None:
    with node.running():
        assert "is no uid" in node.kubelet.prepare(dra.Claim(namespace="default", name="c", uid=uid))[uid].error
        assert not node.kubelet.unprepare(dra.Claim(namespace="default", name="c", uid=uid))[uid].error
    assert not node.cdi.exists()


def test_an_empty_call_has_an_empty_answer(node: World) -> None:
    with node.running():
        assert not node.kubelet.prepare()
        assert not node.kubelet.unprepare()


def test_a_claim_made_again_under_its_name_is_another(node: World) -> None:
    claim = node.add(allocated("c"))
    older = dra.Claim(namespace="default", name="c", uid="7ca79b77-3b7d-4e98-b39d-4bc677a79456")
    with node.running():
        answers = node.kubelet.prepare(claim, older)
    assert not answers[claim.uid].error
    assert "is another one now" in answers[older.uid].error
    assert [each.claim.uid for each in node.claims.held()] == [claim.uid]


def test_one_claim_s_error_is_not_another_s(node: World) -> None:
    good = node.add(allocated("good"))
    bad = node.add(allocated("bad", [result(pool="node2")]))
    late = node.add(allocated("late", [result("60Gi")]))
    with node.running():
        answers = node.kubelet.prepare(bad, good, late)
    assert not answers[good.uid].error
    assert "allocated in pool 'node2'" in answers[bad.uid].error
    assert "do not fit on GPU" in answers[late.uid].error
    assert not answers[late.uid].devices
    assert not node.cdi_file(late).exists()


def test_what_does_not_fit_now_fits_once_another_went(node: World) -> None:
    first, second = node.add(allocated("first", [result("60Gi")])), node.add(allocated("second", [result("60Gi")]))
    with node.running():
        node.kubelet.prepare(first)
        assert node.kubelet.prepare(second)[second.uid].error
        node.kubelet.unprepare(first)
        assert not node.kubelet.prepare(second)[second.uid].error


def test_a_bug_at_one_claim_is_said_and_the_others_are_answered(node: World) -> None:
    first, second = node.add(allocated("first")), node.add(allocated("second"))
    node.claims.refusal = ZeroDivisionError("odd")
    with node.running():
        answers = node.kubelet.prepare(first, second)
    assert "pgpu failed: ZeroDivisionError: odd" in answers[first.uid].error
    assert not answers[second.uid].error
    assert any("Traceback" in line for line in node.said)


def test_a_hundred_claims_at_once(node: World) -> None:
    claims = [node.add(allocated(f"c{number}", [result("256Mi")])) for number in range(100)]
    with node.running():
        in_threads([lambda each=each: node.kubelet.prepare(each) for each in claims])
        assert sum(offer.held_bytes for offer in node.claims.gpus()) == 100 * 256 * MIB
        assert len(list(node.cdi.glob("*.json"))) == 100
        in_threads([lambda each=each: node.kubelet.unprepare(each) for each in claims])
    assert not list(node.cdi.iterdir())


def test_one_claim_asked_for_by_many_at_once_is_one_slice(node: World) -> None:
    claim = node.add(allocated("c"))
    with node.running():
        in_threads([lambda: node.kubelet.prepare(claim)] * 20)
        assert node.claims.gpus()[0].held_bytes == 30 * GIB
        in_threads([lambda: node.kubelet.prepare(claim), lambda: node.kubelet.unprepare(claim)] * 10)
        node.kubelet.unprepare(claim)
    assert not node.claims.held()
    assert not node.cdi_file(claim).exists()


def test_an_older_kubelet_is_answered_without_shares(node: World) -> None:
    claim = node.add(allocated("c"))
    with node.running():
        (device,) = node.kubelet.prepare_as_older(claim)[claim.uid].devices
    assert list(device.cdi_device_ids) == [f"pgpu.io/gpu={claim.uid}"]


def test_a_claim_that_another_allocation_has_now_gets_that(node: World) -> None:
    claim = node.add(allocated("c"))
    with node.running():
        node.kubelet.prepare(claim)
        found = node.api.objects.get(CLAIMS, "default", "c")
        found["status"] = allocated("c", [result("8Gi")])["status"]
        node.api.objects.update(CLAIMS, "default", found)
        assert not node.kubelet.prepare(claim)[claim.uid].error
    assert [part.memory_bytes for each in node.claims.held() for part in each.claim.slices] == [8 * GIB]


def test_a_whole_gpu_stays_whole_while_others_take_of_it(node: World) -> None:
    claim = node.add(allocated("c", [result(device=names.whole_device(GPU.uuid), consumedCapacity=None, shareID=None)]))
    with node.running():
        first = node.kubelet.prepare(claim)
        node.claims.outsiders_bytes[GPU.uuid] = 2 * GIB
        assert node.kubelet.prepare(claim) == first
        assert not first[claim.uid].error
    (held,) = node.claims.held()
    assert held.claim.sharing is SharingWish.EXCLUSIVE
    assert held.claim.slices[0].memory_bytes == GPU.memory_bytes, "the same slice, not another"


def test_a_slice_whose_gpu_is_gone_can_be_given_back(node: World) -> None:
    claim = node.add(allocated("c"))
    with node.running():
        node.kubelet.prepare(claim)
        node.claims.present.clear()
        assert not node.kubelet.unprepare(claim)[claim.uid].error
        assert "is not on node1 now" in node.kubelet.prepare(claim)[claim.uid].error
    assert not node.cdi_file(claim).exists()


def test_nothing_is_prepared_while_the_cluster_does_not_answer(node: World) -> None:
    claim = node.add(allocated("c"))
    node.api.faults.append(Fault(503, times=100, plural="resourceclaims"))
    with node.running():
        assert "cannot answer now" in node.kubelet.prepare(claim)[claim.uid].error
        assert not node.kubelet.unprepare(claim)[claim.uid].error
    assert not node.claims.held()


def test_bad_parameters_are_named_to_the_kubelet(node: World) -> None:
    claim = node.add(allocated("c", config=[opaque(waitForMemory="soon")]))
    with node.running():
        assert "waitForMemory: 'soon' is not a duration" in node.kubelet.prepare(claim)[claim.uid].error
    assert not node.claims.held()


def test_parameters_in_vain_are_told_as_an_event(node: World) -> None:
    claim = node.add(allocated("c", config=[opaque(priority=50, waitForMemory="30s")]))
    with node.running():
        assert not node.kubelet.prepare(claim)[claim.uid].error
    (held,) = node.claims.held()
    assert (held.claim.priority, held.claim.wait_for_memory_seconds) == (0, 30.0)
    assert "c ParametersIgnored: only a DeviceClass may set priority: ignored in this claim" in node.said


@pytest.mark.parametrize("words", [b"", b"{}", b"\x00" * 10])
def test_a_cdi_file_that_is_gone_or_foreign_is_made_again(node: World, words: bytes) -> None:
    claim = node.add(allocated("c"))
    with node.running():
        node.kubelet.prepare(claim)
        before = node.cdi_file(claim).read_bytes()
        if words:
            node.cdi_file(claim).write_bytes(words)
        else:
            node.cdi_file(claim).unlink()
        until(lambda: node.cdi_file(claim).exists() and node.cdi_file(claim).read_bytes() == before)
    assert any("missing or changed, and is made again" in line for line in node.said)


def test_a_cdi_file_that_is_right_is_not_written_again(node: World) -> None:
    claim = node.add(allocated("c"))
    with node.running():
        node.kubelet.prepare(claim)
        before = node.cdi_file(claim).stat()
        node.kubelet.prepare(claim)
        assert node.cdi_file(claim).stat() == before


def test_what_takes_its_time_keeps_no_cdi_file_away(node: World) -> None:
    is_over, is_at_it = threading.Event(), threading.Event()

    def dawdle() -> None:
        is_at_it.set()
        is_over.wait()

    node.slow_chores["something slow"] = dawdle
    claim = node.add(allocated("c"))
    with node.running():
        node.kubelet.prepare(claim)
        until(is_at_it.is_set)
        node.cdi_file(claim).unlink()
        until(node.cdi_file(claim).exists)
        is_over.set()


def test_all_cdi_files_and_seals_are_made_again(node: World) -> None:
    claim = node.add(allocated("c"))
    with node.running():
        node.kubelet.prepare(claim)
        shutil.rmtree(node.cdi)
        shutil.rmtree(node.root / "seals")
        until(lambda: node.cdi_file(claim).exists() and (node.root / "seals" / claim.uid / claim.uid).exists())


def test_cdi_files_of_claims_that_nobody_holds_are_removed_and_others_stay(node: World) -> None:
    node.cdi.mkdir()
    stale, foreign = node.cdi / "pgpu.io-claim-gone.json", node.cdi / "nvidia.yaml"
    stale.write_text("{}")
    foreign.write_text("{}")
    with node.running():
        assert not stale.exists()
    assert foreign.exists()


def test_a_cdi_folder_that_cannot_be_written_fails_the_claim_and_its_slice_can_be_given_back(node: World) -> None:
    claim = node.add(allocated("c"))
    with node.running():
        node.cdi.write_text("no folder")
        assert "cannot be written" in node.kubelet.prepare(claim)[claim.uid].error
        assert node.kubelet.unprepare(claim)[claim.uid].error, "what lies there is not known"
        node.cdi.unlink()
        assert not node.kubelet.unprepare(claim)[claim.uid].error
    assert not node.claims.held()


def test_the_next_driver_takes_over(node: World) -> None:
    claim, other = node.add(allocated("c")), node.add(allocated("other"))
    with node.running():
        node.kubelet.prepare(claim, other)
    node.kubelet.restart()
    node.cdi_file(claim).unlink()
    with node.running():
        assert node.cdi_file(claim).exists()
        assert not node.kubelet.unprepare(claim)[claim.uid].error
        assert not node.cdi_file(claim).exists()
        assert node.cdi_file(other).exists()


def test_a_slice_of_a_device_plugin_has_no_cdi_file_of_dra(node: World) -> None:
    part = Slice(GPU.uuid, GIB)
    node.claims.hold(Claim("plugin-1", "", "", (part,), note="another's"))
    with node.running():
        assert not list(node.cdi.glob("*.json"))


def test_a_claim_that_cannot_be_restored_takes_nothing_from_others(node: World) -> None:
    other_gpu = names.shared_device(gpu(1).uuid)
    ill, well = node.add(allocated("ill")), node.add(allocated("well", [result(device=other_gpu)]))
    with node.running():
        node.kubelet.prepare(ill, well)
    node.undescribed.add(GPU.uuid)
    node.cdi_file(well).unlink()
    node.said.clear()
    with node.running():
        until(lambda: "CDI files: in order" in node.said)
        assert node.cdi_file(well).exists()
        assert node.cdi_file(ill).exists(), "its container may start again at any time"
        assert "no description" in node.readiness.problems()[SLICES]


def test_another_allocation_is_given_where_the_earlier_one_cannot_be_restored(node: World) -> None:
    claim = node.add(allocated("c"))
    with node.running():
        node.kubelet.prepare(claim)
    node.claims.not_made.add(claim.uid)
    found = node.api.objects.get(CLAIMS, "default", "c")
    found["status"] = allocated("c", [result("8Gi")])["status"]
    node.api.objects.update(CLAIMS, "default", found)
    with node.running():
        assert not node.kubelet.prepare(claim)[claim.uid].error
    assert [each.claim.slices[0].memory_bytes for each in node.claims.records().values()] == [8 * GIB]


def test_a_claim_that_is_freed_while_all_are_restored_leaves_no_file(node: World) -> None:
    class Meanwhile(FakeClaims):
        """Frees a claim between what is held and what is made of it."""

        def held(self) -> Sequence[HeldClaim]:
            found = super().held()
            for each in found:
                self.free(each.claim.uid)
            return found

    claim = node.add(allocated("c"))
    with node.running():
        node.kubelet.prepare(claim)
        node.cdi_file(claim).unlink()
    later = Meanwhile(node.root / "slices", [gpu(0)])
    later.hold(next(iter(node.claims.records().values())).claim)
    node.claims = later
    node.said.clear()
    with node.running():
        until(lambda: "CDI files: in order" in node.said)
        assert not node.cdi_file(claim).exists()
