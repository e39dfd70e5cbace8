"""A file server for a site on this machine, with the headers that threads in a browser need."""

from __future__ import annotations

import functools
import http.server
import os
from pathlib import Path
from typing import Any

from xlexport.serve.hosts import refusal
from xlruntime import OptionError

__all__ = ["HEADERS", "site_server"]

HEADERS = {
    # Both together isolate the page, without which a browser gives WebAssembly one thread.
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Embedder-Policy": "require-corp",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",  # a browser asks whether a file has changed, and loads it only then
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript",
    ".mjs": "text/javascript",
    ".json": "application/json",
    ".wasm": "application/wasm",
}


class _Handler(http.server.SimpleHTTPRequestHandler):
    """A handler that serves the files of a site, and nothing else."""

    extensions_map = {"": "application/octet-stream", **TYPES}  # noqa: RUF012 - declared so by the base class
    protocol_version = "HTTP/1.1"

    def end_headers(self) -> None:
        """Add the headers of every answer."""
        for name, value in HEADERS.items():
            self.send_header(name, value)
        super().end_headers()

    def send_head(self) -> Any:
        """Refuse foreign names and pages, as `serve` does, and files outside the folder; answer others."""
        refused = refusal(self.headers.get("Host", ""), self.headers.get("Origin", ""), ("localhost",))
        if refused is not None:
            return self.send_error(*refused[:2])
        path = self.translate_path(self.path)
        files = [os.path.realpath(os.path.join(path, name)) for name in ("", "index.html", "index.htm")]
        if not all(Path(file).is_relative_to(self.directory) for file in files):
            return self.send_error(http.HTTPStatus.NOT_FOUND)
        return super().send_head()

    def list_directory(self, path: Any) -> None:
        """Answer that there is nothing: a site has no lists of files."""
        self.send_error(http.HTTPStatus.NOT_FOUND)

    def log_message(self, *arguments: Any) -> None:
        """Print nothing."""


def site_server(folder: Path, port: int = 0) -> http.server.ThreadingHTTPServer:
    """Return a server of `folder` on 127.0.0.1, which has not begun to serve.

    Args:
        port: 0 takes a free one.

    Raises:
        OptionError: the port is taken.
    """
    handler = functools.partial(_Handler, directory=str(folder.resolve()))
    try:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", port), handler)
    except OSError as error:
        raise OptionError(
            f"address 127.0.0.1:{port}: {error.strerror}.", hint="Choose another port; 0 takes a free one."
        ) from error
    server.daemon_threads = True
    return server
