"""Numbers in words: the names in both languages, and the accuracy of translations."""

from __future__ import annotations

from pathlib import Path

import pytest

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


def test_held_out_numbers_are_not_trained_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    numbers.main(["pairs", "--out", str(tmp_path), "--train", "60", "--held-out", "20"])
    train, held_out = ((tmp_path / name).read_text("utf-8").splitlines() for name in ("train.tsv", "held_out.tsv"))
    assert (len(train), len(held_out)) == (60, 20) and not set(train) & set(held_out)

    right = [line.split("\t")[1] for line in held_out]
    (tmp_path / "out.txt").write_text("\n".join(["wrong", *right[1:]]) + "\n", "utf-8")
    numbers.main(["accuracy", str(tmp_path / "held_out.tsv"), str(tmp_path / "out.txt")])
    shown = capsys.readouterr().out.splitlines()
    assert shown[:2] == ["60 pairs to train on, 20 held out", "right: 19 of 20 (95.0%)"]
    assert shown[2].startswith("word by word: ")
    (tmp_path / "out.txt").write_text("one line\n", "utf-8")
    with pytest.raises(SystemExit, match="1 lines, but"):
        numbers.main(["accuracy", str(tmp_path / "held_out.tsv"), str(tmp_path / "out.txt")])
