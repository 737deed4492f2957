"""What the tests of functions in real containers share: users who deploy and call, replicas without a gateway, and bundles of one file."""

import http.client
import io
import json
import os
import pickle
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from tests.system.user_world import User
from tests.waiting import until

from pgpu.client import Client
from pgpu.client.address import UnixAddress
from pgpu.client.http_transport import HttpTransport
from pgpu.client.remote_service import HttpFunctions
from pgpu.errors import PgpuError, RequestError
from pgpu.functions.deploy.source_bundle import pack_tree
from pgpu.model import Deployment, Replica
from pgpu.services.messages import ReplicaAsk
from pgpu.structs import replace

T = TypeVar("T")


def as_user(user: User, act: Callable[[HttpFunctions], T]) -> T:
    """Ask in a process that is this user's, as the kernel tells the server."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups(user.groups)
            os.setresgid(user.uid, user.uid, user.uid)
            os.setresuid(user.uid, user.uid, user.uid)
            told: object = act(HttpFunctions(HttpTransport(UnixAddress(user.socket))))
        except PgpuError as exc:
            told = RequestError(str(exc), hint=exc.hint)
        os.write(writing, pickle.dumps(told))
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        told = pickle.loads(pipe.read())
    os.waitpid(child, 0)
    if isinstance(told, RequestError):
        raise told
    return told  # type: ignore[return-value] # what `act` returned


def asked(image: str, name: str, directory: Path, app: str, /, **words: Any) -> tuple[Deployment, io.BytesIO]:
    """Pack a directory with this code in it; `words` are more of the deployment."""
    directory.mkdir(exist_ok=True)
    (directory / "app.py").write_text(app)
    bundle = io.BytesIO()
    packed = pack_tree(directory, bundle)
    bundle.seek(0)
    return replace(Deployment(name, "app.py:Prisoner", packed.digest, "{}", "docker", image), **words), bundle


def ask(replica: Replica, method: str, path: str, body: bytes | None = None) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("localhost")
    with socket.socket(socket.AF_UNIX) as ours:
        ours.connect(f"{replica.socket_directory}/http.sock")
        connection.sock = ours
        connection.request(method, path, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())


def is_ready(replica: Replica) -> bool:
    try:
        return ask(replica, "GET", "/readyz")[0] == 200
    except OSError:
        return False


def started(root: HttpFunctions, client: Client, wanted: ReplicaAsk) -> Replica:
    replica = root.start_replica(wanted)
    until(lambda: is_ready(replica) or client.job(replica.job_id).job.state.is_final)
    assert is_ready(replica), (client.job(replica.job_id).job.error, *client.logs(replica.job_id, follow=False))
    return replica


def ends(client: Client, root: HttpFunctions, owner: User, replica: Replica) -> None:
    assert as_user(owner, lambda functions: functions.undeploy(replica.function)) == (replica.job_id,)
    until(lambda: client.job(replica.job_id).job.state.is_final)
    root.forget_replica(replica.job_id)
    assert not Path(replica.socket_directory).exists()
