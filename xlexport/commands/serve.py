"""The `serve` command and its options."""

from __future__ import annotations

import os
import socket
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import click

from xlexport.commands.long_help import LongCommand, headed, options_from
from xlexport.commands.options import document_options, json_option, quiet_option, refuse, runtime_options
from xlexport.commands.settings import rare
from xlexport.commands.signals import noticed
from xlexport.commands.values import BUNDLE
from xlexport.extras import require
from xlexport.serve.options import ServeLimits
from xlexport.terminal import is_quiet, print_json, print_line, tell, tell_lines, tell_problem

__all__ = ["serve"]

KEYS = "XLEXPORT_API_KEY"
SHORTEST_KEY = 6  # characters


def _keys(context: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
    """Return the keys of options, else those of the environment, one a line."""
    keys = given or tuple(os.environ[KEYS].removesuffix("\n").split("\n") if KEYS in os.environ else ())
    for number, key in enumerate(keys, 1):
        if len(key) < SHORTEST_KEY or key != key.strip() or not key.isprintable():
            where = f"key {number} of {'--api-key' if given else KEYS}"
            raise click.UsageError(
                f"{where}: expected at least {SHORTEST_KEY} printable characters, without spaces at the ends."
            )
    return keys


REMOVED = {
    "max_requests": "Use --set requests=N.",
    "max_tokens": "Use --set tokens=N.",
    "max_new_tokens": "Use --set new_tokens=N.",
    "max_body": "Use --set body_bytes=BYTES.",
    "request_timeout": "Use --set request_seconds=SECONDS.",
    "request_memory": "Use --set request_bytes=BYTES.",
    "session_memory": "Use --set session_bytes=BYTES.",
    "session_ttl": "Use --set session_seconds=SECONDS.",
}


@click.command(
    cls=LongCommand,
    removed=REMOVED,
    examples=(
        ("xlexport serve bundle", "Serve a bundle at http://127.0.0.1:8000/v1, to this machine only."),
        (
            "xlexport serve small.bundle large.bundle --batch-size 16",
            "Serve two bundles under the names of their folders.",
        ),
        ("xlexport serve bundle --host 0.0.0.0 --api-key SECRET", "Serve everyone who has the key."),
    ),
)
@click.argument("bundles", nargs=-1, required=True, type=BUNDLE)
@headed(
    "Server",
    click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on."),
    click.option(
        "--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="Port; 0 takes any free port."
    ),
    click.option(
        "--api-key",
        "keys",
        multiple=True,
        callback=_keys,
        help="Key that requests must send. Repeatable. Other users of this machine can see options: better set the "
        f"environment variable {KEYS}, one key a line.",
    ),
    rare(
        "prefix",
        "text",
        "Token that /tokenizer_info tells clients to put before a document.  [default: the one that begins texts, "
        "else one that ends them, else a newline]",
    ),
    rare("grace", "integer", "Seconds in which open requests may finish after Ctrl-C.", default=30, minimum=0),
)
@headed(
    "Limits",
    click.option(
        "--batch-size",
        type=click.IntRange(1),
        default=8,
        show_default=True,
        help="Requests of one bundle that run at the same time, in turns.",
    ),
    rare(
        "shared_steps",
        "boolean",
        "Run all requests in shared steps: faster for large models, but scores then depend on other requests by "
        "rounding.",
        default=False,
    ),
)
@options_from(ServeLimits, "limits")
@headed(
    "Output",
    json_option("address and models, once the server is ready,"),
    quiet_option,
)
@headed("Model settings", document_options)
@headed("Device", runtime_options)
def serve(
    bundles: tuple[Path, ...],
    host: str,
    port: int,
    keys: tuple[str, ...],
    prefix: str | None,
    grace: int,
    batch_size: int,
    shared_steps: bool,
    as_json: bool,
    limits: ServeLimits,
    runtime: dict[str, Any],
    **evaluation: Any,
) -> None:
    """Answer HTTP requests for scores and continuations with BUNDLES.

    The routes are OpenAI's completions, and sessions: documents of any length to which requests append. docs/serving.md
    lists all routes. Needs the extra `serve`.
    """
    if batch_size == 1:
        refuse({"--set shared_steps": shared_steps}, "for several requests, but --batch-size is 1. Leave {} out.")
    require("serve")
    from xlexport.bundles import open_bundle
    from xlexport.serve.app import make_app
    from xlexport.serve.models import Models, ServedModel
    from xlexport.serve.scheduler import Scheduler
    from xlexport.serve.server import Server, listening_socket, log_to
    from xlruntime import PrefixCache
    from xlruntime.hub_cache import folder_name

    prefixes = PrefixCache(limits.prefix_cache, limits.session_seconds) if limits.prefix_cache else None
    with listening_socket(host, port) as listening:
        models = Models(
            ServedModel.of(
                folder_name(bundle),
                Scheduler(
                    open_bundle(bundle, **runtime),
                    batch_size,
                    shared_steps=shared_steps,
                    prefixes=prefixes,
                    **evaluation,
                ),
                prefix,
            )
            for bundle in bundles
        )
        address = f"[{host}]" if ":" in host else host
        url = f"http://{address}:{listening.getsockname()[1]}/v1"
        names = [model.name for model in models.all]
        if not keys and not _is_loopback(host):
            tell_problem(f"Warning: everyone who can reach {host} can use this server. Set {KEYS}.")

        def ready() -> None:
            if as_json:
                print_json({"url": url, "models": names})
            else:
                print_line(url)
            tell(f"Serving {', '.join(names)}. Ctrl-C ends it.")

        log_to(tell_lines, quiet=is_quiet())
        app = make_app(models, limits, keys, (host, socket.gethostname()))
        server = Server(app, limits, grace, ready, noticed)
        server.run(sockets=[listening])
    if server.cut_off:
        raise KeyboardInterrupt


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
