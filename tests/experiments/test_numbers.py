"""Numbers in words: the names in both languages, and the pairs."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from experiments import numbers

NAMES = {
    0: ("zero", "null"),
    1: ("one", "eins"),
    16: ("sixteen", "sechzehn"),
    21: ("twenty one", "einundzwanzig"),
    30: ("thirty", "dreißig"),
    101: ("one hundred one", "einhunderteins"),
    1101: ("one thousand one hundred one", "eintausendeinhunderteins"),
    31000: ("thirty one thousand", "einunddreißigtausend"),
    77017: ("seventy seven thousand seventeen", "siebenundsiebzigtausendsiebzehn"),
    99999: ("ninety nine thousand nine hundred ninety nine", "neunundneunzigtausendneunhundertneunundneunzig"),
}


@pytest.mark.parametrize("number", NAMES)
def test_names(number: int) -> None:
    assert (numbers.english(number), numbers.german(number)) == NAMES[number]


def test_no_two_numbers_share_a_name() -> None:
    every = range(0, 100_000, 7)
    assert len({numbers.english(n) for n in every}) == len({numbers.german(n) for n in every}) == len(every)


def test_held_out_numbers_are_not_trained_on(tmp_path: Path) -> None:
    CliRunner().invoke(numbers.main, ["--out", str(tmp_path), "--train", "60", "--held-out", "20"])
    names = ("train.tsv", "held_out.tsv", "held_out.en", "held_out.de")
    train, held_out, english, german = ((tmp_path / name).read_text("utf-8").splitlines() for name in names)
    assert (len(train), len(held_out)) == (60, 20) and not set(train) & set(held_out)
    assert held_out == [f"{source}\t{target}" for source, target in zip(english, german, strict=True)]
