"""The `web` command."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click

from xlexport.commands.long_help import LongCommand, headed
from xlexport.commands.options import force_option, is_given, refuse
from xlexport.commands.values import BUNDLE, PATH
from xlexport.terminal import tell

__all__ = ["web"]

PORT = 8000


@click.command(
    cls=LongCommand,
    examples=(
        ("xlexport web bundle --serve", "Try the page in a browser on this machine."),
        ("xlexport web bundle -o site", "Write the site for a file server."),
        ("xlexport web bundle -o site --title Shakespeare --force", "Write it again, with a title of your own."),
    ),
)
@click.argument("bundle", type=BUNDLE)
@headed(
    "Output",
    click.option("-o", "--output", type=PATH, metavar="SITE", help="Folder to write. Optional with --serve."),
    force_option,
    click.option("--title", help="Title of the page."),
    click.option(
        "--runtime",
        type=PATH,
        metavar="FOLDER",
        help="Folder with the npm packages xlruntime and onnxruntime-web.  [default: a clone's runtime/js, or the "
        "Python package xlexport-web]",
    ),
)
@headed(
    "Server",
    click.option(
        "--serve", is_flag=True, help="Serve the site to this machine until Ctrl-C, with the headers for threads."
    ),
    click.option(
        "--port",
        type=click.IntRange(0, 65535),
        default=PORT,
        show_default=True,
        help="Port of --serve; 0 takes any free port.",
    ),
)
def web(
    bundle: Path, output: Path | None, force: bool, title: str | None, runtime: Path | None, serve: bool, port: int
) -> None:
    """Write a static site: a page on which BUNDLE colours text while you write it.

    The model runs in the browser. The site needs a file server, but no other network access. Its JavaScript is a
    separate package: run pip install ./runtime/js in a clone of xlexport.
    """
    if output is None and not serve:
        raise click.UsageError("Nothing to do. Give -o SITE to write the site, or --serve to try the page.")
    if not serve:
        refuse({"--port": is_given("port")}, "for --serve. Add --serve, or leave {} out.")
    if output is None:
        refuse({"--force": force}, "for a site that is written. Add -o SITE, or leave {} out.")
    from xlexport.web.site import write_site

    with _folder(output) as site:
        parts = write_site(bundle, site, runtime=runtime, title=title, force=force)
        if output is not None:
            sizes = ", ".join(f"{name} {parts[name] / 1e6:.1f}" for name in ("bundle", "onnxruntime"))
            tell(f"wrote {output}: {sum(parts.values()) / 1e6:.1f} MB ({sizes})")
        if serve:
            _serve(site, port)


@contextlib.contextmanager
def _folder(output: Path | None) -> Iterator[Path]:
    """Yield the folder of the site; without an output, a temporary one."""
    if output is not None:
        yield output
        return
    with tempfile.TemporaryDirectory(prefix="xlexport-web-") as folder:
        yield Path(folder, "site")


def _serve(site: Path, port: int) -> None:
    from xlexport.web.server import site_server

    with site_server(site, port) as server:
        tell(f"http://127.0.0.1:{server.server_port} (Ctrl-C ends it)")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            tell("ended.")
