"""What `pgpu functions` shows people and programs."""

import json
from importlib.resources import files

from pgpu.cli.output.function_tables import of_functions, of_starts, of_versions
from pgpu.cli.output.plain_table import PlainTable, Styled
from pgpu.functions.api import dump_declaration, parse_declaration
from pgpu.model import ColdStart, Function, Replica, ReplicaState, Share, Version, VersionState


def function(**words: object) -> Function:
    declaration = json.dumps(dump_declaration(parse_declaration(words)))
    version = Version("it", 1, 0, "app.py:It", "0", declaration, "process", None, None, VersionState.READY, None, 0.0)
    return Function("it", 0, 0.0, (version,), (Share(1, 100),))


def replicas(*states: ReplicaState) -> list[Replica]:
    return [Replica(str(number), "it", 1, "/run/x", state) for number, state in enumerate(states)]


def column(table: PlainTable, place: int) -> list[str]:
    cells = [row[place] for row in table.rows]
    return [cell.text if isinstance(cell, Styled) else cell for cell in cells]


def cells(place: int, *states: ReplicaState) -> str:
    return column(of_versions(function(), replicas(*states), ()), place)[0]


def test_what_is_declared_has_its_units() -> None:
    declared = of_versions(
        function(memory="2GiB", compute="25%", timeout="90s", scale_to_zero_after=0.5, max_body="10MiB"), (), ()
    )
    (shown,) = column(declared, 5)
    assert set(shown.split(", ")) == {
        "memory 2 GiB", "compute 25%", "timeout 1m 30s", "scale_to_zero_after 0.5s", "max_body 10 MiB", "gpus 1"
    }  # fmt: skip


def test_a_version_of_which_nothing_comes_up_is_failing_and_says_where_to_look() -> None:
    assert cells(2, ReplicaState.FAILED, ReplicaState.FAILED) == "failing"
    assert cells(6, ReplicaState.FAILED) == "it does not start: pgpu logs it"
    assert cells(2, ReplicaState.FAILED, ReplicaState.HOT) == cells(2) == "ready"
    assert cells(6, ReplicaState.HOT) == ""
    (shown,) = column(of_functions([(function(), replicas(ReplicaState.FAILED))], ()), 2)
    assert shown == "failing"


def test_every_state_of_a_replica_is_in_the_published_schema() -> None:
    schema = files("pgpu.cli") / "schemas" / "functions.schema.json"
    assert all(f'"{state}"' in schema.read_text("utf-8") for state in ReplicaState)


def test_phases_of_starts_and_wakes_stand_in_their_order() -> None:
    cold = ColdStart("it", 1, "a", 0.0, (("grant", 0.1), ("runtime", 0.2), ("constructor", 0.3), ("first_call", 0.4)))
    woken = ColdStart("it", 1, "a", 1.0, (("grant", 0.1), ("restore", 0.2), ("constructor", 0.0), ("first_call", 0.4)))
    headers = of_starts([woken, cold], ()).columns
    assert list(headers[3:]) == ["GRANT", "RUNTIME", "RESTORE", "CONSTRUCTOR", "FIRST CALL"]


def test_simulated_gpus_of_the_server_stand_above_every_table() -> None:
    models = ["NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB HBM3"]
    for table in (of_functions([(function(), ())], models), of_versions(function(), (), models), of_starts([], models)):
        assert next(table.lines()) == "simulated GPUs (NVIDIA H100 80GB HBM3): kernels compute nothing"
    assert of_functions([(function(), ())], ()).heading is None
