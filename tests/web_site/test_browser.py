"""Sites in headless Chromium: typing, pasting, dropping, continuing, and everything that may go wrong."""

from __future__ import annotations

import functools
import http.server
import math
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.manifests import edit_manifest
from tests.helpers.paths import BAND, EMPTY, ZEROS, golden_bundle
from tests.web_site.javascript import HERE, WEB, Quiet, needs_chromium, node, prepared, served
from xlexport.web.server import site_server
from xlexport.web.site import write_site
from xlruntime import Model, Sampling, load

pytestmark = [pytest.mark.native, needs_chromium]
BUNDLE = golden_bundle(EMPTY)
OLD = "The old man walked slowly to the river."
NEW = "The old new walked slowly to the river."
PARAGRAPHS = (
    "caf\u00e9 \U0001f600 and a longwordwithoutanyspace"
    + "x" * 90
    + "\n\n\tIt was the best of times,  it was the worst "
    "of times; \u05e9\u05dc\u05d5\u05dd.\nEnd\n"
)
BOOK = (b"It was the best of times,\r\nit was the worst of times.\n" * 90) + b"a needle \xff in the hay\n" + b"x " * 40

ROUNDED = 0.006  # bits: a page keeps hundredths of a bit of each token, and shows three decimals


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepared(tmp_path_factory.mktemp("browser"))


@pytest.fixture(scope="module")
def model() -> Model:
    return load(BUNDLE, threads=1)


@pytest.fixture(scope="module")
def site(folder: Path) -> Path:
    write_site(BUNDLE, folder / "site", runtime=WEB)
    return folder / "site"


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """Serve the site as any file server would, so that the model has one thread: tests share the machine."""
    handler = functools.partial(Quiet, directory=str(site))
    with served(http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)) as found:
        yield found


def play(folder: Path, address: str, scenario: str, **given: Any) -> Any:
    """Run a scenario; the console must stay empty, and nothing may come from elsewhere."""
    request = {
        "scenario": scenario,
        "address": address,
        "opener": str(WEB / "conformance/browser.mjs"),
        "scenarios": str(HERE / "scenarios.mjs"),
        **given,
    }
    found = node("browser.mjs", folder, request)
    if scenario != "fails":
        assert found["said"] == []
    assert found["foreign"] == []
    return found["found"]


def bits_of(model: Model, text: str | bytes) -> np.ndarray:
    """Return the bits of each token but the first."""
    raw = text.encode() if isinstance(text, str) else text
    return np.concatenate([-part.log_probs for part in model.score_tokens([raw])]) / math.log(2)


def check_numbers(seen: dict[str, Any], text: str, bits: np.ndarray, unscored: int = 1) -> None:
    """Compare the page's colours and totals with Python's numbers."""
    total = bits.sum()
    assert float(seen["figures"]["bits per byte"]) == pytest.approx(total / len(bits), abs=ROUNDED)
    assert seen["figures"]["tokens"] == f"{len(text.encode()):,}"
    assert "".join(seen["texts"]) == text
    if text.isascii():
        levels = np.minimum(15, np.floor(np.rint(bits * 100) / 100 / 12 * 16)).astype(int)
        assert np.abs(np.array(seen["levels"][unscored:]) - levels).max() <= 1  # at a border, rounding decides
        assert (np.array(seen["levels"][unscored:]) == levels).mean() > 0.9


def test_text_is_coloured_while_it_is_typed_and_changed(folder: Path, address: str, model: Model) -> None:
    texts = [OLD, NEW, "The old new"]
    found = play(folder, address, "types", texts=texts)
    for text, seen in zip([*texts, texts[-1]], found, strict=True):
        check_numbers(seen, text, bits_of(model, text))
        assert seen["problem"] is None


@pytest.mark.parametrize("size", ["desktop", "telephone"])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_is_pasted_and_its_colours_lie_under_its_characters(
    size: str, theme: str, folder: Path, address: str, model: Model
) -> None:
    text = PARAGRAPHS + OLD * 7 + "Tomorrow, AVAW and fi fl ffi"
    found = play(folder, address, "pastes", texts=[text], size=size, theme=theme)
    check_numbers(found, text, bits_of(model, text))
    assert found["boxes"][0] == found["boxes"][1]
    assert found["wide"][0] <= found["wide"][1]  # nothing to scroll to the side
    field, below, line = found["heights"]
    assert found["lines"] > 8
    assert below - field == pytest.approx(line, abs=2)  # the text below has room for one line more


def test_book_is_dropped_and_read(folder: Path, address: str, model: Model) -> None:
    bits = bits_of(model, BOOK)
    token = BOOK.index(b"needle") + 3
    found = play(folder, address, "drops", raw=list(BOOK), token=token)
    assert found["title"] == "a book.txt"
    grown = [int(words.partition(" of ")[0].replace(",", "")) for words in found["states"] if " of " in words]
    assert grown and grown == sorted(grown) and grown[0] < len(BOOK)
    assert float(found["whole"]["figures"]["bits per byte"]) == pytest.approx(bits.sum() / len(bits), abs=1e-3)
    first = "".join(found["whole"]["texts"])  # blocks near the window
    assert len(first) > 500 and BOOK.replace(b"\r\n", b"\n").startswith(first.encode())
    (part,) = [part for part in model.score_tokens([BOOK], top=5) if part.index[0] <= token <= part.index[-1]]
    at = token - int(part.index[0])
    assert part.rank is not None and part.entropy is not None
    assert f"{bits[token - 1]:.2f} bits" in found["words"]
    assert f"{part.rank[at]} of 256" in found["words"]
    assert f"{part.entropy[at] / math.log(2):.2f} bits" in found["words"]
    assert f"token {token:,} of {len(BOOK):,}" in found["words"]
    assert "bits" in found["surprising"] and found["mode"] == "word"
    assert found["strip"] > 10
    assert float(found["after"]["figures"]["bits per byte"]) == pytest.approx(bits_of(model, "He")[0], abs=ROUNDED)


def test_continuations_are_drawn_written_and_compared(folder: Path, address: str, model: Model) -> None:
    written = [" and swam.", " qqzzqq"]
    found = play(folder, address, "continues", texts=[OLD], length=20, written=written)
    stream = model.stream()
    stream.feed(OLD)
    for seed, drawn in enumerate(found["drawn"], 1):
        ids = list(stream.fork().generate(None, max_tokens=20, sampling=Sampling(temperature=0.8, seed=seed)))
        assert drawn["text"] == model.tokenizer.decode(ids).replace("\r\n", "\n").replace("\r", "\n")
    totals = [stream.score_continuation(text).bits.sum() for text in written]
    for total, text, one in zip(totals, written, found["written"], strict=True):
        assert one["bits"].startswith(f"{total:.1f} bits")
        assert one["bits"].endswith(f"{total / len(text):.2f} per byte")
    assert found["likelier"] == "AB"[int(np.argmin(totals))]
    assert f"by {abs(totals[0] - totals[1]):.1f} bits" in found["verdict"]
    assert "bits" in found["stopped"]["bits"] and len(found["stopped"]["text"]) < 2000


def test_states_cross(folder: Path, address: str, model: Model, tmp_path: Path) -> None:
    read, given, foreign = "A book that was read elsewhere. ", tmp_path / "s.safetensors", tmp_path / "f.safetensors"
    stream = model.stream()
    stream.feed(read)
    stream.save(given)
    other = load(golden_bundle(ZEROS), threads=1).stream()
    other.feed(read)
    other.save(foreign)
    saved = tmp_path / "page.safetensors"
    paths = {"saved": str(saved), "given": str(given), "foreign": str(foreign)}
    found = play(folder, address, "states", texts=[OLD, NEW], **paths)
    assert found["name"] == "stream.safetensors"
    assert "another bundle" in found["refused"]
    after = stream.feed(NEW).bits
    check_numbers(found["after"], NEW, after, unscored=0)
    assert f"after {len(read)} tokens read before" in found["after"]["state"]
    check_numbers(found["fresh"], NEW, bits_of(model, NEW))
    gone_on, whole = model.restore(saved), model.stream()
    whole.feed(OLD)
    np.testing.assert_allclose(gone_on.feed(" And").bits, whole.feed(" And").bits, atol=1e-3)


def flip(bundle: Path) -> None:
    raw = bytearray((bundle / "score.onnx").read_bytes())
    raw[-1] ^= 1
    (bundle / "score.onnx").write_bytes(raw)


def make_newer(bundle: Path) -> None:
    edit_manifest(bundle, lambda manifest: manifest.update(format=99))


@pytest.mark.parametrize(
    ("damage", "abort", "sentence"),
    [
        (flip, None, "bundle: score.onnx was changed"),
        (lambda bundle: (bundle / "score.onnx").unlink(), None, "bundle: score.onnx is missing"),
        (make_newer, None, "99"),
        (lambda bundle: None, "**/bundle/weights.data", "bundle/weights.data: could not be loaded"),
        (lambda bundle: None, "**/*.wasm", "ONNX Runtime cannot open it"),
        (lambda bundle: None, "**/xlruntime/model.js", "The files of this page cannot be loaded"),
        (lambda bundle: None, "**/xlruntime/scorer.js", "The files of this page cannot be loaded"),
        (lambda bundle: None, "**/worker.js", "The files of this page cannot be loaded"),
    ],
    ids=["flipped", "missing", "newer", "lost", "wasm", "module", "later", "worker"],
)
def test_what_cannot_be_loaded_is_said(
    damage: Callable[[Path], None], abort: str | None, sentence: str, folder: Path, site: Path, tmp_path: Path
) -> None:
    shutil.copytree(site, tmp_path / "site")
    damage(tmp_path / "site/bundle")
    with served(site_server(tmp_path / "site")) as address:
        found = play(folder, address, "fails", abort=abort)
    assert sentence in found["problem"]
    assert "\n" not in found["problem"] and found["problem"].endswith(".")
    assert (found["coloured"], found["state"], found["save"]) == (0, "Not loaded", True)


def test_illegal_id_is_refused(folder: Path, tmp_path: Path) -> None:
    write_site(golden_bundle(BAND), tmp_path / "site", runtime=WEB)
    with served(site_server(tmp_path / "site")) as address:
        found = play(folder, address, "ids", texts=["3 1 4 1 5", "3 1 4 999 5"])
    bundle = load(golden_bundle(BAND), threads=1)
    bits = bits_of_ids(bundle, [3, 1, 4, 1, 5])
    assert float(found["before"]["figures"]["bits per token"]) == pytest.approx(bits.mean(), abs=ROUNDED)
    assert found["problem"].startswith("the text: token 3 is 999, expected an id from 0 to ")


def bits_of_ids(model: Model, ids: list[int]) -> np.ndarray:
    return np.concatenate([-part.log_probs for part in model.score_tokens([np.array(ids)])]) / math.log(2)


def test_keys_reach_everything(folder: Path, address: str, model: Model) -> None:
    found = play(folder, address, "keys", texts=[OLD])
    assert found["live"].startswith("h: ") and f"{bits_of(model, OLD)[0]:.2f} bits" in found["live"]
    assert found["caret"] == ["editor", 1]
    assert found["unnamed"] == []
    assert "token by token" in found["help"] and "Esc changes to reading" in found["help"]


def test_threads_need_the_headers_of_the_own_server(folder: Path, site: Path, address: str) -> None:
    found = play(folder, address, "opens")
    assert (found["words"], found["isolated"], found["modes"]) == ("Ready, 1 thread", False, ["word", "token"])
    assert re.fullmatch(r"Loading the model: \d+\.\d of 0\.1 MB|Starting the model|Ready, .*", found["loading"])
    with served(site_server(site)) as own:
        found = play(folder, own, "opens")
    assert found["isolated"] is True
    assert found["words"].startswith(f"Ready, {min(4, os.cpu_count() or 1)} thread")
