"""A fake of the Hugging Face hub on loopback, because tests cannot reach the real one."""

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass(frozen=True)
class Answer:
    status: int
    content: bytes
    headers: Mapping[str, str]


@contextmanager
def serving(folders: Mapping[str, Path]) -> Iterator[str]:
    """The address of a hub with these repositories: {"datasets/OWNER/DATA" or "models/OWNER/MODEL": its folder}."""
    repositories = {
        name: {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}
        for name, folder in folders.items()
    }

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer = _answer(repositories, self.path.partition("?")[0])
            self.send_response(answer.status)
            for name, value in {"Content-Length": str(len(answer.content)), **answer.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(answer.content)

        do_HEAD = do_GET

        def log_message(self, format: str, *args: object) -> None:
            """Nothing on standard error."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


def _answer(repositories: Mapping[str, Mapping[str, bytes]], path: str) -> Answer:
    for name, files in repositories.items():
        api, content_path = f"/api/{name}", f"/{name.removeprefix('models/')}/resolve/"
        if path.startswith(f"{api}/tree/"):
            folder = path.removeprefix(f"{api}/tree/").partition("/")[2]
            return _json([_entry(file, files[file]) for file in files if file.startswith(folder)])
        if path == api or path.startswith(f"{api}/revision/"):
            listed = [{"rfilename": file} for file in files]
            return _json({"id": name.partition("/")[2], "sha": COMMIT, "siblings": listed, "tags": []})
        if path.startswith(content_path):
            content = files.get(path.removeprefix(content_path).partition("/")[2])
            if content is None:
                return _error("EntryNotFound")
            etag = f'"{hashlib.sha256(content).hexdigest()}"'
            return Answer(200, content, {"X-Repo-Commit": COMMIT, "ETag": etag})
    return _error("RepoNotFound")


def _entry(file: str, content: bytes) -> dict[str, Any]:
    return {"type": "file", "path": file, "size": len(content), "oid": hashlib.sha256(content).hexdigest()}


def _json(content: object) -> Answer:
    return Answer(200, json.dumps(content).encode(), {"X-Repo-Commit": COMMIT})


def _error(code: str) -> Answer:
    return Answer(404, b"{}", {"X-Error-Code": code})
