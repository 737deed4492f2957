"""The server of `pgpu serve`: one engine, the services on it, the sockets, and the gateway as a child process.

The lock on `server.lock` in the state directory makes a process the only server.
"""

import contextlib
import gc
import importlib.util
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from pgpu.app.composition import changeable, make_engine, sweep_volumes
from pgpu.app.runtime_directory import runtime_directory
from pgpu.app.settings import NAMES, Settings
from pgpu.client.address import GATEWAY_SOCKET
from pgpu.errors import NodeError, PgpuError
from pgpu.host.audit_log import AuditLog
from pgpu.host.ownership import check_state_directory
from pgpu.structs import replace

if TYPE_CHECKING:
    from pgpu.engine.engine import Engine
    from pgpu.functions.deploy.deployer import Deployer
    from pgpu.server.listeners import Tcp
    from pgpu.services.access import AccessRules
    from pgpu.services.engine_pool import EnginePool

_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.05, 10.0
_LIVED_SECONDS = 1.0
"""A gateway that lived this long is restarted after the first pause; else the pause doubles."""

_GRACE_SECONDS = 10.0

_SWITCH_SECONDS = 0.001
"""A request takes the interpreter some ten times, and beside a long one waits so long each time; Python's default is five times this."""


FIXED = frozenset({"state_dir", "runtime_dir", "simulate", "host", "submitters", "build_timeout", "agent_unit"})
"""Settings that a server reads at its start alone. Of the others some concern only the commands and programs that read them."""


def serve(
    load: Callable[[], Settings],
    unix: Path,
    tcp: "Tcp | None",
    announce: Callable[[str], None],
    gateway: "str | None" = None,
) -> None:
    """Run the server of a state directory until SIGTERM or SIGINT; SIGHUP reloads its settings.

    Args:
        load: Reads the settings.
        unix: Path of the Unix socket.
        tcp: Address to listen on as well, or None.
        announce: Called with one line for each address that accepts requests.
        gateway: HOST:PORT for calls of functions; empty for its Unix socket alone, None for no gateway.

    Raises:
        PgpuError: An address is not free, or this machine lacks something that the settings name.
    """
    from pgpu.server import listeners
    from pgpu.server.application import create_app
    from pgpu.server.connection_limits import raise_descriptor_limit
    from pgpu.server.health import Maintenance
    from pgpu.services.engine_pool import EnginePool

    settings = load()
    usual_descriptors = raise_descriptor_limit()
    with contextlib.ExitStack() as stack:
        check_state_directory(settings.state_dir)
        # First, before a socket is replaced or the engine sweeps: a second server must change nothing.
        stack.enter_context(listeners.hold_server_lock(settings.state_dir / "server.lock"))
        engine = make_engine(settings)
        # An agent of an earlier server, or of a command, has their settings and their container engine.
        with contextlib.suppress(NodeError):  # the checks of readiness report it
            engine.agents.renew(engine.settings.gpu_model)
        gateway_supervisor = None
        if gateway is not None and _has_functions():
            socket_path, state = unix.with_name(GATEWAY_SOCKET), settings.state_dir / "functions"
            gateway_supervisor = GatewaySupervisor(unix, socket_path, state, gateway or None, settings.build_timeout)
        engines = EnginePool(
            engine, lambda model: make_engine(replace(reloader.settings, simulate=model)), is_server=True
        )
        reloader = _Reloader(load, settings, engines, announce)
        maintenance = Maintenance(engine, lambda: sweep_volumes(settings))
        # From here on clients can connect; the kernel queues them until the application accepts.
        socket = stack.enter_context(listeners.listen_unix(unix, settings.submitters))
        other = None if tcp is None else (tcp, stack.enter_context(listeners.listen_tcp(tcp)))
        app = create_app(engines, _access_rules(settings, engine, usual_descriptors), maintenance, _deployer(settings))

        def on_ready() -> None:
            if gateway_supervisor is not None:
                # Only now: the gateway connects to the socket at once. It ends before the sockets are closed.
                gateway_supervisor.start()
                stack.callback(gateway_supervisor.stop)
            announce(f"listening at unix://{unix}")
            if tcp is not None:
                scheme = "http" if tcp.certificate is None else "https"
                announce(f"listening at {scheme}://{tcp.host}:{tcp.port}")

        maintenance.start()
        gc.freeze()  # loaded modules stay for the process's life: garbage collection need not visit them
        sys.setswitchinterval(_SWITCH_SECONDS)
        try:
            most = settings.connections
            listeners.serve(app, socket, other, most_connections=most, on_ready=on_ready, on_hang_up=reloader.reload)
        finally:
            maintenance.stop()
            with contextlib.suppress(NodeError):
                engine.ledger.shrink()


class _Reloader:
    """Applies changed settings to a server that runs, and to the agents of its queues."""

    def __init__(
        self, load: Callable[[], Settings], settings: Settings, engines: "EnginePool", announce: Callable[[str], None]
    ) -> None:
        self._load, self.settings, self._engines, self._announce = load, settings, engines, announce
        self._lock = threading.Lock()

    def reload(self) -> int:
        """Read the settings and apply what changed; return the most connections of one user. Keeps all if one cannot be read."""
        with self._lock:
            try:
                fresh = self._load()
            except PgpuError as exc:
                self._announce(f"settings are kept: {exc}")
                return self.settings.connections
            changed = [name for name in NAMES if getattr(fresh, name) != getattr(self.settings, name)]
            fixed = [name for name in changed if name in FIXED]
            applied = [name for name in changed if name not in FIXED]
            self.settings = replace(fresh, **{name: getattr(self.settings, name) for name in FIXED})
            if applied:
                self._engines.apply(lambda of_engine: replace(of_engine, **changeable(self.settings)))
                self._renew_agents()
            self._announce(f"settings reloaded: {', '.join(applied) or 'none has changed'}")
            if fixed:
                self._announce(f"read at the start of a server alone: {', '.join(fixed)}; restart it")
            if changed:
                log = AuditLog(self.settings.state_dir)
                log.write("settings.reload", uid=os.getuid(), pid=os.getpid(), applied=applied, left=fixed)
            return self.settings.connections

    def _renew_agents(self) -> None:
        # An agent reads the settings at its start. Its jobs continue under the next one.
        for engine in self._engines.all():
            try:
                engine.agents.renew(engine.settings.gpu_model)
            except NodeError as exc:
                self._announce(f"the agent of the queue keeps its settings: {exc}")


def _access_rules(settings: Settings, engine: "Engine", usual_descriptors: tuple[int, int]) -> "AccessRules":
    from pgpu.services.access import AccessRules
    from pgpu.services.administration import uid_of_token

    return AccessRules(
        lambda token: uid_of_token(engine.ledger.tokens, token),
        settings.submitters,
        # For callers with a token: the limit from before the server raised its own.
        limits=(("RLIMIT_NOFILE", *usual_descriptors),),
    )


def _has_functions() -> bool:
    return all(importlib.util.find_spec(name) is not None for name in ("msgspec", "pathspec", "httptools"))


def _deployer(settings: Settings) -> "Deployer | None":
    """Return what stores and starts bundles; None without the extra `functions`."""
    if not _has_functions():
        return None
    from pgpu.functions.deploy.bundle_store import BundleStore
    from pgpu.functions.deploy.deployer import Deployer
    from pgpu.functions.deploy.secret_store import SecretStore

    runtime = runtime_directory(settings.runtime_dir, settings.state_dir)
    stored = settings.state_dir / "functions"
    return Deployer(BundleStore(stored), SecretStore(stored / "secrets"), runtime / "replicas")


class GatewaySupervisor:
    """Runs the gateway in a child process and restarts it whenever it ends.

    The child ends with the server: it reads a pipe, and only the server holds the other end open. Replicas outlive the
    gateway, and the next gateway finds them.
    """

    def __init__(self, server: Path, socket: Path, state: Path, address: str | None, build_seconds: float) -> None:
        """Prepare the command; `start` runs it.

        Args:
            server: The server's Unix socket.
            socket: The gateway's Unix socket.
            state: Directory of stored calls.
            address: HOST:PORT, or None for the socket alone.
            build_seconds: Limit for the installation of a version's packages.
        """
        words = ["--server", f"unix://{server}", "--socket", str(socket), "--state", str(state)]
        words += ["--build-seconds", str(build_seconds)]
        self._words = [*words, *(() if address is None else ("--listen", address))]
        self._ending = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._keep_running, name="gateway", daemon=True)
        # Both ends are close-on-exec: only the gateway inherits the reading end, by `pass_fds`, and no other child the
        # writing one. If this process is killed, the kernel closes the writing end and the gateway reads the end of file.
        self._life, self._held = os.pipe()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the gateway, after the calls in progress, or by SIGKILL after the grace time."""
        self._ending.set()
        # The end of the pipe is the signal to the child: it finishes the calls in progress and exits.
        os.close(self._held)
        with self._lock:
            process = self._process
        if process is not None:
            try:
                process.wait(_GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
        self._thread.join()
        os.close(self._life)

    def _keep_running(self) -> None:
        pause = _FIRST_PAUSE_SECONDS
        while not self._ending.is_set():
            began = time.monotonic()
            self._run_once()
            # A gateway with an address that is in use fails at once, again and again: the pauses grow.
            pause = _FIRST_PAUSE_SECONDS if time.monotonic() - began > _LIVED_SECONDS else pause * 2
            self._ending.wait(min(pause, _LONGEST_PAUSE_SECONDS))

    def _run_once(self) -> None:
        command = [sys.executable, "-P", "-m", "pgpu.functions.gateway", *self._words, "--parent", str(self._life)]
        # Under the lock, so that `stop` either sees the new process or prevents its start.
        with self._lock:
            if self._ending.is_set():
                return
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[self._life])
        self._process.wait()
