"""A tiny HTTP server that answers with what a test puts in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread


@dataclass
class Answers:
    """What it says at each path, and what it was asked."""

    url: str = ""
    pages: dict[str, str | Callable[[str], str]] = field(default_factory=dict)
    status: int = 200
    asked: list[tuple[str, str, str, str | None]] = field(default_factory=list)
    headers: list[list[str]] = field(default_factory=list)
    moved: dict[str, str] = field(default_factory=dict)

    @property
    def address(self) -> str:
        return self.url.removeprefix("http://")


@contextmanager
def answering(**pages: str) -> Iterator[Answers]:
    """Serve pages at `/name` each, until the block ends."""
    answers = Answers(pages={f"/{name}": text for name, text in pages.items()})

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
            answers.asked.append((self.command, self.path, body, self.headers.get("Authorization")))
            answers.headers.append(list(self.headers))
            if self.path in answers.moved:
                self.send_response(307)
                self.send_header("Location", answers.moved[self.path])
                self.end_headers()
                return
            page = answers.pages.get(self.path)
            text = page(body) if callable(page) else page
            self.send_response(answers.status if text is not None else 404)
            self.end_headers()
            self.wfile.write((text if text is not None else "no such page").encode())

        do_POST = do_GET  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    answers.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield answers
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
