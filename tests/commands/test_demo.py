"""`xlexport demo` with a small sample: its table, its folder, and what stops it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.helpers.invoking import Invoke
from xlexport.sample import SAMPLES
from xlruntime.bundle_files import digest_file, read_bundle
from xltraining.checkpoint import load_checkpoint, save_checkpoint
from xltraining.data.tokenizer_file import TokenizerFile

FILES = ["demo.bundle", "demo.html", "demo.txt"]


@pytest.fixture
def tiny_demo(checkpoint: Path, reuse_export: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """Make the demo's sample, text and times small, with the graphs of other tests, and return the text."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "json.py").write_text("raise SystemExit('a file of the current folder runs')")
    text = "It was the season of Light, it was the season of Darkness.\n" * 40
    monkeypatch.setattr("xlexport.commands.demo.sample_checkpoint", lambda tokens: checkpoint)
    monkeypatch.setattr("xlexport.commands.demo.sample_text", lambda: text)
    monkeypatch.setattr("xlexport.bench.measuring.SGEMM_SIZE", 64)
    monkeypatch.setattr("xlexport.bench.measuring.COPY_BYTES", 1 << 16)
    monkeypatch.setattr("xlexport.bench.disturbance", lambda *clocks, precision: None)
    monkeypatch.setattr("xlexport.bench.measuring.PAUSE", 0)
    monkeypatch.setattr("xlexport.commands.demo.TRIAL_BYTES", 100)
    return text


@pytest.mark.release
def test_demo_as_json(tiny_demo: str, checkpoint: Path, invoke: Invoke, tmp_path: Path) -> None:
    output = tmp_path / "kept"
    shown = invoke("demo", "-o", output, "--json").succeeded()
    found = shown.object
    speeds = ["tokens_per_second", "eager_tokens_per_second", "speedup", "disturbance"]
    assert list(found) == ["convert_seconds", "verify", "score", "text_bytes", *speeds, "bundle", "page"]
    assert found["verify"]["passed"] is True
    assert "per_segment" not in found["verify"]
    assert found["text_bytes"] == len(tiny_demo)
    assert 100 <= found["score"]["bytes"] <= len(tiny_demo)
    assert found["score"]["document"] == "sample text"
    assert found["speedup"] == pytest.approx(found["tokens_per_second"] / found["eager_tokens_per_second"])
    assert found["disturbance"] is None
    assert "in a process without PyTorch" in shown.err
    assert read_bundle(output / "demo.bundle").provenance["sources"] == {
        checkpoint.name: digest_file(checkpoint).sha256
    }
    assert (output / "demo.txt").read_text() == tiny_demo
    assert (found["bundle"], found["page"]) == (str(output / "demo.bundle"), str(output / "demo.html"))


@pytest.mark.full
def test_demo_ends_with_its_table_and_what_it_wrote(tiny_demo: str, invoke: Invoke, tmp_path: Path) -> None:
    shown = invoke("demo").succeeded()
    assert shown.err.splitlines()[-3:] == [
        "wrote xlexport-demo/demo.bundle, the converted model",
        "wrote xlexport-demo/demo.html, a text coloured by surprisal: open it in a browser",
        "next: xlexport report xlexport-demo/demo.bundle YOUR_TEXT.txt",
    ]
    folder = tmp_path / "xlexport-demo"
    assert sorted(path.name for path in folder.iterdir()) == FILES
    assert (folder / "demo.html").read_text("utf-8").startswith("<!doctype html>")
    rows = shown.table
    assert list(rows) == [
        *("converted", "verified", "largest difference", "scored", "bits per byte", "tokens/s", "eager tokens/s")
    ]
    assert rows["verified"] == "125 segments of 8 tokens, memory 20"
    assert float(rows["bits per byte"]) > 1
    assert re.fullmatch(r"[\d,]+ \(\d+\.\dx\)", rows["eager tokens/s"])


@pytest.mark.release
def test_demo_beside_other_programs_compares_nothing(
    tiny_demo: str, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xlexport.bench.disturbance", lambda *clocks, precision: "rounds disagree by 40%")
    assert re.search(
        r"\neager tokens/s +[\d,]+ \(not compared: rounds disagree by 40%\)\n", invoke("demo").succeeded().out
    )
    found = invoke("demo", "--json").succeeded().object
    assert (found["speedup"], found["disturbance"]) == (None, "rounds disagree by 40%")


@pytest.mark.release
def test_demo_of_a_vocabulary_shows_its_tokens(
    tiny_demo: str, checkpoint: Path, invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    pieces = Tokenizer(models.BPE())
    pieces.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    pieces.train_from_iterator([tiny_demo], trainers.BpeTrainer(vocab_size=60, show_progress=False))
    given, vocabulary = load_checkpoint(checkpoint), TokenizerFile("tokenizers", pieces.to_str().encode())
    save_checkpoint(tmp_path / "bpe.pt", given.config, given.state_dict, tokenizer=vocabulary)
    monkeypatch.setattr("xlexport.commands.demo.sample_checkpoint", lambda tokens: tmp_path / f"{tokens}.pt")
    monkeypatch.setattr("xlexport.commands.demo.SCORING_SECONDS", 1000)  # all of the text

    shown = invoke("demo", "--sample", "bpe").succeeded()
    tokens = len(pieces.encode(tiny_demo).ids)
    assert tokens < len(tiny_demo) / 2
    rows = shown.table
    assert list(rows)[3:6] == ["scored", "tokens", "bits per byte"]
    assert rows["tokens"] == f"{tokens:,}, each of {len(tiny_demo) / tokens:.2f} bytes on average"
    assert rows["scored"].startswith(f"{len(tiny_demo):,} of {len(tiny_demo):,} bytes")


def test_demo_of_a_vocabulary_names_the_package_it_needs(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xlexport.extras.is_installed", lambda name: name != "tokenizers")
    error = invoke("demo", "--sample", "bpe").error
    assert error == "Error: tokenizers not installed, needed here. Install it: pip install tokenizers."


@pytest.mark.full
def test_demo_says_which_stage_failed(tiny_demo: str, invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "xlexport.commands.demo.SCORE_WITHOUT_TORCH", "import sys; sys.exit('the runtime imported torch')"
    )
    shown = invoke("demo")
    assert (shown.code, shown.out) == (1, "")
    assert shown.err.splitlines()[-1] == "Error: scoring without PyTorch failed: the runtime imported torch"
    assert not Path("xlexport-demo").exists()


@pytest.mark.release
def test_demo_replaces_only_a_folder_of_its_own(tiny_demo: str, invoke: Invoke, tmp_path: Path) -> None:
    folder = tmp_path / "xlexport-demo"
    folder.mkdir()
    (folder / "demo.txt").write_text("of an earlier demo")
    invoke("demo").succeeded()
    assert (folder / "demo.txt").read_text() == tiny_demo
    (folder / "notes.txt").write_text("mine")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert "exists and is not a folder of the demo, so it is never replaced. Give another path." in invoke("demo").error
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_demo_without_its_sample(invoke: Invoke, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(SAMPLES, "bytes", tmp_path / "absent.pt")
    error = invoke("demo").error
    assert "the sample checkpoint is in neither" in error
    assert "Install from a complete clone" in error
