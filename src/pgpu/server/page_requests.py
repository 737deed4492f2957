"""How requests of web pages are told from those of clients, where the kernel identifies the user and no token is asked for.

Browsers mark the requests of pages with `Origin` or `Sec-Fetch-Site`, except those to read from the page's own host, whose name DNS rebinding
may have given to this machine: so the `Host` counts as well.
Sources: fetch.spec.whatwg.org, 3.2 Origin header; w3.org/TR/fetch-metadata.
"""

import ipaddress
from collections.abc import Mapping
from urllib.parse import urlsplit

_CLIENTS_HOST = "pgpu"
"""Host of pgpu's clients on a Unix socket, and of docs/server.md."""


def is_of_a_page(headers: Mapping[str, str]) -> bool:
    """Whether a page in a browser made a request; names of headers are in lower case."""
    return "origin" in headers or "sec-fetch-site" in headers


def is_clients_host(headers: Mapping[str, str]) -> bool:
    """Whether another site cannot have chosen a request's Host: it is a loopback name, or that of clients and not from a page."""
    host = headers.get("host", "")
    if host == _CLIENTS_HOST:  # a name server may answer for a name without a dot as well
        return not is_of_a_page(headers)
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
