"""A Hub on this machine: enough of its HTTP API to make repositories, to commit files, and to read them again."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote


class LoopbackHub:
    """
    A server that keeps what is committed to it in memory. A context manager. Only the last commit can be read.

    Tests run with `HF_HUB_OFFLINE=1`: set `huggingface_hub.constants.HF_HUB_OFFLINE` to `False` while it is used, and
    `huggingface_hub.constants.ENDPOINT` to its `url` where the code under test makes its own `HfApi()`.

    Args:
        token (`str`, *optional*):
            The only token that may write; anybody may if `None`.

    Attributes:
        url (`str`):
            For `HfApi(endpoint=hub.url)`.
        repos (`dict[tuple[str, str], dict[str, bytes]]`):
            Files by path, by type (`"model"`, `"dataset"`) and id of the repository.
        private (`set[tuple[str, str]]`):
            Repositories that were made private.
        commits (`list[tuple[str, str]]`):
            Id of the repository and summary of each commit.
    """

    def __init__(self, token: str | None = None):
        self.token = token
        self.repos: dict[tuple[str, str], dict[str, bytes]] = {}
        self.private: set[tuple[str, str]] = set()
        self.commits: list[tuple[str, str]] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> LoopbackHub:
        self._thread.start()
        return self

    def __exit__(self, *error) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def create(self, body: bytes) -> tuple[int, dict]:
        """Make a repository; 409 if it exists."""
        wanted = json.loads(body)
        kind, name = wanted.get("type") or "model", f"{wanted.get('organization') or 'me'}/{wanted['name']}"
        answer = {"url": self.url + ("/datasets/" if kind == "dataset" else "/") + name, "name": name, "id": name}
        if (kind, name) in self.repos:
            return 409, answer | {"error": "You already created this repo"}
        self.repos[kind, name] = {}
        if wanted.get("visibility") == "private":
            self.private.add((kind, name))
        return 200, answer

    def preupload(self, body: bytes) -> tuple[int, dict]:
        """Ask for every file inside the commit, in base64."""
        files = json.loads(body)["files"]
        return 200, {"files": [{"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in files]}

    def commit(self, repo: tuple[str, str], body: bytes) -> tuple[int, dict]:
        """Apply the operations of a commit."""
        files, summary = self.repos[repo], ""
        for line in body.splitlines():
            operation = json.loads(line)
            value = operation["value"]
            if operation["key"] == "header":
                summary = value["summary"]
            elif operation["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif operation["key"] == "deletedFile":
                del files[value["path"]]
            else:
                return 400, {"error": f"operation {operation['key']} is not supported here"}
        self.commits.append((repo[1], summary))
        return 200, {
            "commitUrl": f"{self.url}/{repo[1]}/commit/{self.sha()}",
            "commitOid": self.sha(),
            "success": True,
        }

    def info(self, repo: tuple[str, str]) -> tuple[int, dict]:
        """What a repository holds."""
        return 200, {
            "id": repo[1],
            "sha": self.sha(),
            "siblings": [{"rfilename": p} for p in sorted(self.repos[repo])],
        }

    def tree(self, repo: tuple[str, str]) -> tuple[int, list]:
        """The files of a repository, with their sizes."""
        files = sorted(self.repos[repo].items())
        return 200, [{"type": "file", "path": path, "size": len(data), "oid": etag(data)} for path, data in files]

    def file(self, path: str) -> bytes | None:
        """Content of a file by the address it is downloaded from."""
        match = re.fullmatch(r"/(datasets/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        if match is None or match[3] not in ("main", self.sha()):
            return None
        return self.repos.get(("dataset" if match[1] else "model", match[2]), {}).get(match[4])

    def sha(self) -> str:
        """Changes with every commit."""
        return hashlib.sha1(str(len(self.commits)).encode()).hexdigest()

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, dict | list]:
        """Status and JSON for a request."""
        if path == "/api/repos/create":
            return self.create(body)
        if path == "/api/validate-yaml":
            return 200, {"errors": [], "warnings": []}
        if path == "/api/whoami-v2":
            return 200, {"name": "me", "type": "user", "orgs": []}
        match = re.fullmatch(r"/api/(model|dataset)s/([^/]+/[^/]+)(?:/(preupload|commit|revision|tree)/[^/]+)?", path)
        if match is None or (match[1], match[2]) not in self.repos:
            return 404, {"error": f"{method} {path}: not found"}
        repo = (match[1], match[2])
        if method == "GET":
            return self.tree(repo) if match[3] == "tree" else self.info(repo)
        return self.preupload(body) if match[3] == "preupload" else self.commit(repo, body)


def etag(content: bytes) -> str:
    """Name of a content, as git gives it."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def _handler(hub: LoopbackHub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def respond(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if hub.token is not None and self.headers.get("Authorization") != f"Bearer {hub.token}":
                status, answer = 401, {"error": "Invalid username or password."}
            elif (data := hub.file(unquote(self.path.split("?")[0]))) is not None:
                return self.send_file(data)
            else:
                status, answer = hub.answer(self.command, self.path.split("?")[0], body)
            content = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.write(content)

        def send_file(self, data: bytes) -> None:
            self.send_response(200)
            self.send_header("ETag", f'"{etag(data)}"')
            self.send_header("X-Repo-Commit", hub.sha())
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.write(data)

        def write(self, content: bytes) -> None:
            if self.command != "HEAD":
                self.wfile.write(content)

        do_GET = do_POST = do_HEAD = respond

        def log_message(self, format: str, *values) -> None:
            """Requests are not printed."""

    return Handler
