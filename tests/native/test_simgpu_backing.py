"""`PGPU_SIMGPU_BACKING=none`: allocations count as ever, and nothing is behind them."""

from tests.slice_world import SliceWorld

_WRITE_AND_READ = """
cu.begin()
pointer, data = cu.alloc(256 * MIB), create_string_buffer(b"x" * MIB)
for offset in range(256):
    cu.call("cuMemcpyHtoD_v2", c_uint64(pointer + offset * MIB), data, c_size_t(MIB))
back = create_string_buffer(1)
cu.call("cuMemcpyDtoH_v2", back, c_uint64(pointer + 5), c_size_t(1))
with open("/proc/self/status") as file:
    held = {line.split(":")[0]: int(line.split()[1]) for line in file if line.startswith(("VmRSS", "VmSize"))}
print(json.dumps([back.raw.decode("latin-1"), held["VmRSS"] // 1024, cu.held() // MIB]))
"""


def test_copies_move_nothing_and_take_no_memory_of_the_host(one_gib: SliceWorld) -> None:
    read, resident_mib, counted_mib = one_gib.answer(_WRITE_AND_READ)
    one_gib.environment["PGPU_SIMGPU_BACKING"] = "none"
    unbacked, unbacked_mib, unbacked_counted_mib = one_gib.answer(_WRITE_AND_READ)
    assert (read, unbacked) == ("x", "\0")
    assert resident_mib - unbacked_mib >= 200
    assert unbacked_counted_mib == counted_mib
