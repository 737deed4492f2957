"""A gateway over the fake control plane: `gateway.py ROOT`; its socket is ROOT/functions.sock."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))


def main() -> None:
    from tests.fakes.control_plane import FakeControlPlane  # noqa: PLC0415 - after the path is set

    from pgpu.functions.gateway.gateway_server import GatewaySettings, run  # noqa: PLC0415 - likewise

    root = Path(sys.argv[1])
    address = ("127.0.0.1", int(sys.argv[2])) if len(sys.argv) > 2 else None
    run(FakeControlPlane(root), GatewaySettings(root / "functions.sock", address, root))


if __name__ == "__main__":
    main()
