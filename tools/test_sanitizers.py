"""Run the native tests over C libraries built with sanitizers (`make test-sanitizers`).

Each kind of sanitizer has a build folder of its own. The sanitizer's run-time library is preloaded into every client,
since Python is not built with it. A report ends its process with an exit code of its own and is written to a file, so
that no report is lost in a client that a test expects to die.
"""

import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parent.parent
BIN = Path(sys.executable).parent
KINDS = {
    "asan": ("address,undefined", ("libasan.so", "libubsan.so")),
    "tsan": ("thread", ("libtsan.so",)),
}
LEFT_OUT = {
    "test_cuda_facts.py": "reads tables; runs no C library",
    "test_drivers_differ.py": "thousands of calls of forked processes, which take minutes there; `make test` runs it",
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

OF_ONE_THREAD = ("test_guard", "test_monitor", "test_oci")
"""Native tests of programs with one thread each, which cannot have a data race: TSan leaves them out."""

EXIT_CODE = 99
_LINGER_MS = 100
"""How long an ending process waits for its threads; with TSan's default of one second this run would mostly wait."""


def main() -> int:
    """Run the kinds on the command line, or all; 1 if a test failed or a sanitizer reported something."""
    # Beside each other, since half of the tests mostly wait.
    with ThreadPoolExecutor() as pool:
        return max(pool.map(run_kind, sys.argv[1:] or list(KINDS)))


def run_kind(kind: str) -> int:
    """Build, test, and print all reports."""
    sanitizers, runtimes = KINDS[kind]
    build = ROOT / "build" / kind
    build_all(build, sanitizers)
    with tempfile.TemporaryDirectory(prefix="pgpu-sanitizers-") as reports:
        done = test(kind, build, runtimes, Path(reports) / "report")
        found = [report.read_text("utf-8", "replace") for report in sorted(Path(reports).iterdir())]
    outcome = "passed" if done.returncode == 0 else "failed"
    print(done.stdout, *found, f"{kind}: {len(found)} reports, tests {outcome}", sep="\n")
    return 1 if done.returncode or found else 0


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


def test(kind: str, build: Path, runtimes: tuple[str, ...], report: Path) -> subprocess.CompletedProcess[str]:
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
    # One more worker than cores, since many tests wait.
    words = ["-q", "-p", "no:cacheprovider", "-n", str((os.cpu_count() or 1) + 1), "--dist", "loadfile"]
    command: list[str | Path] = [BIN / "pytest", *words, *left_in(kind)]
    return subprocess.run(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )


def left_in(kind: str) -> list[Path]:
    """List the test files to run; exits if a file in LEFT_OUT does not exist."""
    found = {path.name: path for path in sorted((ROOT / "tests" / "native").glob("test_*.py"))}
    if gone := LEFT_OUT.keys() - found.keys():
        raise SystemExit(f"no such test: {', '.join(sorted(gone))}")
    apart = OF_ONE_THREAD if kind == "tsan" else ()
    return [path for name, path in found.items() if name not in LEFT_OUT and not name.startswith(apart)]


def runtime_path(name: str) -> str:
    """Return the path of a sanitizer's run-time library in the compiler's installation."""
    found = subprocess.run(["cc", f"-print-file-name={name}"], capture_output=True, text=True, check=True)
    return found.stdout.strip()


if __name__ == "__main__":
    raise SystemExit(main())
