"""A local HTTP server that offers files and breaks connections on request."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Site:
    """The server's files, its misbehavior, and the Range of every request."""

    files: dict[str, bytes] = field(default_factory=dict)
    ranges: bool = True
    sized: bool = True
    cut_after: list[int] = field(default_factory=list)  # bytes of each response to come
    requests: list[str] = field(default_factory=list)
    address: str = ""


@contextmanager
def serve() -> Iterator[Site]:
    """Run a server without files."""
    offer = Site()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = self.headers.get("Range", "")
            offer.requests.append(wanted)
            body = offer.files.get(self.path.strip("/"))
            if body is None:
                self.send_error(404)
                return
            start = int(wanted[len("bytes=") : -1]) if wanted and offer.ranges else 0
            if start and start >= len(body):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(body)}")
                self.end_headers()
                return
            self.send_response(206 if start else 200)
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
            if offer.sized:
                self.send_header("Content-Length", str(len(body) - start))
            self.end_headers()
            stop = start + offer.cut_after.pop(0) if offer.cut_after else len(body)
            self.wfile.write(body[start:stop])

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_: object) -> None:
            """Ignore clients that hang up."""

    with Server(("127.0.0.1", 0), Handler) as server:
        offer.address = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield offer
        server.shutdown()
        thread.join()
