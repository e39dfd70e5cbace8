"""The experiments of both papers: `python -m experiments NAME --help`."""

from __future__ import annotations

import click

from experiments import (
    duplication,
    images,
    long_text,
    reformer,
    reformer_table1,
    reformer_table2,
    reformer_table3,
    reformer_table4,
    transformer_xl,
)

__all__ = ["main"]


@click.group()
def main() -> None:
    """Train the models of a table or figure, and print it next to the paper's (docs/papers.md)."""


for _name, _command in {
    **transformer_xl.COMMANDS,
    "long_text": long_text.long_text,
    "reformer_table1": reformer_table1.main,
    "reformer_table2": reformer_table2.main,
    "reformer_table3": reformer_table3.main,
    "reformer_table4": reformer_table4.main,
    **reformer.COMMANDS,
    "duplication": duplication.main,
    "images": images.main,
}.items():
    main.add_command(_command, _name)

if __name__ == "__main__":
    main(prog_name="python -m experiments")
