"""Compute what a corpus takes from a measured rate: core hours, parts, files and requests.

python -m benchmarks.how_large --rate 9394 --tokens 1e12

The rate is that of one core, as `xlexport score --processes` prints it divided by the processes. docs/how_large.md
has the measured defaults.
"""

from __future__ import annotations

import click

__all__ = ["main", "needs"]

DAY, HOUR, YEAR = 86_400, 3_600, 365 * 86_400


def needs(
    tokens: float, rate: float, cores: int, token_bytes: float, record_bytes: float, document_tokens: float, part: float
) -> dict[str, float]:
    """Return what a corpus of so many tokens needs, by name.

    Args:
        rate: tokens a second of one core.
        token_bytes: bytes of text of a token; record_bytes: of a document's record.
        document_tokens: tokens of a document; part: bytes of a part.
    """
    seconds = tokens / rate
    documents = tokens / document_tokens
    parts = tokens * token_bytes / part
    return {
        "core hours": seconds / HOUR,
        "core years": seconds / YEAR,
        f"hours on {cores:,} cores": seconds / cores / HOUR,
        "documents": documents,
        "input, TB": tokens * token_bytes / 1e12,
        "output, TB": documents * record_bytes / 1e12,
        "parts": parts,
        "minutes a part": part / token_bytes / rate / 60,
        "requests to write": parts,
        "requests to list": parts / 1000,
        "tokens of one document in a day": rate * DAY,
    }


@click.command()
@click.option("--tokens", type=float, default=1e12, show_default=True, help="Tokens of the corpus.")
@click.option("--rate", type=float, default=9394.0, show_default=True, help="Tokens a second of one core.")
@click.option("--cores", type=int, default=1000, show_default=True, help="Cores that work at the same time.")
@click.option("--token-bytes", type=float, default=1.0, show_default=True, help="Bytes of text of a token.")
@click.option("--record-bytes", type=float, default=510.0, show_default=True, help="Bytes of a document's record.")
@click.option("--document-tokens", type=float, default=2000.0, show_default=True, help="Tokens of a document.")
@click.option("--part-bytes", type=float, default=float(1 << 20), show_default=True, help="Bytes of a part.")
@click.option("--price", type=float, default=0.04, show_default=True, help="Price of a core hour.")
def main(
    tokens: float,
    rate: float,
    cores: int,
    token_bytes: float,
    record_bytes: float,
    document_tokens: float,
    part_bytes: float,
    price: float,
) -> None:
    """Print what a corpus takes."""
    figures = needs(tokens, rate, cores, token_bytes, record_bytes, document_tokens, part_bytes)
    figures["price"] = figures["core hours"] * price
    for name, value in figures.items():
        click.echo(f"{name:<32} {value:>16,.1f}" if value < 1000 else f"{name:<32} {value:>16,.0f}")


if __name__ == "__main__":
    main()
