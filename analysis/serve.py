"""`python -m analysis --serve PORT`: the page on loopback, built anew while runs go on, with the logs it links to.

The address has a token, as other users of the machine can reach loopback too. Nothing but the page and these logs is
served, and nothing can be changed.
"""

from __future__ import annotations

import hmac
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from rlvr.ledger import terminal

LEAST_WAIT = 20.0  # seconds between two builds
SHARE = 0.1  # of the time, at most, that builds take: runs need the cores
LOG_BYTES = 1 << 20  # of a log its end is shown
PLACE = "reports/live/index.html"  # two folders below the home, so that the page's links to logs are right


@dataclass(frozen=True)
class Built:
    """A page. logs: the files it links to, by their path relative to the home; live: whether some run goes on."""

    page: bytes
    logs: Mapping[str, Path]
    live: bool


class Site:
    """What is served below `/<token>/`. build: makes the page; it is called again, when asked for, while runs go on."""

    def __init__(self, build: Callable[[], Built]) -> None:
        self.token = secrets.token_urlsafe(16)
        self._build, self._lock = build, threading.Lock()
        self._built, self._next = self._timed()

    def answer(self, path: str, host: str) -> tuple[int, str, bytes]:
        """(status, content type, body). host: of the request: other names than loopback's come from foreign pages."""
        _, token, *rest = (*path.split("/", 2), "")
        if host.rpartition(":")[0] not in ("127.0.0.1", "localhost") or not hmac.compare_digest(
            token.encode(), self.token.encode()
        ):
            return 403, "text/plain", b"Open the whole address that `python -m analysis --serve` printed.\n"
        if rest[0] == PLACE:
            return 200, "text/html", self._page()
        log = self._built.logs.get(rest[0])
        if log is None or not log.is_file():
            return 404, "text/plain", b"There is no such page.\n"
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - LOG_BYTES))
            return 200, "text/plain", file.read()

    def _page(self) -> bytes:
        with self._lock:
            if self._built.live and time.monotonic() >= self._next:
                self._built, self._next = self._timed()
            if not self._built.live:
                return self._built.page
            wait = max(1, round(self._next - time.monotonic()))
            return self._built.page.replace(b"<head>", b'<head><meta http-equiv="refresh" content="%d">' % wait, 1)

    def _timed(self) -> tuple[Built, float]:
        began = time.monotonic()
        built = self._build()
        ended = time.monotonic()
        return built, ended + max(LEAST_WAIT, (ended - began) / SHARE)


def server(site: Site, port: int) -> ThreadingHTTPServer:
    """A server of the site on loopback. port: 0 for a free one."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, kind, body = site.answer(self.path, self.headers.get("Host", ""))
            self.send_response(status)
            for name, value in (
                ("Content-Type", f"{kind}; charset=utf-8"),
                ("Content-Length", str(len(body))),
                ("Cache-Control", "no-store"),
                ("Referrer-Policy", "no-referrer"),  # the address is the key
                ("X-Content-Type-Options", "nosniff"),
            ):
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            del format, args  # a line for each request would hide the address

    return ThreadingHTTPServer(("127.0.0.1", port), Handler)


def serve(build: Callable[[], Built], port: int) -> None:
    """Serve until interrupted. Raises LookupError for a port that is taken."""
    site = Site(build)
    try:
        running = server(site, port)
    except OSError as error:
        raise LookupError(f"--serve {port}: {terminal.one_line(error)}. Type another port.") from None
    print(f"http://127.0.0.1:{running.server_port}/{site.token}/{PLACE}   (Ctrl-C ends it)", flush=True)
    with running:
        running.serve_forever()
