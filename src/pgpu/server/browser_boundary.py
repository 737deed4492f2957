"""What a page in a browser may ask of this server: the dashboard alone, where the kernel identifies the user.

A port that `ssh -L` forwards to the Unix socket is open to every page in that user's browser, and all its requests are that user's. Browsers
mark them with `Origin` or `Sec-Fetch-Site`, so the API refuses requests with either, WebSockets included; by the `Host` it refuses those of
DNS rebinding. Over TCP the API takes tokens alone, which no browser adds by itself.
"""

import asyncio

from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pgpu.errors import AccessError
from pgpu.server.page_requests import is_clients_host, is_of_a_page
from pgpu.server.peer_credentials import ABORT_KEY, STATE_KEY
from pgpu.server.responses import bug_response, error_response

DASHBOARD_PATH = "/dashboard"

_PAGE_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; connect-src 'self';"
        " worker-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Of all answers below `DASHBOARD_PATH`, errors and bugs included: a page that loads nothing from elsewhere and cannot be framed."""


class BrowserBoundary:
    """ASGI middleware: refuses pages' requests for the API on the Unix socket; adds headers and a time limit to the dashboard's answers."""

    def __init__(self, app: ASGIApp, send_seconds: float = 60.0) -> None:
        """Wrap an application.

        Args:
            app: The application.
            send_seconds: Time limit for a part of an answer; then the connection of a client that does not read is aborted.
        """
        self._app, self._send_seconds = app, send_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        has_begun = False

        async def send_page(message: Message) -> None:
            nonlocal has_begun
            if message["type"] == "http.response.start":
                has_begun = True
                MutableHeaders(scope=message).update(_PAGE_HEADERS)
            try:
                async with asyncio.timeout(self._send_seconds):
                    await send(message)
            except TimeoutError:
                # Not only closed, which would send the buffer first. uvicorn reports the disconnect, which ends the answer.
                scope["state"][ABORT_KEY]()

        if scope["type"] not in {"http", "websocket"}:
            await self._app(scope, receive, send)
        elif f"{scope['path']}/".startswith(f"{DASHBOARD_PATH}/"):
            try:
                await self._app(scope, receive, send_page)
            except (
                Exception
            ):  # a bug: Starlette logs it, and would answer from outside of this middleware, without the headers
                if scope["type"] == "http" and not has_begun:
                    await bug_response(scope)(scope, receive, send_page)
                raise
        else:
            try:
                _check_client(HTTPConnection(scope))
            except AccessError as exc:
                await error_response(exc)(scope, receive, send)
                return
            await self._app(scope, receive, send)


def _check_client(connection: HTTPConnection) -> None:
    """Refuse a page's request for the API on the Unix socket."""
    if connection.scope.get("state", {}).get(STATE_KEY) is None:
        return
    if is_of_a_page(connection.headers):
        raise AccessError("the API takes no requests of web pages on the Unix socket", hint="use a token over TCP")
    check_host(connection)


def check_origin(connection: HTTPConnection) -> None:
    """Refuse a request for the dashboard that a page of another site made.

    Raises:
        AccessError: It is refused.
    """
    host, origin = connection.headers.get("host", ""), connection.headers.get("origin")
    site = connection.headers.get("sec-fetch-site", "none")
    if site not in {"same-origin", "none"} or origin not in {None, f"http://{host}", f"https://{host}"}:
        raise AccessError("the request was made by a page of another site", hint="open the dashboard itself")


def check_host(connection: HTTPConnection) -> None:
    """Refuse a request whose Host another site may have chosen, unless it is of a client of the Unix socket.

    Without cookie and token, DNS rebinding would let a page of that site read the answers.

    Raises:
        AccessError: It is refused.
    """
    if not is_clients_host(connection.headers):
        host = connection.headers.get("host", "")
        raise AccessError(f"pgpu does not answer to the name {host!r} here", hint="use http://127.0.0.1 or localhost")
