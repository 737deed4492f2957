"""`python -m pgpu.functions.gateway`: the process of the gateway.

`--server unix:///PATH --socket PATH --state DIR [--listen HOST:PORT] [--parent FD] [--build-seconds N]`
"""

import argparse
import os
import shutil
import sys
from pathlib import Path

from pgpu.client.address import address_of
from pgpu.client.http_client import HttpClient
from pgpu.client.http_transport import HttpTransport
from pgpu.client.remote_service import HttpFunctions
from pgpu.errors import PgpuError, RequestError
from pgpu.functions.control.control_plane import BUILD_SECONDS, HttpControlPlane
from pgpu.functions.gateway.gateway_server import GatewaySettings, run
from pgpu.functions.ipc.local_sockets import parse_address


def _parse(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="pgpu.functions.gateway", description="The HTTP entrance to functions.")
    parser.add_argument("--server", required=True, help="address of the server, as PGPU_HOST")
    parser.add_argument("--socket", type=Path, required=True, help="path of the gateway's Unix socket")
    parser.add_argument("--state", type=Path, required=True, help="directory of asynchronous calls")
    parser.add_argument("--listen", type=parse_address, help="HOST:PORT for callers with a token")
    parser.add_argument("--parent", type=int, help="descriptor that becomes readable when the parent ends")
    parser.add_argument("--build-seconds", type=float, default=BUILD_SECONDS, help="limit for installing packages")
    return parser.parse_args(words)


def _control_plane(host: str, build_seconds: float, state: Path) -> HttpControlPlane:
    address = address_of(host)
    if address is None:
        raise RequestError(f"{host} is no address of a server")
    server = HttpTransport(address)
    return HttpControlPlane(
        HttpFunctions(server), HttpClient(server), build_seconds, lambda: shutil.disk_usage(state.parent).free
    )


if __name__ == "__main__":
    options = _parse(sys.argv[1:])
    try:
        run(
            _control_plane(options.server, options.build_seconds, options.state),
            GatewaySettings(options.socket, options.listen, options.state, options.parent),
        )
    except PgpuError as error:
        sys.exit(f"pgpu: {error}")
    os._exit(0)  # everything is written; a normal exit would wait for threads that still call a server that has ended
