"""Placement never takes what is not there, never refuses what is, and keeps whole what likely jobs need whole."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from pgpu.model import SharingMode
from pgpu.scheduling.cluster_resources import GpuResources, JobShape, NodeResources
from pgpu.scheduling.outlook import Fleet, Outlook
from pgpu.scheduling.placement import Placement, PlacementPreference, place, rate
from pgpu.scheduling.placer import Placer, prefer_fuller_nodes
from pgpu.structs import replace
from pgpu.units import GIB

MODES = [None, SharingMode.TIME_SLICE, SharingMode.MPS]

shapes = st.builds(
    JobShape,
    gpu_count=st.sampled_from([0, 1, 1, 1, 1, 2, 3]),
    compute_milli=st.sampled_from([0, 100, 250, 500, 810, 1000]),
    memory_bytes=st.sampled_from([0, 1, 3, 8, 11, 24]).map(lambda gib: gib * GIB),
    cpu_milli=st.sampled_from([0, 1000, 4000]),
    host_memory_bytes=st.sampled_from([0, 4, 30]).map(lambda gib: gib * GIB),
    models=st.sampled_from([None, None, frozenset({"A"}), frozenset({"A", "B"})]),
)


def node_of(
    name: str, gpu_count: int, *, cpu_milli: int = 16_000, is_linked: bool = False, models: str = "A", gib: int = 24
) -> NodeResources:
    gpus = tuple(
        GpuResources(
            f"{name}-{index}",
            1000,
            gib * GIB,
            compute_milli=1000,
            memory_bytes=gib * GIB,
            model=models[index % len(models)],
        )
        for index in range(gpu_count)
    )
    links = frozenset({frozenset({f"{name}-0", f"{name}-{gpu_count - 1}"})}) if is_linked else frozenset()
    return NodeResources(name, gpus, cpu_milli, 64 * GIB, links)


nodes_of_a_cluster = st.lists(
    st.tuples(st.integers(1, 4), st.booleans(), st.sampled_from(["A", "A", "B", "C", "AB"])), min_size=1, max_size=6
).map(
    lambda kinds: [
        node_of(f"node{number}", count, is_linked=linked, models=models)
        for number, (count, linked, models) in enumerate(kinds)
    ]
)


def taken(
    nodes: list[NodeResources], shape: JobShape, placement: Placement, mode: SharingMode | None, sign: int = 1
) -> tuple[int, NodeResources]:
    """Take what a placement takes, or give it back; return the node as it is then."""
    number = next(number for number, node in enumerate(nodes) if node.name == placement.node)
    node = nodes[number]
    gpus = tuple(
        gpu
        if gpu.uuid not in placement.gpu_uuids
        else replace(
            gpu,
            free_compute_milli=gpu.free_compute_milli - sign * shape.compute_milli,
            free_memory_bytes=gpu.free_memory_bytes - sign * shape.memory_bytes,
            sharing_mode=mode or gpu.sharing_mode if sign > 0 else gpu.sharing_mode,
        )
        for gpu in node.gpus
    )
    nodes[number] = replace(
        node,
        gpus=gpus,
        cpu_milli=node.cpu_milli - sign * shape.cpu_milli,
        host_memory_bytes=node.host_memory_bytes - sign * shape.host_memory_bytes,
    )
    return number, nodes[number]


jobs = st.lists(st.tuples(shapes, st.sampled_from(MODES), st.integers(0, 7)), max_size=40)


@settings(max_examples=60, deadline=None)
@given(nodes_of_a_cluster, jobs)
def test_a_job_gets_free_distinct_gpus_of_one_node_and_is_refused_only_where_no_node_can_host_it(
    nodes: list[NodeResources], coming: list[tuple[JobShape, SharingMode | None, int]]
) -> None:
    outlook = Outlook([shape for shape, _, _ in coming], Fleet(nodes))
    for shape, mode, _ in coming:
        placement = place(shape, nodes, outlook, PlacementPreference(mode))
        assert (placement is None) == (not any(node.can_host(shape, mode) for node in nodes))
        if placement is None:
            continue
        node = next(node for node in nodes if node.name == placement.node)
        chosen = [gpu for gpu in node.gpus if gpu.uuid in placement.gpu_uuids]
        assert len(chosen) == len(placement.gpu_uuids) == shape.gpu_count
        assert all(gpu.can_host(shape, mode) for gpu in chosen)
        taken(nodes, shape, placement, mode)
        assert all(gpu.free_compute_milli >= 0 and gpu.free_memory_bytes >= 0 for each in nodes for gpu in each.gpus)


@settings(max_examples=60, deadline=None)
@given(nodes_of_a_cluster, jobs)
def test_who_remembers_answers_as_who_does_not_while_jobs_come_and_go(
    nodes: list[NodeResources], coming: list[tuple[JobShape, SharingMode | None, int]]
) -> None:
    outlook = Outlook([shape for shape, _, _ in coming], Fleet(nodes))
    placer = Placer(outlook, nodes)
    running: list[tuple[JobShape, Placement, SharingMode | None]] = []
    for shape, mode, leaver in coming:
        placement = placer.place(shape, PlacementPreference(mode))
        assert placement == place(shape, nodes, outlook, PlacementPreference(mode))
        if placement is not None:
            placer.change(*taken(nodes, shape, placement, mode))
            running.append((shape, placement, mode))
        if leaver < len(running):
            placer.change(*taken(nodes, *running.pop(leaver), sign=-1))


@given(nodes_of_a_cluster, jobs)
def test_what_hosting_costs_names_the_nodes_that_can_and_the_best_among_the_cheapest(
    nodes: list[NodeResources], coming: list[tuple[JobShape, SharingMode | None, int]]
) -> None:
    outlook = Outlook([shape for shape, _, _ in coming], Fleet(nodes))
    placer = Placer(outlook, nodes)
    for shape, mode, _ in coming:
        cost_by_state = placer.costs(shape, PlacementPreference(mode))
        costs = [cost_by_state.get(state) for state in placer.states]
        assert [cost is not None for cost in costs] == [node.can_host(shape, mode) for node in nodes]
        placement = placer.place(shape, PlacementPreference(mode))
        if placement is not None:
            best = next(index for index, node in enumerate(nodes) if node.name == placement.node)
            assert costs[best] == min(cost for cost in costs if cost is not None)
            placer.change(*taken(nodes, shape, placement, mode))


def test_of_nodes_that_lose_nearly_as_little_as_the_best_the_fuller_costs_less() -> None:
    """In billionths of a GPU, then in thousandths of what stays free."""
    best, fuller, worse = 500_000_000 * 100_000 + 8000, 500_900_000 * 100_000 + 2000, 600_000_000 * 100_000

    costs = prefer_fuller_nodes([best, fuller, worse], 0.001)

    assert costs == [best, 500_000_000 * 100_000 + 2000, worse]
    assert prefer_fuller_nodes([best, fuller], 0.0008) == [best, fuller]
    assert prefer_fuller_nodes([], 0.001) == []


@given(st.lists(shapes, min_size=1, max_size=30))
def test_no_filling_of_a_gpu_is_worth_more_than_the_gpu(recent: list[JobShape]) -> None:
    """The prices are feasible for the dual of cutting stock, so an idle GPU is the most that any part can be worth."""
    offer = node_of("node", 1).gpus[0]
    worth = Outlook(recent).worth(offer.type)
    whole = worth.by_cpu[-1][worth.cell(offer.free_compute_milli, offer.free_memory_bytes)]
    assert 0 <= whole <= 1 + 1e-6


@given(st.lists(shapes, min_size=1, max_size=30), st.integers(0, 1000), st.integers(0, 24))
def test_a_part_is_worth_no_more_to_those_who_find_less_cpu(
    recent: list[JobShape], compute_milli: int, gib: int
) -> None:
    worth = Outlook(recent).worth(node_of("node", 1).gpus[0].type)
    cell = worth.cell(compute_milli, gib * GIB)
    assert worth.by_cpu[0][cell] == 0
    assert max(level[cell] for level in worth.by_cpu) <= 1 + 1e-6


def memory(gib: int, gpu_count: int = 1) -> JobShape:
    return JobShape(gpu_count, 0, gib * GIB)


def with_free(node: NodeResources, *free_gib: int) -> NodeResources:
    gpus = tuple(
        replace(gpu, free_memory_bytes=gib * GIB, free_compute_milli=1000)
        for gpu, gib in zip(node.gpus, free_gib, strict=True)
    )
    return replace(node, gpus=gpus)


def test_a_small_job_leaves_the_idle_gpu_to_those_who_need_all_of_it() -> None:
    outlook = Outlook([memory(4), memory(24)])
    placement = place(memory(4), [with_free(node_of("node", 2), 24, 20)], outlook)
    assert placement is not None
    assert placement.gpu_uuids == ("node-1",)


def test_a_gap_that_two_likely_jobs_fill_is_not_broken_for_one_that_strands_the_rest() -> None:
    """Best fit would take the gap of 12 GiB for 10 GiB, and leave 2 GiB to nobody."""
    outlook = Outlook([memory(6)] * 8 + [memory(10)])
    node = with_free(node_of("node", 2), 12, 16)
    placement = place(memory(10), [node], outlook)
    assert placement is not None
    assert placement.gpu_uuids == ("node-1",)


def test_without_any_knowledge_of_what_comes_the_best_fit_wins() -> None:
    placement = place(memory(4), [with_free(node_of("node", 3), 24, 6, 10)], Outlook([]))
    assert placement is not None
    assert placement.gpu_uuids == ("node-1",)


def test_equal_gpus_go_in_one_fixed_order() -> None:
    nodes = [node_of("b", 2), node_of("a", 2)]
    placement = place(memory(4), nodes, Outlook([memory(4)]))
    assert placement is not None
    assert placement.gpu_uuids == ("b-0",)


def test_of_equal_gpus_the_one_with_the_lowest_predicted_slowdown_is_chosen() -> None:
    wish = PlacementPreference(slowdowns={"node-0": 1.4, "node-1": 1.2, "node-2": 1.1})
    one = place(memory(4), [node_of("node", 3)], Outlook([memory(4)]), wish)
    two = place(memory(4, 2), [node_of("node", 3)], Outlook([memory(4)]), wish)
    assert one is not None
    assert two is not None
    assert one.gpu_uuids == ("node-2",)
    assert two.gpu_uuids == ("node-1", "node-2")


def test_of_equal_gpus_one_that_is_in_the_wanted_mode_already_is_chosen() -> None:
    node = with_free(node_of("node", 2), 12, 12)
    node = replace(node, gpus=(node.gpus[0], replace(node.gpus[1], sharing_mode=SharingMode.MPS)))
    placement = place(memory(4), [node], Outlook([memory(4)]), PlacementPreference(SharingMode.MPS))
    assert placement is not None
    assert placement.gpu_uuids == ("node-1",)


def test_two_modes_never_meet_on_a_gpu_and_an_exclusive_one_is_left_alone() -> None:
    node = with_free(node_of("node", 2), 12, 12)
    modes = (SharingMode.MPS, SharingMode.EXCLUSIVE)
    gpus = tuple(replace(gpu, sharing_mode=mode) for gpu, mode in zip(node.gpus, modes, strict=True))
    node = replace(node, gpus=gpus)
    assert rate(memory(4), node, Outlook([]), PlacementPreference(SharingMode.TIME_SLICE)) is None
    assert rate(memory(4), node, Outlook([]), PlacementPreference(SharingMode.EXCLUSIVE)) is None
    assert rate(memory(4), node, Outlook([]), PlacementPreference(SharingMode.MPS)) is not None


def test_a_job_on_two_gpus_gets_a_pair_that_nvlink_joins() -> None:
    pair = frozenset({frozenset({"node-1", "node-3"})})
    nodes = [replace(node_of("node", 4), nvlinks=pair), node_of("later", 2)]
    outlook = Outlook([memory(4, 2)])
    assert place(memory(4, 2), nodes, outlook) == Placer(outlook, nodes).place(memory(4, 2))
    placement = place(memory(4, 2), nodes, outlook)
    assert placement is not None
    assert placement.gpu_uuids == ("node-1", "node-3")


def of(models: str, gib: int = 24, gpu_count: int = 1) -> JobShape:
    return JobShape(gpu_count, 0, gib * GIB, models=frozenset(models))


def chosen(shape: JobShape, nodes: list[NodeResources], outlook: Outlook) -> str:
    placement = place(shape, nodes, outlook)
    assert placement is not None
    return placement.node


def test_a_job_for_any_gpu_leaves_the_models_that_others_name_to_them() -> None:
    nodes = [node_of("a", 2, models="A"), node_of("b", 2, models="B")]
    for named, other in (("A", "b"), ("B", "a")):
        assert chosen(memory(24), nodes, Outlook([memory(24)] * 5 + [of(named)], Fleet(nodes))) == other


def test_of_two_accepted_models_the_one_of_which_others_leave_more_is_taken() -> None:
    """As many jobs name B as C, and there are three times as many GPUs of C."""
    nodes = [node_of("b", 2, models="B"), *(node_of(f"c{number}", 2, models="C") for number in range(3))]
    outlook = Outlook([of("B"), of("C"), of("BC")], Fleet(nodes))
    assert chosen(of("BC"), nodes, outlook) == "c0"


def test_a_rare_model_that_no_job_has_named_yet_is_left_for_those_that_may() -> None:
    """B is named, so models matter; C would have the lowest load, as there is none for it alone."""
    nodes = [node_of("c", 1, models="C"), *(node_of(f"b{number}", 2, models="B") for number in range(4))]
    outlook = Outlook([memory(24)] * 8 + [of("B")] * 2, Fleet(nodes))
    assert chosen(memory(24), nodes, outlook) == "b0"


def test_a_job_that_fits_anywhere_leaves_large_gpus_to_those_who_need_them() -> None:
    nodes = [node_of("large", 1, gib=80), node_of("small", 1)]
    outlook = Outlook([memory(20)] * 40 + [memory(80)] * 20, Fleet(nodes))
    assert chosen(memory(20), nodes, outlook) == "small"


def test_a_job_on_several_gpus_gets_only_models_that_it_accepts() -> None:
    nodes = [node_of("mixed", 4, models="AB"), node_of("b", 2, models="B")]
    placement = place(of("A", 4, 2), nodes, Outlook([of("A", 4, 2)], Fleet(nodes)))
    assert placement is not None
    assert placement.gpu_uuids == ("mixed-0", "mixed-2")
    assert place(of("A", 4, 3), nodes, Outlook([])) is None


@given(nodes_of_a_cluster, st.lists(shapes, min_size=1, max_size=30))
def test_prices_of_types_have_a_mean_of_one_and_are_equal_where_no_job_tells_types_apart(
    nodes: list[NodeResources], recent: list[JobShape]
) -> None:
    fleet = Fleet(nodes)
    prices = fleet.prices(Counter(recent))
    if prices:
        mean = sum(price * fleet.gpus[type_] for type_, price in prices.items()) / fleet.gpus.total()
        assert abs(mean - 1) < 1e-9
    of_any = fleet.prices(Counter(replace(shape, models=None) for shape in recent))
    assert all(abs(price - 1) < 1e-9 for price in of_any.values())


@settings(max_examples=30, deadline=None)
@given(nodes_of_a_cluster, jobs)
def test_a_placer_that_is_settled_in_parts_while_nodes_change_places_as_one_that_is_not(
    nodes: list[NodeResources], coming: list[tuple[JobShape, SharingMode | None, int]]
) -> None:
    outlook = Outlook([shape for shape, _, _ in coming], Fleet(nodes))
    placer = Placer(outlook, nodes)
    renewed = placer.renewed(outlook)
    for shape, mode, _ in coming:
        placement = placer.place(shape, PlacementPreference(mode))
        if placement is not None:
            change = taken(nodes, shape, placement, mode)
            placer.change(*change)
            renewed.change(*change)
        renewed.settle(1)
    for shape, mode, _ in coming:
        assert renewed.place(shape, PlacementPreference(mode)) == placer.place(shape, PlacementPreference(mode))
