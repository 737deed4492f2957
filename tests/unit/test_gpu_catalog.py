import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgpu.errors import RequestError
from pgpu.gpu.catalog import LARGEST_COUNT, known_models, parse_model
from pgpu.gpu.mig_profiles import PROFILES
from pgpu.gpu.products import MODELS, GpuModel
from pgpu.structs import replace
from pgpu.units import MIB


@pytest.mark.parametrize(
    ("text", "slug", "count"),
    [
        ("RTX 3090", "rtx-3090", 1),
        ("rtx3090", "rtx-3090", 1),
        ("RTX 3090x4", "rtx-3090", 4),
        ("  rtx-3090 x 16 ", "rtx-3090", 16),
        ("NVIDIA GeForce RTX 3090×2", "rtx-3090", 2),
        ("GTX 980 Ti", "gtx-980-ti", 1),
        ("geforce gtx980ti x2", "gtx-980-ti", 2),
        ("Tesla V100", "v100", 1),
        ("A100-40", "a100-40", 1),
        ("a100 80GB", "a100-80", 1),
        ("NVIDIA A100-SXM4-80GB", "a100-80", 1),
        ("L4", "l4", 1),
        ("L40S x8", "l40s", 8),
        ("NVIDIA H100 80GB HBM3", "h100", 1),
        ("h200x8", "h200", 8),
        ("B200", "b200", 1),
        ("RTX 4090 x2", "rtx-4090", 2),
        ("GeForce RTX 5090", "rtx-5090", 1),
        ("A6000", "a6000", 1),
        ("NVIDIA RTX A6000", "a6000", 1),
        ("A10x4", "a10", 4),
        ("Tesla T4", "t4", 1),
        ("GB200x4", "gb200", 4),
        ("NVIDIA GB10", "gb10", 1),
    ],
)
def test_a_model_is_found_however_users_write_it(text: str, slug: str, count: int) -> None:
    model, found = parse_model(text)
    assert (model.slug, found) == (slug, count)


@pytest.mark.parametrize("text", ["RTX 9999", "", "x", "x4", "A100", "rtx 3090 x", "3090x2x2", "tesla", "RTX 3090x-1"])
def test_an_unknown_model_is_refused_and_the_known_ones_are_listed(text: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_model(text)
    assert caught.value.hint is not None
    assert all(slug in caught.value.hint for slug in known_models())


@pytest.mark.parametrize("count", [0, LARGEST_COUNT + 1, 3090])
def test_only_one_to_sixteen_gpus_can_be_simulated(count: int) -> None:
    with pytest.raises(RequestError, match="not possible"):
        parse_model(f"RTX 3090x{count}")


@given(st.text())
def test_any_other_text_is_refused_and_never_crashes(text: str) -> None:
    try:
        model, count = parse_model(text)
    except RequestError:
        return
    assert model in MODELS
    assert 1 <= count <= LARGEST_COUNT


def test_the_rtx_3090_has_the_memory_that_p1_used() -> None:
    assert parse_model("RTX 3090")[0].memory_bytes == 24_265 * MIB


def test_a_container_of_p3_holds_110_mib_of_the_gtx_980_ti() -> None:
    model = parse_model("GTX 980 Ti")[0]
    assert model.context_bytes + 98 * MIB == 110 * MIB
    assert 0.93 <= 52 * 110 * MIB / model.total_bytes < 0.94
    assert 52 * 110 * MIB <= model.memory_bytes == 5760 * MIB < 53 * 110 * MIB


@pytest.mark.parametrize("model", MODELS, ids=known_models())
def test_a_models_figures_agree_with_each_other(model: GpuModel) -> None:
    assert (model.reserved_bytes == 0) == model.shares_host_memory
    assert model.total_bytes >= model.memory_bytes > 0.93 * model.total_bytes
    assert MIB < model.context_bytes < model.memory_bytes / 10
    by_clock = model.memory_clock_mhz * 10**6 * 2 * model.memory_bus_bits // 8
    assert model.bandwidth_bytes_per_second == pytest.approx(by_clock, rel=0.07)


def test_slugs_and_device_ids_are_unique() -> None:
    assert len({model.slug for model in MODELS}) == len(MODELS)
    assert len({model.pci_device_id for model in MODELS}) == len(MODELS)


@pytest.mark.parametrize(
    "text", ["H100 mig 1g.10gb+2g.20gb x 2", "h100-mig-1g.10gb+2g.20gbx2", "nvidia h100 MIG 1G.10GB + 2g.20gb x2"]
)
def test_a_division_by_mig_is_read_and_its_slug_reads_back(text: str) -> None:
    model, count = parse_model(text)
    assert (model.slug, count) == ("h100-mig-1g.10gb+2g.20gb", 2)
    assert [instance.name for instance in model.instances] == ["1g.10gb", "2g.20gb"]
    assert parse_model(f"{model.slug}x{count}") == (model, count)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("RTX 3090 mig 1g.10gb", "rtx-3090 cannot be divided by MIG"),
        ("H100 mig 1g.5gb", "h100 has no MIG instance '1g.5gb'"),
        ("H100 mig 4g.40gb+4g.40gb", "these instances need 8 compute and 8 memory slices of one h100"),
        ("H100 mig 3g.40gb+3g.40gb+1g.10gb", "these instances need 7 compute and 9 memory slices of one h100"),
        ("H100 mig 1g.10gb+1g.10gb x 6", "6 GPUs with these instances cannot be simulated"),
        ("H900 mig 1g.10gb", "no GPU model 'H900' is known"),
    ],
)
def test_a_division_that_no_gpu_has_is_refused(text: str, message: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_model(text)
    assert str(caught.value) == message
    assert caught.value.hint


def test_each_instance_is_smaller_than_its_gpu() -> None:
    for slug, profiles in PROFILES.items():
        whole = parse_model(slug)[0]
        for profile in profiles.values():
            assert profile.memory_bytes <= whole.memory_bytes * profile.memory_slices / 8
            assert profile.sm_count <= whole.sm_count


@pytest.mark.parametrize(
    ("text", "slug", "count"),
    [
        ("RTX 3090 cgroup", "rtx-3090-cgroup", 1),
        ("rtx-3090-cgroupx4", "rtx-3090-cgroup", 4),
        ("h100 CGROUP x 2", "h100-cgroup", 2),
    ],
)
def test_a_driver_that_limits_control_groups_is_asked_for_behind_the_model(text: str, slug: str, count: int) -> None:
    model, found = parse_model(text)
    assert (model.slug, found, model.limits_cgroups) == (slug, count, True)
    assert parse_model(f"{slug}x{count}") == (model, count)


def test_a_card_that_never_was_pages_and_says_that_it_is_imaginary() -> None:
    model, count = parse_model("GTX 980 Ti paging x 2")
    real, _ = parse_model("GTX 980 Ti")
    assert (model.slug, count, model.capability.major) == ("gtx-980-ti-paging", 2, 6)
    assert model.name == f"{real.name} with paging (imaginary)"
    assert replace(model, slug=real.slug, name=real.name, capability=real.capability) == real


@pytest.mark.parametrize("text", ["paging", "RTX 3090 paging", "GTX 9999 paging", "GTX 980 Ti paging x 17"])
def test_no_other_model_pages_that_does_not_already(text: str) -> None:
    with pytest.raises(RequestError):
        parse_model(text)


@pytest.mark.parametrize("text", ["cgroup", "GTX 9999 cgroup", "RTX 3090 cgroup x 17", "H100 mig 1g.10gb cgroup"])
def test_what_is_no_model_before_it_is_refused(text: str) -> None:
    with pytest.raises(RequestError):
        parse_model(text)
