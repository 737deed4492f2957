"""Our own declarations of CUDA's types, and the tables of its facts, against NVIDIA's headers where they are installed."""

import re
import subprocess
from pathlib import Path

import pytest
from tools import generate_api
from tools.api import cuda
from tools.api.classification import unclassified_allocators
from tools.api.headers import Function

INCLUDE = Path(__file__).parents[2] / "native" / "include"
_STRUCT = re.compile(r"typedef (?:struct|union) \w+ \{\n(.*?)\n\} (\w+);", re.DOTALL)
_INNER = re.compile(r"^    (?:struct|union) \{.*?^    \}", re.DOTALL | re.MULTILINE)


@pytest.fixture
def headers() -> Path:
    found = generate_api.cuda_include()
    if found is None:
        pytest.skip("cuda.h is not installed (pip install --group generate)")
    return found


def _fields(body: str) -> list[str]:
    flat = _INNER.sub("    nested", body)
    declarations = [line.strip() for line in flat.replace("\n        ", " ").splitlines() if line.strip().endswith(";")]
    names = [re.findall(r"(\w+)(?:\[[^\]]*\])?(?=[,;])", line) for line in declarations]
    return [name for line in names for name in line if name != "nested"]


def _layout_program() -> str:
    lines = []
    for header in ("cuda_abi.h", "cuda_abi_graph.h"):
        for body, name in _STRUCT.findall((INCLUDE / header).read_text()):
            lines.append(f'    printf("{name} %zu\\n", sizeof({name}));')
            lines += [f'    printf("{name}.{field} %zu\\n", offsetof({name}, {field}));' for field in _fields(body)]
    return "#include <stddef.h>\n#include <stdio.h>\nint main(void) {\n" + "\n".join(lines) + "\n}\n"


def _layout(folder: Path, include: Path, header: str) -> list[str]:
    program = folder / header.replace(".", "_")
    source = f'#include "{header}"\n' + _layout_program()
    command = ["gcc", "-D__CUDA_API_VERSION_INTERNAL", f"-I{include}", "-x", "c", "-", "-o", str(program)]
    subprocess.run(command, input=source, text=True, check=True)
    return subprocess.run([str(program)], capture_output=True, text=True, check=True).stdout.splitlines()


def test_our_declarations_have_the_sizes_and_offsets_of_the_header(headers: Path, tmp_path: Path) -> None:
    ours = _layout(tmp_path, INCLUDE, "cuda_abi.h")
    assert ours == _layout(tmp_path, headers, "cuda.h")
    assert len(ours) > 300


def test_the_tables_of_cuda_are_what_the_generator_writes(headers: Path) -> None:
    stale = [path.name for path, text in generate_api.generated(headers).items() if path.read_text() != text]
    assert stale == []


def test_every_function_that_may_allocate_is_classified(headers: Path) -> None:
    found = [(export.base, export.function) for export in cuda.exports(headers)]
    assert len(found) > 600
    assert unclassified_allocators(found) == []


def test_a_new_way_to_allocate_is_noticed() -> None:
    by_result = Function("cuNewMemory", ("CUdeviceptr *", "size_t"))
    by_name = Function("cuMemAllocSomehow", ("size_t",))
    harmless = Function("cuDeviceGetWeather", ("int *",))
    found = [(function.symbol, function) for function in (by_result, by_name, harmless)]
    assert unclassified_allocators(found) == ["cuMemAllocSomehow", "cuNewMemory"]
