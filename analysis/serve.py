"""`python -m analysis --serve PORT`: the page on loopback, built anew while runs go on, with the logs it links to.

The address has a token, as other users of the machine can reach loopback too. Nothing but the page and these logs is
served. Two buttons on it stop or retry a sweep or run of the page, by `python -m sweeps`, as the user who serves it.
"""

import hmac
import html
import math
import os
import secrets
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from rlvr.ledger import terminal

LEAST_WAIT = 20.0  # seconds between two builds
SHARE = 0.1  # of the time, at most, that builds take: runs need the cores
LOG_BYTES = 1 << 20  # of a log its end is shown
PLACE = "reports/live/index.html"  # two folders below the home, so that the page's links to logs are right
ACT = "act"  # where the buttons lead
ACTIONS = {"cancel": "Stop", "retry": "Retry"}  # commands of `python -m sweeps`
LONGEST_FORM = 1 << 10  # bytes
STARTING_S = 60.0  # after a button the page is built anew at least for so long: runs take a moment to begin
ACT_S = 20.0  # how long an answer waits for a command; a retry goes on for as long as its runs


@dataclass(frozen=True)
class Built:
    """A page. logs: the files it links to, by their path relative to the home; live: whether some run goes on; names:
    by id what may be stopped and retried, in words."""

    page: bytes
    logs: Mapping[str, Path]
    live: bool
    names: Mapping[str, str] = field(default_factory=dict[str, str])


class Site:
    """What is served below `/<token>/`. build: makes the page; it is called again, when asked for, while runs go on.
    act: carries out a command on a sweep or run, and returns what is said of it."""

    def __init__(self, build: Callable[[], Built], act: Callable[[str, str], str]) -> None:
        self.token = secrets.token_urlsafe(16)
        self._build, self._act, self._lock = build, act, threading.Lock()
        self._said, self._fault = "", ""  # of the last command, and of the last build, if it failed
        self._live_until = -math.inf
        self._built, self._next = self._timed()

    def answer(self, path: str, host: str) -> tuple[int, str, bytes]:
        """(status, content type, body). host: of the request: other names than loopback's come from foreign pages."""
        place = self._place(path, host)
        if place is None:
            return 403, "text/plain", b"Open the whole address that `python -m analysis --serve` printed.\n"
        if place == PLACE:
            return 200, "text/html", self._page()
        log = self._built.logs.get(place)
        if log is None or not log.is_file():
            return 404, "text/plain", b"There is no such page.\n"
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - LOG_BYTES))
            return 200, "text/plain", file.read()

    def act(self, path: str, host: str, origin: str, form: str) -> int:
        """The status of an answer to a button. origin: of the page that has it: no other page may press it."""
        if self._place(path, host) != ACT or origin != f"http://{host}":
            return 403
        typed = {name: values[0] for name, values in parse_qs(form).items()}
        action, name = typed.get("do", ""), typed.get("name", "")
        if action not in ACTIONS or name not in self._built.names:
            return 400
        said = self._act(action, name)
        with self._lock:
            self._said, self._next, self._live_until = said, 0.0, time.monotonic() + STARTING_S
        return 303

    def _place(self, path: str, host: str) -> str | None:
        """What is asked for, below the token; None without the token, or from a page that is none of ours."""
        _, token, *rest = (*path.split("/", 2), "")
        is_here = host.rpartition(":")[0] in ("127.0.0.1", "localhost")
        return rest[0] if is_here and hmac.compare_digest(token.encode(), self.token.encode()) else None

    @property
    def _live(self) -> bool:
        """Whether the page changes: some run goes on, or may begin after a button."""
        return self._built.live or time.monotonic() < self._live_until

    def _page(self) -> bytes:
        with self._lock:
            if self._live and time.monotonic() >= self._next:
                self._fault = ""
                try:
                    self._built, self._next = self._timed()
                except (LookupError, OSError) as error:
                    if isinstance(error, KeyError | IndexError):  # a defect: keep its traceback
                        raise
                    self._fault, self._next = f"As of before: {terminal.one_line(error)}", time.monotonic() + LEAST_WAIT
            page = self._built.page.replace(b"<body>", b"<body>" + self._buttons(), 1)
            page = page.replace(b"form-action 'none'", b"form-action 'self'", 1)
            if not self._live:
                return page
            wait = max(1, round(self._next - time.monotonic()))
            return page.replace(b"<head>", b'<head><meta http-equiv="refresh" content="%d">' % wait, 1)

    def _buttons(self) -> bytes:
        """The form that stops or retries, above the page."""
        options = [
            f'<option value="{html.escape(i)}">{html.escape(text)}</option>' for i, text in self._built.names.items()
        ]
        if not options:
            return b""
        sure = "onclick=\"return confirm(this.textContent + '?')\""
        buttons = [f'<button name="do" value="{action}" {sure}>{label}</button>' for action, label in ACTIONS.items()]
        style = "padding:0 0 1rem;font:.875rem system-ui;display:flex;gap:.5rem;align-items:center;flex-wrap:wrap"
        said = f"<output>{html.escape(self._fault or self._said)}</output>"
        chosen = f'<select name="name" aria-label="sweep or run">{"".join(options)}</select>'
        inside = "".join([chosen, *buttons, said])
        return f'<form method="post" action="/{self.token}/{ACT}" style="{style}">{inside}</form>'.encode()

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
            self._send(status, kind, body)

        def do_POST(self) -> None:
            length = self.headers.get("Content-Length", "")
            if not length.isdecimal() or int(length) > LONGEST_FORM:
                self._send(400, "text/plain", b"")
                return
            form = self.rfile.read(int(length)).decode(errors="replace")
            status = site.act(self.path, self.headers.get("Host", ""), self.headers.get("Origin", ""), form)
            self._send(status, "text/plain", b"")

        def _send(self, status: int, kind: str, body: bytes) -> None:
            self.send_response(status)
            for name, value in (
                ("Content-Type", f"{kind}; charset=utf-8"),
                ("Content-Length", str(len(body))),
                ("Cache-Control", "no-store"),
                ("Referrer-Policy", "same-origin"),  # the address is the key; without any, buttons would have no origin
                ("X-Content-Type-Options", "nosniff"),
                *([("Location", f"/{site.token}/{PLACE}")] if status == 303 else []),
            ):
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            del format, args  # a line for each request would hide the address

    return ThreadingHTTPServer(("127.0.0.1", port), Handler)


def sweeps_process(words: Sequence[str], **options: Any) -> subprocess.Popen[str]:
    """Start `python -m sweeps` with these words, beyond the life of this process: nothing here imports it."""
    root = Path(__file__).resolve().parents[1]
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "sweeps", *words],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])},
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        text=True,
        **options,
    )


def actions(home: Path) -> Callable[[str, str], str]:
    """What carries out the commands of buttons, for the sweeps and runs of a home."""

    def act(action: str, name: str) -> str:
        with tempfile.TemporaryFile("w+") as output:  # no pipe: a retry writes to it after this process
            process = sweeps_process([action, name, "--home", str(home)], stdout=output, stderr=subprocess.STDOUT)
            try:
                process.wait(ACT_S)
            except subprocess.TimeoutExpired:
                return f"{ACTIONS[action]} {name}: at work."
            output.seek(0)
            return output.read(LONGEST_FORM).strip() or f"{ACTIONS[action]} {name}: exit code {process.returncode}."

    return act


def serve(build: Callable[[], Built], port: int, home: Path) -> None:
    """Serve until interrupted. Raises LookupError for a port that is taken."""
    site = Site(build, actions(home))
    try:
        running = server(site, port)
    except OSError as error:
        raise LookupError(f"--serve {port}: {terminal.one_line(error)}. Type another port.") from None
    print(f"http://127.0.0.1:{running.server_port}/{site.token}/{PLACE}   (Ctrl-C ends it)", flush=True)
    with running:
        running.serve_forever()
