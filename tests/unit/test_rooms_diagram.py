import tomllib

from tools import generate_rooms


def test_the_rooms_of_the_architecture_are_drawn_from_the_contracts() -> None:
    page = generate_rooms.PAGE.read_text("utf-8")
    assert generate_rooms.drawn(page) == page, "run tools/generate_rooms.py"


def test_every_layers_contract_has_its_diagram() -> None:
    settings = tomllib.loads((generate_rooms.ROOT / "pyproject.toml").read_text("utf-8"))
    containers = [
        container
        for contract in settings["tool"]["importlinter"]["contracts"]
        if contract["type"] == "layers"
        for container in contract["containers"]
    ]
    page = generate_rooms.PAGE.read_text("utf-8")
    assert [each for each in containers if f"<!-- rooms of {each}:" not in page] == []


def test_a_diagram_that_is_not_current_is_drawn_again() -> None:
    stale = "<!-- rooms of pgpu: written by tools/generate_rooms.py -->\nold\n<!-- end -->"
    found = generate_rooms.drawn(stale)
    assert "old" not in found
    assert "block-beta" in found
    assert "scheduling" in found
