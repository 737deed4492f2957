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


def main() -> None:
    """Serve until a signal or the end of the parent.

    Raises:
        PgpuError: The server's address is invalid, or a socket cannot be created.
    """
    parser = argparse.ArgumentParser(prog="pgpu.functions.gateway", description="The HTTP entrance to functions.")
    parser.add_argument("--server", required=True, help="address of the server, as PGPU_HOST")
    parser.add_argument("--socket", type=Path, required=True, help="path of the gateway's Unix socket")
    parser.add_argument("--state", type=Path, required=True, help="directory of asynchronous calls")
    parser.add_argument("--listen", type=parse_address, help="HOST:PORT for callers with a token")
    parser.add_argument("--parent", type=int, help="descriptor that becomes readable when the parent ends")
    parser.add_argument("--build-seconds", type=float, default=BUILD_SECONDS, help="limit for installing packages")
    options = parser.parse_args()
    address = address_of(options.server)
    if address is None:
        raise RequestError(f"{options.server} is no address of a server")
    server = HttpTransport(address)
    control_plane = HttpControlPlane(
        HttpFunctions(server),
        HttpClient(server),
        options.build_seconds,
        lambda: shutil.disk_usage(options.state.parent).free,
    )
    run(control_plane, GatewaySettings(options.socket, options.listen, options.state, options.parent))


if __name__ == "__main__":
    try:
        main()
    except PgpuError as error:
        sys.exit(f"pgpu: {error}")
    # Everything is written. A normal exit would join the threads that still wait for a server that has ended.
    os._exit(0)
