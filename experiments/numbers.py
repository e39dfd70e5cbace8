"""Numbers in words, from English to German: pairs for an encoder-decoder.

Every number below 100,000 has one name in each language, so each translation is right or wrong. The languages order
words differently (`twenty one` is `einundzwanzig`), so a dictionary alone is not enough.
"""

import random
from pathlib import Path

import click

__all__ = ["english", "german", "main", "pairs"]

LARGEST = 100_000
_ENGLISH = [
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine",
    "ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
]  # fmt: skip
_ENGLISH_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
_GERMAN = [
    "null", "ein", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun",
    "zehn", "elf", "zwölf", "dreizehn", "vierzehn", "fünfzehn", "sechzehn", "siebzehn", "achtzehn", "neunzehn",
]  # fmt: skip
_GERMAN_TENS = ["zwanzig", "dreißig", "vierzig", "fünfzig", "sechzig", "siebzig", "achtzig", "neunzig"]


def english(number: int) -> str:
    """Return a number below 100,000 in English words, without `and`."""
    if number < 20:
        return _ENGLISH[number]
    for size, name in ((1000, "thousand"), (100, "hundred")):
        if number >= size:
            rest = f" {english(number % size)}" if number % size else ""
            return f"{english(number // size)} {name}{rest}"
    return _ENGLISH_TENS[number // 10 - 2] + (f" {_ENGLISH[number % 10]}" if number % 10 else "")


def german(number: int) -> str:
    """Return a number below 100,000 as a German word."""
    return _german(number) + ("s" if number % 100 == 1 else "")


def _german(number: int) -> str:
    """Return the word without the ending of a one that nothing follows."""
    if number < 20:
        return _GERMAN[number]
    for size, name in ((1000, "tausend"), (100, "hundert")):
        if number >= size:
            return f"{_german(number // size)}{name}{_german(number % size) if number % size else ''}"
    return (f"{_GERMAN[number % 10]}und" if number % 10 else "") + _GERMAN_TENS[number // 10 - 2]


def pairs(train: int, held_out: int, seed: int) -> tuple[list[int], list[int]]:
    """Return distinct random numbers to train on, and others to test."""
    drawn = random.Random(seed).sample(range(LARGEST), train + held_out)
    return drawn[:train], drawn[train:]


@click.command()
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder for the pairs.")
@click.option("--train", default=20_000, show_default=True, help="Pairs to train on.")
@click.option("--held-out", default=1_000, show_default=True, help="Other pairs.")
@click.option("--seed", default=0, show_default=True)
def main(out: Path, train: int, held_out: int, seed: int) -> None:
    """Write train.tsv, held_out.tsv, and both sides of the latter: held_out.en, held_out.de."""
    numbers, others = pairs(train, held_out, seed)
    out.mkdir(parents=True, exist_ok=True)
    for name, part in (("train.tsv", numbers), ("held_out.tsv", others)):
        lines = (f"{english(number)}\t{german(number)}\n" for number in part)
        (out / name).write_text("".join(lines), encoding="utf-8")
    for name, side in (("held_out.en", english), ("held_out.de", german)):
        (out / name).write_text("".join(f"{side(number)}\n" for number in others), encoding="utf-8")
    click.echo(f"{train:,} pairs to train on, {held_out:,} held out")


if __name__ == "__main__":
    main(prog_name="python -m experiments.numbers")
