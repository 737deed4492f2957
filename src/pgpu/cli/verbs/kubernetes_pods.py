"""What `ps --kubernetes` lists: containers of this node's pods that have slices."""

from pgpu.cli.output import console, documents
from pgpu.kubernetes.driver_client import shares_at


def list_pods(driver: str, *, as_json: bool) -> None:
    """Print which container has which slice, as the node's driver tells it.

    Args:
        driver: HOST:PORT of its metrics.
        as_json: Whether for programs.

    Raises:
        RequestError: That is no address.
        NodeError: No driver answers there, or the kubelet does not.
    """
    seen = shares_at(driver)
    if as_json:
        console.print_json(documents.of_pods(seen))
        return
    from pgpu.cli.output import pods

    console.print_table(pods.table_of(seen))
