"""Run the native tests over C libraries built with sanitizers (`make test-sanitizers`).

Each kind of sanitizer has a build folder of its own. The sanitizer's run-time library is preloaded into every client,
since Python is not built with it. A report ends its process with an exit code of its own and is written to a file, so
that no report is lost in a client that a test expects to die.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
BIN = Path(sys.executable).parent
KINDS = {
    "asan": ("address,undefined", ("libasan.so", "libubsan.so")),
    "tsan": ("thread", ("libtsan.so",)),
}
LEFT_OUT = {
    "test_cuda_facts.py": "reads tables; runs no C library",
    "test_fuzz_readers.py": "has sanitizers in every build",
    "test_monitor_seccomp.py": "builds with sanitizers have no filter; `make test` runs it",
    "test_nvml_layout.py": "compiles against NVIDIA's header; runs no C library",
    "test_program_answers.py": "compiles the workloads' kernels for the host; runs no C library",
    "test_real_clients.py": "its clients are foreign programs; `make test` runs them",
    "test_shim_hooks.py": "reads tables and symbols; runs no C library",
    "test_shim_usage_file.py": "its process must die by SIGBUS, which a sanitizer reports",
    "test_workload_kernels.py": "reads PTX; runs no C library",
    "test_workloads.py": "Python's workloads; `make test` runs them",
}
"""Native tests that do not run under sanitizers, each with its reason."""

EXIT_CODE = 99
_LINGER_MS = 100
"""How long an ending process waits for its threads; with TSan's default of one second this run would mostly wait."""


def main() -> int:
    """Run the kinds on the command line, or all; 1 if a test failed or a sanitizer reported something."""
    kinds = sys.argv[1:] or list(KINDS)
    return max([run_kind(kind) for kind in kinds])


def run_kind(kind: str) -> int:
    """Build, test, and print all reports."""
    sanitizers, runtimes = KINDS[kind]
    build = ROOT / "build" / kind
    build_all(build, sanitizers)
    with tempfile.TemporaryDirectory(prefix="pgpu-sanitizers-") as reports:
        code = test(build, runtimes, Path(reports) / "report")
        found = sorted(Path(reports).iterdir())
        for report in found:
            print(report.read_text("utf-8", "replace"))
    print(f"{kind}: {len(found)} reports, tests {'passed' if code == 0 else 'failed'}")
    return 1 if code or found else 0


def build_all(build: Path, sanitizers: str) -> None:
    """Configure and build; the libraries are installed into a folder of the build."""
    configure: list[str | Path] = [
        BIN / "cmake",
        "-S",
        ROOT,
        "-B",
        build,
        "-G",
        "Ninja",
        f"-DCMAKE_MAKE_PROGRAM={BIN / 'ninja'}",
    ]
    run([*configure, "-DPGPU_BUILD_TESTS=ON", f"-DPGPU_SANITIZE={sanitizers}"])
    run([BIN / "cmake", "--build", build, "-j", str(os.cpu_count())])
    run([BIN / "cmake", "--install", build, "--component", "pgpu", "--prefix", build / "installed"])


def run(command: list[str | Path]) -> None:
    """Run a command; exit with its whole output if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(done.stdout + done.stderr)


def test(build: Path, runtimes: tuple[str, ...], report: Path) -> int:
    """Run the native tests; environment variables select the build."""
    options = f"exitcode={EXIT_CODE}:log_path={report}"
    environment = {
        **os.environ,
        "PGPU_BUILD_DIR": str(build),
        "PGPU_NATIVE_DIR": str(build / "installed"),
        "PGPU_TEST_PRELOAD": ":".join(map(runtime_path, runtimes)),
        "ASAN_OPTIONS": f"{options}:detect_leaks=0:verify_asan_link_order=0",
        "UBSAN_OPTIONS": f"log_path={report}:print_stacktrace=1:halt_on_error=1",
        "TSAN_OPTIONS": f"{options}:halt_on_error=0:report_signal_unsafe=1:ignore_noninstrumented_modules=1"
        f":atexit_sleep_ms={_LINGER_MS}",
    }
    # Whole files, so that shared fixtures are made once; the workers share no slice and no simulated GPU.
    # Two more workers than cores, since many tests wait.
    words = ["-q", "-n", str((os.cpu_count() or 1) + 2), "--dist", "loadfile"]
    return subprocess.run([BIN / "pytest", *words, *left_in()], cwd=ROOT, env=environment, check=False).returncode


def left_in() -> list[Path]:
    """List the test files to run; exits if a file in LEFT_OUT does not exist."""
    found = {path.name: path for path in sorted((ROOT / "tests" / "native").glob("test_*.py"))}
    if gone := LEFT_OUT.keys() - found.keys():
        raise SystemExit(f"no such test: {', '.join(sorted(gone))}")
    return [path for name, path in found.items() if name not in LEFT_OUT]


def runtime_path(name: str) -> str:
    """Return the path of a sanitizer's run-time library in the compiler's installation."""
    found = subprocess.run(["cc", f"-print-file-name={name}"], capture_output=True, text=True, check=True)
    return found.stdout.strip()


if __name__ == "__main__":
    raise SystemExit(main())
