"""The modules of a site's worker in Node: places of tokens, and edits that go on from forks."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.paths import BAND, CHUNK, EMPTY, ZEROS, golden_bundle
from tests.report.report_pages import HOSTILE
from tests.web_site.javascript import WORKER, needs_node, node, prepared
from xlexport.report.page_text import text_of_bytes
from xlruntime.bundle_files import read_bundle
from xlruntime.tokenizers import ByteTokenizer

pytestmark = [pytest.mark.native, needs_node]
BAD_UTF8 = b"\xc0\x80 \xe0\x80\x80 \xed\xa0\x80 \xf4\x90\x80\x80 \xf0\x9f\x98 \xf8\x88\x80\x80\x80 \xc3"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepared(tmp_path_factory.mktemp("modules"))


def ask(folder: Path, what: str, **given: Any) -> Any:
    return node("modules.mjs", folder, {"ask": what, "worker": str(WORKER), **given})


@pytest.mark.parametrize("raw", [HOSTILE, BAD_UTF8, b"", b"\xff" * 3, "\ufeffZo\u00eb \U0001f600".encode()])
def test_bytes_become_the_text_of_reports(raw: bytes, folder: Path) -> None:
    found = ask(folder, "decoded", raw=list(raw))
    expected = text_of_bytes(raw, ByteTokenizer())
    assert found["codes"] == expected.units.tolist()
    assert found["after"] == expected.after.tolist()


def test_tokens_of_bytes_have_their_places(folder: Path) -> None:
    bundle = str(golden_bundle(EMPTY))
    found = ask(folder, "tokenize", bundle=bundle, offsets="bytes", source="a\u00e9\U0001f600", ended=False)
    assert found["ids"] == list("a\u00e9\U0001f600".encode())
    assert found["start"] == [0, 1, 2, 2, 4, 4, 4, 4]
    assert found["bytes"] == {"all": 7, "first": 1, "dropped": 0}


def test_ids_are_read_and_illegal_ones_refused(folder: Path) -> None:
    bundle = golden_bundle(BAND)
    most = read_bundle(bundle).vocab_size - 1
    ids = {"bundle": str(bundle), "offsets": "ids", "ended": False}
    found = ask(folder, "tokenize", source=f" 3 0\n{most} ", **ids)
    assert (found["ids"], found["start"]) == ([3, 0, most], [0, 2, 4, 5 + len(str(most)) + 1])
    for wrong in (most + 1, "-1", "x", "1.5"):
        refused = ask(folder, "tokenize", source=f"3 {wrong}", **ids)["error"]
        assert refused.startswith(f"TokenError: the text: token 1 is {wrong}, expected an id from 0 to {most}. This ")


def test_tokens_of_libraries_are_found_in_the_text(folder: Path) -> None:
    assert ask(folder, "aligned", pieces=["The", " cat", " s", "at", "."], text="The cat sat.") == [0, 3, 7, 9, 11, 12]
    assert ask(folder, "aligned", pieces=["the", " ?", " sat"], text="the dog  sat") == [0, 3, 3, 12]


@pytest.mark.parametrize("name", [EMPTY, ZEROS, "pre_lnorm_empty", BAND, CHUNK])
@pytest.mark.parametrize("interrupted", [False, True])
def test_edits_have_the_scores_of_a_new_document(name: str, interrupted: bool, folder: Path) -> None:
    """Edit a document at random: its numbers are those of the whole text, however much was kept."""
    draw = random.Random(7)
    vocab_size = read_bundle(golden_bundle(name)).vocab_size
    ids = [draw.randrange(vocab_size) for _ in range(60)]
    documents = [ids]
    for _ in range(14):
        at, cut = draw.randrange(len(ids) + 1), draw.randrange(12)
        ids = ids[:at] + [draw.randrange(vocab_size) for _ in range(draw.randrange(14))] + ids[at + cut :]
        documents.append(ids[:90])
    found = ask(folder, "score", bundle=str(golden_bundle(name)), documents=documents, interrupted=interrupted)
    assert len(found) == len(documents)
    assert sum(each["isDone"] for each in found) >= len(documents) // 2
    for document, each in zip(documents, found, strict=True):
        assert len(each["bits"]) == len(document)
        if each["isDone"] and document:
            own = np.array(each["own"]["bits"])
            unscored = len(document) - len(own)
            assert each["bits"][:unscored] == [0xFFFF] * unscored
            assert np.abs(np.array(each["bits"][unscored:]) / 100 - own).max() <= 0.006
            assert each["ranks"][unscored:] == each["own"]["rank"]


def test_little_is_read_again(folder: Path) -> None:
    """Write at the end, delete there, and write in the middle: the model reads the edit and what follows it."""
    long = [token % 256 for token in range(400)]
    middle = [*long[:200], 7, *long[200:]]
    documents = [long, [*long, 1], [*long, 1, 2], [*long, 1], middle, [*long[:200], 7, 8, *long[200:]]]
    found = ask(folder, "score", bundle=str(golden_bundle(EMPTY)), documents=documents, interrupted=False)
    read = [each["read"] for each in found]
    assert read[0] == 399
    assert read[1:3] == [1, 1]
    assert read[3] <= 32
    assert 200 <= read[4] <= 200 + 33
    assert read[5] == 201 + 1  # from the fork at the edit before
