"""Byte-level BPE in C: the file that the exporter writes, and the ids and places of the `tokenizers` library."""

from __future__ import annotations

import copy
import json
import random
import shutil
import struct
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.c_library import c_runtime
from tests.helpers.c_runtime import CError, CModel, CRuntime
from tests.helpers.manifests import edit_manifest, give_tokenizer
from tests.helpers.paths import EMPTY, golden_bundle
from xlexport.byte_pair_file import BYTE_PAIR_FILE, NEVER_UTF8, byte_pair_file
from xlruntime.bundle_files import digest_file

pytestmark = pytest.mark.native

__all__ = ["c_runtime"]

LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": True}
ADDED = {"single_word": False, "lstrip": False, "rstrip": False}
MERGES = ["Ġ t", "h e", "Ġt he", "a b", "b c", "ab c", "Ġ Ġ"]
PARTS = (
    *(
        "the cat",
        " the",
        "abc",
        "aabbcc",
        "  ",
        "   ",
        " " * 7,
        "\n",
        "\n\n",
        "\r\n",
        "\t",
        " \u00a0",
        "\u3000",
        "\x1c",
    ),
    *(
        "e\u0301",
        "\u0301",
        "o\u031b\u0323",
        "\u1112\u1161\u11ab",
        "\u1100\u1161",
        "\u212b",
        "\u0344",
        "\u0338",
        "<",
        "=",
    ),
    *("'s", "'LL", "don't", "123", "\u0663", "é", "Привет", "日本", "\U0001f469\u200d\U0001f680", "\0", "\ufeff", "!?"),
    *("<|end|>", "<|en", "<|end|", "<|", "|>", "END", "EN"),
)


def tokenizer_json(**changed: Any) -> dict[str, Any]:
    """Return a tokenizer.json of at most 256 tokens: the bytes of UTF-8, pairs, and added tokens."""
    from tokenizers import pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    never = {chr(byte) for byte in NEVER_UTF8}
    symbols = [character for character in alphabet if character not in never]
    assert len(symbols) == 243
    vocabulary = {name: number for number, name in enumerate([*symbols, *(merge.replace(" ", "") for merge in MERGES)])}
    added = [("<|end|>", True, False), ("   ", False, True), ("END", False, False)]
    tokens = [
        {"id": len(vocabulary) + place, "content": text, "special": special, "normalized": normalized, **ADDED}
        for place, (text, special, normalized) in enumerate(added)
    ]
    model: dict[str, Any] = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "fuse_unk": False,
    }
    model |= {"end_of_word_suffix": None, "byte_fallback": False, "vocab": vocabulary, "merges": MERGES}
    return {
        **{"version": "1.0", "truncation": None, "padding": None, "added_tokens": tokens},
        **{"normalizer": {"type": "NFC"}, "pre_tokenizer": LEVEL, "post_processor": None, "decoder": LEVEL},
        **{"model": model, **changed},
    }


def make_bundle(folder: Path, fields: dict[str, Any]) -> Path:
    shutil.copytree(golden_bundle(EMPTY), folder)
    raw = json.dumps(fields).encode()
    (folder / "tokenizer.json").write_bytes(raw)
    content = byte_pair_file(raw)
    assert content is not None
    (folder / BYTE_PAIR_FILE).write_bytes(content)
    give_tokenizer(folder, "tokenizers", "tokenizer.json", BYTE_PAIR_FILE)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_bundle(tmp_path_factory.mktemp("byte_pairs") / "bundle", tokenizer_json())


@pytest.fixture
def model(c_runtime: CRuntime, folder: Path) -> CModel:
    return c_runtime.load(folder)


@pytest.fixture(scope="module")
def library(folder: Path) -> Any:
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def texts(n: int, seed: int) -> list[str]:
    rng = random.Random(seed)
    return ["".join(rng.choices(PARTS, k=rng.randrange(1, 20))) for _ in range(n)]


def test_ids_places_and_texts_are_those_of_the_library(model: CModel, library: Any) -> None:
    assert model.info.reads_text
    for text in [*texts(500, seed=1), "abc" * 5000, " " * 999, "".join(texts(300, seed=2))]:
        expected = library.encode(text, add_special_tokens=False)
        assert model.encode(text).tolist() == expected.ids, text
        assert model.decode(expected.ids) == library.decode(expected.ids)
        total, steps = model.score(text, bos=0)
        places = [(int(a), int(b)) for step in steps for a, b in zip(step.starts, step.ends, strict=True)]  # type: ignore[arg-type]
        if unicodedata.is_normalized("NFC", text):
            assert places == expected.offsets, text
        assert (total.bytes, total.chars) == (len(text.encode()), len(text))


def test_every_cut_has_the_ids_of_the_whole(model: CModel, library: Any) -> None:
    rng = random.Random(3)
    for text in texts(60, seed=4):
        raw = text.encode()
        expected = library.encode(text, add_special_tokens=False).ids
        cuts = [[place] for place in range(len(raw) + 1)]
        cuts += [sorted(rng.choices(range(len(raw) + 1), k=6)) for _ in range(5)]
        for places in cuts:
            stream, found = model.stream(), []
            stream.feed([0])
            for begin, end in zip([0, *places], [*places, len(raw)], strict=True):
                found += stream.feed(raw[begin:end]).tokens.tolist()
            found += stream.flush().tokens.tolist()
            assert found == expected, (text, places)
            assert stream.unsettled_cuts == 0


def test_what_the_first_token_stands_for(model: CModel) -> None:
    for text, left in (("Привет", 11), ("abc def", 4), ("e\u0301 a", 4), ("<|end|>a", 1)):
        assert model.score(text)[0].scored_bytes == left, text


def test_merges_can_be_ignored(c_runtime: CRuntime, tmp_path: Path) -> None:
    fields = tokenizer_json(normalizer=None)
    fields["model"]["ignore_merges"] = True
    fields["model"]["vocab"]["xyz"] = len(fields["model"]["vocab"]) + len(fields["added_tokens"])
    model = c_runtime.load(make_bundle(tmp_path / "bundle", fields))
    assert len(model.encode("xyz")) == 1 and len(model.encode("xyzz")) == 4
    assert len(model.encode("e\u0301")) == 3


def test_a_text_that_is_not_utf8_is_refused(model: CModel) -> None:
    for raw in (b"a\xff", b"\xc3", b"\xed\xa0\x80"):
        with pytest.raises(CError, match="not UTF-8 at byte") as error:
            model.encode(raw)
        assert error.value.code == "text"


OTHER_KINDS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a space before each text": lambda f: f.update(pre_tokenizer={**LEVEL, "add_prefix_space": True}),
    "another pattern": lambda f: f.update(pre_tokenizer={"type": "Whitespace"}),
    "no pattern": lambda f: f.update(pre_tokenizer={**LEVEL, "use_regex": False}),
    "two parts": lambda f: f.update(
        pre_tokenizer={"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, LEVEL]}
    ),
    "another form": lambda f: f.update(normalizer={"type": "NFKC"}),
    "another decoder": lambda f: f.update(decoder={"type": "WordPiece", "prefix": "##", "cleanup": True}),
    "another model": lambda f: f["model"].update(type="WordLevel"),
    "a prefix": lambda f: f["model"].update(continuing_subword_prefix="##"),
    "a token that takes the space before it": lambda f: f["added_tokens"][0].update(lstrip=True),
    "no token for a byte": lambda f: f["model"]["vocab"].pop("a"),
    "no merges": lambda f: f["model"].pop("merges"),
}


@pytest.mark.parametrize("change", OTHER_KINDS.values(), ids=OTHER_KINDS)
def test_other_tokenizers_have_no_file(change: Callable[[Any], Any]) -> None:
    fields = copy.deepcopy(tokenizer_json())
    change(fields)
    assert byte_pair_file(json.dumps(fields).encode()) is None


def test_damaged_files_are_refused(c_runtime: CRuntime, folder: Path, tmp_path: Path) -> None:
    damaged = shutil.copytree(folder, tmp_path / "bundle")
    file, raw = damaged / BYTE_PAIR_FILE, (folder / BYTE_PAIR_FILE).read_bytes()
    rng, refused = random.Random(5), 0

    def attempt(content: bytes, must_fail: bool) -> int:
        file.write_bytes(content)
        digest = digest_file(file)
        entry = {"sha256": digest.sha256, "size": digest.size}
        edit_manifest(damaged, lambda manifest: manifest["files"].update({BYTE_PAIR_FILE: entry}))
        try:
            model = c_runtime.load(damaged)
        except CError as error:
            assert error.code == "vocabulary"
            return 1
        assert not must_fail
        for text in ("the e\u0301 <|end|>   \u1112\u1161\u11ab", "abc" * 20):
            model.decode(model.encode(text))
        return 0

    for size in (0, 7, 8, 16, 20, 500, len(raw) // 2, len(raw) - 1):
        attempt(raw[:size], True)
    attempt(raw + b"\0", True)
    attempt(raw[:16] + struct.pack("<I", 2**32 - 1) + raw[20:], True)
    for _ in range(40):
        place = rng.randrange(len(raw))
        refused += attempt(raw[:place] + bytes([raw[place] ^ 1 << rng.randrange(8)]) + raw[place + 1 :], False)
    assert refused > 3
