"""Numbers in words, from English to German: pairs for an encoder-decoder, and the accuracy of its translations.

Every number below 100,000 has one name in each language, so each translation is right or wrong. The languages order
words differently (`twenty one` is `einundzwanzig`), so a dictionary alone is not enough; `accuracy` shows what it gets.
"""

import argparse
import random
from collections.abc import Sequence
from pathlib import Path

__all__ = ["by_dictionary", "english", "german", "main", "pairs"]

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
_DICTIONARY = {
    **dict(zip(_ENGLISH, _GERMAN, strict=True)),
    **dict(zip(_ENGLISH_TENS, _GERMAN_TENS, strict=True)),
    "hundred": "hundert",
    "thousand": "tausend",
}


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


def by_dictionary(text: str) -> str:
    """Translate English number words one by one, in their order."""
    return "".join(_DICTIONARY[word] for word in text.split())


def pairs(train: int, held_out: int, seed: int) -> tuple[list[int], list[int]]:
    """Return distinct random numbers to train on, and others to test."""
    drawn = random.Random(seed).sample(range(LARGEST), train + held_out)
    return drawn[:train], drawn[train:]


def main(arguments: Sequence[str] | None = None) -> None:
    """Write pairs of English and German, or compare translations with the right ones."""
    parser = argparse.ArgumentParser(prog="python -m experiments.numbers", description=main.__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    write = commands.add_parser("pairs", help="write train.tsv, held_out.tsv and held_out.txt (English only)")
    write.add_argument("--out", type=Path, required=True)
    write.add_argument("--train", type=int, default=20_000)
    write.add_argument("--held-out", type=int, default=1_000)
    write.add_argument("--seed", type=int, default=0)
    judge = commands.add_parser("accuracy", help="compare translations, one a line, with held_out.tsv")
    judge.add_argument("pairs", type=Path)
    judge.add_argument("translations", type=Path)
    options = parser.parse_args(arguments)
    if options.command == "pairs":
        _write(options.out, *pairs(options.train, options.held_out, options.seed))
    else:
        _judge(options.pairs, options.translations)


def _write(out: Path, train: Sequence[int], held_out: Sequence[int]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    for name, numbers in (("train.tsv", train), ("held_out.tsv", held_out)):
        lines = (f"{english(number)}\t{german(number)}\n" for number in numbers)
        (out / name).write_text("".join(lines), encoding="utf-8")
    (out / "held_out.txt").write_text("".join(f"{english(number)}\n" for number in held_out), encoding="utf-8")
    print(f"{len(train):,} pairs to train on, {len(held_out):,} held out")


def _judge(pairs: Path, translations: Path) -> None:
    expected = [line.split("\t") for line in pairs.read_text(encoding="utf-8").splitlines()]
    translated = translations.read_text(encoding="utf-8").splitlines()
    if len(translated) != len(expected):
        raise SystemExit(f"{translations}: {len(translated):,} lines, but {pairs} has {len(expected):,}.")
    right = sum(text == target for text, (_, target) in zip(translated, expected, strict=True))
    looked_up = sum(by_dictionary(source) == target for source, target in expected)
    print(f"right: {right:,} of {len(expected):,} ({right / len(expected):.1%})")
    print(f"word by word: {looked_up:,} ({looked_up / len(expected):.1%})")


if __name__ == "__main__":
    main()
