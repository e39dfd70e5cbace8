"""Refuse requests under foreign names and from pages of other sites, which could else read a server on this machine."""

from __future__ import annotations

from collections.abc import Collection
from ipaddress import ip_address
from urllib.parse import urlsplit

from xlruntime.messages import named

__all__ = ["refusal"]


def refusal(host: str, origin: str, names: Collection[str]) -> tuple[int, str, str] | None:
    """Return status, message and code of the refusal of a request; None if it may be answered.

    With a foreign name that leads here, a page of its site could read what only this machine may. A page of another
    site may also send some requests without asking; browsers then add its `Origin`.

    Args:
        host, origin: these two headers, empty if they are missing.
        names: lower-case names of the server besides IP addresses.
    """
    if origin and origin.partition("://")[2] != host:
        return 403, f"a page of {named(origin)} may not use this server without a key.", "foreign_origin"
    try:
        name = urlsplit(f"//{host}").hostname or ""
        if host and name not in names:
            ip_address(name)
    except ValueError:
        hint = "use localhost or an IP address, or protect the server with a key"
        return 421, f"{named(host)} is not known as a name of this server; {hint}.", "unknown_host"
    return None
