"""The command `web`, and the server that it starts."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.invoking import Invoke
from tests.helpers.paths import EMPTY, golden_bundle
from tests.web_site.javascript import served
from xlexport.web.server import HEADERS, site_server

BUNDLE = golden_bundle(EMPTY)


def test_site_is_written(invoke: Invoke, npm: Path, tmp_path: Path) -> None:
    shown = invoke("web", BUNDLE, "-o", tmp_path / "site", "--runtime", npm, "--title", "Ours").succeeded()
    assert shown.out == ""
    assert shown.err.startswith(f"wrote {tmp_path / 'site'}: 0.3 MB (bundle 0.1, onnxruntime 0.0)")
    assert "<title>Ours</title>" in (tmp_path / "site/index.html").read_text("utf-8")
    assert "a site is there already" in invoke("web", BUNDLE, "-o", tmp_path / "site", "--runtime", npm).error


def test_somewhere_to_write_is_needed(invoke: Invoke, npm: Path, tmp_path: Path) -> None:
    shown = invoke("web", BUNDLE, "--runtime", npm)
    assert (shown.code, shown.out) == (2, "")
    assert "Give -o SITE to write the site, or --serve" in shown.err
    absent = invoke("web", BUNDLE, "-o", tmp_path / "site", "--runtime", tmp_path)
    assert "xlruntime is missing" in absent.error
    assert not (tmp_path / "site").exists()


def test_site_is_served_until_it_is_interrupted(
    invoke: Invoke, npm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[Path] = []

    def serve(server: object) -> None:
        handler = server.RequestHandlerClass  # type: ignore[attr-defined]
        served.append(Path(handler.keywords["directory"]))
        assert (served[0] / "index.html").is_file()
        raise KeyboardInterrupt

    monkeypatch.setattr("http.server.ThreadingHTTPServer.serve_forever", serve)
    shown = invoke("web", BUNDLE, "--serve", "--port", "0", "--runtime", npm).succeeded()
    assert shown.err.startswith("http://127.0.0.1:")
    assert shown.err.endswith("ended.\n")
    assert not served[0].exists()  # without -o it was a temporary one


def test_port_that_is_taken_is_named(invoke: Invoke, npm: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        error = invoke("web", BUNDLE, "--serve", "--port", port, "--runtime", npm).error
    assert error.endswith(f"127.0.0.1:{port}: Address already in use. Choose another port; 0 takes a free one.")


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[http.client.HTTPConnection]:
    """Serve a small folder."""
    (tmp_path / "site/inner").mkdir(parents=True)
    for name in ("index.html", "a.mjs", "b.js", "c.wasm", "d.json", "weights.data"):
        (tmp_path / "site" / name).write_text(name)
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "site/link").symlink_to(tmp_path / "secret")
    (tmp_path / "site/inner/index.htm").symlink_to(tmp_path / "secret")
    server = site_server(tmp_path / "site")
    with served(server):
        connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
        yield connection
        connection.close()


def ask(connection: http.client.HTTPConnection, path: str, **headers: str) -> http.client.HTTPResponse:
    connection.request("GET", path, headers=headers)
    response = connection.getresponse()
    response.read()
    return response


def test_headers_isolate_the_page_and_types_are_right(connection: http.client.HTTPConnection) -> None:
    assert HEADERS["Cross-Origin-Opener-Policy"] == "same-origin"
    assert HEADERS["Cross-Origin-Embedder-Policy"] == "require-corp"
    for path, kind in {
        "/": "text/html; charset=utf-8",
        "/a.mjs": "text/javascript",
        "/b.js": "text/javascript",
        "/c.wasm": "application/wasm",
        "/d.json": "application/json",
        "/weights.data": "application/octet-stream",
    }.items():
        response = ask(connection, path)
        assert (response.status, response.headers["Content-Type"]) == (200, kind)
        assert HEADERS.items() <= dict(response.headers).items()


def test_nothing_else_is_served(connection: http.client.HTTPConnection) -> None:
    assert ask(connection, "/inner/").status == 404
    assert ask(connection, "/absent").status == 404
    assert ask(connection, "/../secret").status == 404
    assert ask(connection, "/%2e%2e/secret").status == 404
    assert ask(connection, "/link").status == 404


def test_foreign_names_and_pages_are_refused(connection: http.client.HTTPConnection) -> None:
    own = f"127.0.0.1:{connection.port}"
    assert ask(connection, "/a.mjs", Host="localhost:1").status == 200
    assert ask(connection, "/a.mjs", Origin=f"http://{own}").status == 200
    assert ask(connection, "/a.mjs", Host="evil.example").status == 421
    assert ask(connection, "/a.mjs", Origin="http://evil.example").status == 403


def test_unchanged_file_is_not_sent_again(connection: http.client.HTTPConnection) -> None:
    changed = ask(connection, "/a.mjs").headers["Last-Modified"]
    assert ask(connection, "/a.mjs", **{"If-Modified-Since": str(changed)}).status == 304
