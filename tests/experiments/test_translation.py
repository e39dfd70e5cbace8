"""Table 4 of the Reformer paper at a size of seconds, from the catalogues of a wheel to BLEU."""

from __future__ import annotations

import itertools
import json
import struct
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from experiments import catalogues, reformer_table4
from experiments.__main__ import main
from tests.helpers.invoking import Invoke

MESSAGES = {f"Open  file {n}\n": f"Datei {n} öffnen" for n in range(40)}
OTHERS = {"menu\x04Quit": "Beenden", "Quit": "Ende", "label_name": "Name", "Name": "Name", "…": "…."}


def catalogue(messages: dict[str, str]) -> bytes:
    """Return the .mo file of messages, whose header says nothing but the encoding."""
    texts = sorted({"": "Content-Type: text/plain; charset=UTF-8\n", **messages}.items())
    sides = [side.encode() for pair in zip(*texts, strict=True) for side in pair]
    at = 28 + 16 * len(texts)
    places = itertools.accumulate((len(side) + 1 for side in sides), initial=at)
    entries = (number for side, place in zip(sides, places, strict=False) for number in (len(side), place))
    header = (0x950412DE, 0, len(texts), 28, 28 + 8 * len(texts), 0, at)
    return struct.pack(f"<{7 + 4 * len(texts)}I", *header, *entries) + b"".join(side + b"\0" for side in sides)


@pytest.mark.release
def test_pairs_of_catalogues_are_translated(
    tmp_path: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch, cached_exports: None
) -> None:
    pytest.importorskip("sacrebleu", reason="the extra bleu is not installed")
    pytest.importorskip("tokenizers")
    with zipfile.ZipFile(tmp_path / "program.whl", "w") as wheel:
        wheel.writestr("a/de/LC_MESSAGES/a.mo", catalogue(MESSAGES | OTHERS))
        wheel.writestr("a/fr/LC_MESSAGES/a.mo", catalogue({"Open": "Ouvrir"}))
    arguments = [str(tmp_path / "program.whl"), "--out", str(tmp_path), "--held-out", "2"]
    CliRunner().invoke(catalogues.main, arguments, catch_exceptions=False)
    train, valid, test = (tmp_path / f"{name}.tsv" for name in ("train", "valid", "test"))
    lines = [line for file in (train, valid, test) for line in file.read_text("utf-8").splitlines()]
    assert len(lines) == 41 and "Open file 7\tDatei 7 öffnen" in lines and "Quit\tEnde" in lines

    prepare = ("prepare", train, "--valid", valid, "--test", test, "-o", tmp_path / "data", "--documents", "pair")
    invoke(*prepare, "--unit", "bpe", "--vocab-size", "300").succeeded()
    small = {**reformer_table4.SCALES["tiny"].model, "source_len": 24, "d_model": 8, "d_head": 4, "d_inner": 8}
    micro = replace(reformer_table4.SCALES["tiny"], model=small, tgt_len=24, steps=2, batch_size=2)
    monkeypatch.setitem(reformer_table4.SCALES, "tiny", micro)
    options = ["--out", str(tmp_path), "--data", str(tmp_path / "data"), "--only", "ordinary", "--seeds", "1"]
    table = CliRunner().invoke(main, ["reformer_table4", *options], catch_exceptions=False).stdout
    assert table.splitlines()[1].startswith("ordinary  27.3") and "|tok:13a|" in table
    (kept,) = json.loads((tmp_path / "tiny" / "reformer_table4.json").read_text("utf-8"))["ordinary"]
    assert len(kept["translations"]) == 2
