"""What commands print on standard output, and on standard error, also with `--quiet`."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
import torch

import xlruntime
from tests.helpers.invoking import Invoke
from tests.helpers.manifests import with_tokenizer
from tests.helpers.paths import GOLDEN
from xlexport.commands.options import quiet_option
from xlexport.progress_bar import progress_bar
from xlexport.terminal import tell, tell_problem
from xlexport.verification.parity import ParityReport
from xlruntime.bundle import FORMAT
from xlruntime.bundle_files import read_bundle
from xltraining.checkpoint import load_checkpoint

SCORE_FIELDS = [
    *("document", "tokens", "scored_tokens", "unknown_tokens", "words", "chars", "bytes", "dropped_chars"),
    *("dropped_bytes", "scored_chars", "scored_bytes", "nats", "bits", "bits_per_byte", "bits_per_char"),
    *("bits_per_token", "perplexity", "segment_len", "mem_len", "clamp_len", "same_length", "tokens_per_second"),
]
TOKEN_FIELDS = ["document", "index", "token", "id", "start", "end", "log_prob", "surprisal_bits", "context"]
PROSE = "It was the best of times, it was the worst of times,\nit was the âge of wisdom.\n"


@pytest.fixture
def prose(tmp_path: Path) -> Path:
    path = tmp_path / "prose.txt"
    path.write_bytes(PROSE.encode())
    return path


def score_of(bundle: Path, text: bytes, **settings: Any) -> xlruntime.DocumentScore:
    (score,) = xlruntime.load(bundle, threads=1).score([text], **settings)
    return score


# score


def test_score_as_json(bundle: Path, prose: Path, invoke: Invoke) -> None:
    shown = invoke("score", bundle, prose, "--json").succeeded()
    found = shown.object
    assert list(found) == SCORE_FIELDS
    assert found["document"] == str(prose)
    assert (found["tokens"], found["scored_tokens"], found["bytes"]) == (80, 79, 80)
    assert (found["words"], found["chars"]) == (len(PROSE.split()), len(PROSE))
    assert (found["scored_bytes"], found["scored_chars"]) == (79, 78)
    assert (found["segment_len"], found["mem_len"]) == (8, 20)
    assert found["nats"] == pytest.approx(score_of(bundle, PROSE.encode()).nats)
    assert found["bits"] == pytest.approx(found["nats"] / math.log(2))
    assert found["bits_per_byte"] == found["bits_per_token"] == pytest.approx(found["bits"] / 79)
    assert found["bits_per_char"] == pytest.approx(found["bits"] / 78)
    assert found["perplexity"] == pytest.approx(math.exp(found["nats"] / 79))
    assert found["tokens_per_second"] > 0
    assert shown.err == "Without same_length the scores depend on the segment length, which is 8.\n"


def test_score_of_each_token(bundle: Path, prose: Path, invoke: Invoke) -> None:
    shown = invoke("score", bundle, prose, "--per", "token").succeeded()
    assert len(shown.objects) == 79
    for place, found in enumerate(shown.objects, start=1):
        assert list(found) == TOKEN_FIELDS
        assert (found["document"], found["index"]) == (str(prose), place)
        assert (found["start"], found["end"], found["id"]) == (place, place + 1, PROSE.encode()[place])
        assert found["surprisal_bits"] == pytest.approx(-found["log_prob"] / math.log(2))
        assert 1 <= found["context"] <= min(place, 28)
    assert [found["token"] for found in shown.objects[:4]] == list("t wa")
    assert [found["context"] for found in shown.objects[20:24]] == [21, 22, 23, 24]
    total = sum(found["log_prob"] for found in shown.objects)
    assert -total == pytest.approx(score_of(bundle, PROSE.encode()).nats)
    note, summary = shown.err.splitlines()
    assert note.startswith("Without same_length")
    assert summary.startswith(f"{prose}: 80 tokens")


# verify


@pytest.mark.full
def test_verify_as_json(bundle: Path, checkpoint: Path, invoke: Invoke) -> None:
    shown = invoke("verify", bundle, checkpoint, "--json", "--segments", "30", "--threads", "1").succeeded()
    found = shown.object
    assert found.keys() == {field.name for field in fields(ParityReport)}
    assert (found["segments"], found["tokens"], found["passed"]) == (30, 240, True)
    assert len(found["per_segment"]) == 30
    assert shown.err == ""


@pytest.mark.full
def test_verify_for_people(bundle: Path, checkpoint: Path, prose: Path, invoke: Invoke) -> None:
    settings = ("--text", prose, "--mem-len", "11", "--segment-len", "7", "--set=same_length=true")
    shown = invoke("verify", bundle, checkpoint, *settings).succeeded()
    assert "12 of 7 tokens, memory 11" in shown.out  # the text is no longer
    assert shown.out.splitlines()[-1].split() == ["equal", "yes"]


@pytest.mark.full
def test_verify_fails_on_another_checkpoint(
    bundle: Path, make_checkpoint: Callable[..., Path], invoke: Invoke, tmp_path: Path
) -> None:
    other = make_checkpoint(tmp_path / "other.pt", seed=1)
    shown = invoke("verify", bundle, other, "--json", "--segments", "3")
    assert shown.code == 1
    assert shown.object["passed"] is False
    assert shown.object["first_segment_over_tolerance"] == 0 and shown.object["top1_agreement"] < 1
    failure = json.loads(shown.err)
    assert failure["error"].startswith("the graphs differ from the trained model")
    assert failure["hint"] == "Make sure that bundle and checkpoint belong together."


@pytest.mark.release
def test_verify_remembers_what_convert_was_told(
    reuse_export: None, checkpoint: Path, invoke: Invoke, tmp_path: Path
) -> None:
    trained, plain, settings = load_checkpoint(checkpoint), tmp_path / "plain.pt", tmp_path / "settings.json"
    torch.save(trained.state_dict, plain)
    needed = ("pre_lnorm", "tgt_len", "mem_len", "clamp_len", "same_length", "first_memory", "window_extra")
    settings.write_text(json.dumps({name: getattr(trained.config, name) for name in needed}))
    convert = ("convert", plain, "-o", tmp_path / "out", "--tokenizer", "bytes", "--segments", "2", "--threads", "1")
    assert "settings of this state dict are missing" in invoke(*convert).error
    invoke(*convert, "--config", settings).succeeded()
    verify = ("verify", tmp_path / "out", plain, "--segments", "2", "--threads", "1")
    invoke(*verify).succeeded()
    assert invoke(*verify, "--config", "pre_lnorm=true").code == 1  # a value that is given anew counts


# convert


@pytest.mark.full
def test_convert_as_json(reuse_export: None, checkpoint: Path, invoke: Invoke, tmp_path: Path) -> None:
    output = tmp_path / "out"
    options = ("--json", "--mem-len", "11", "--segments", "4", "--threads", "1")
    shown = invoke("convert", checkpoint, "-o", output, *options).succeeded()
    found = shown.object
    assert next(iter(found)) == "bundle" and found["bundle"] == str(output)
    names = {field.name for field in fields(ParityReport)} - {"per_segment"}
    assert found.keys() == {"bundle", "verified_on", "peak_memory", *names}
    assert (found["mem_len"], found["segments"], found["passed"]) == (11, 4, True)
    assert shown.err.splitlines()[0] == f"read {checkpoint}: xltraining, transformer_xl"
    assert shown.err.splitlines()[-1] == f"wrote {output}"
    assert read_bundle(output).settings["mem_len"] == 11


@pytest.mark.release
def test_convert_writes_beside_the_checkpoint_and_replaces_by_force(
    reuse_export: None, checkpoint: Path, invoke: Invoke, tmp_path: Path
) -> None:
    own = Path(shutil.copy(checkpoint, tmp_path / "model.v2.pt"))
    shown = invoke("convert", own, "--segments", "2").succeeded()
    assert read_bundle(tmp_path / "model.v2.bundle").settings["clamp_len"] == -1
    assert shown.out.splitlines()[-1].split() == ["equal", "yes"]
    invoke("convert", own, "--segments", "2", "--force", "--set=clamp_len=5").succeeded()
    assert read_bundle(tmp_path / "model.v2.bundle").settings["clamp_len"] == 5
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.v2.bundle", "model.v2.pt"]


# generate


def test_generate_with_a_seed_is_repeatable(bundle: Path, invoke: Invoke) -> None:
    command = ("generate", bundle, "It was", "-n", "12", "--json")
    first = invoke(*command, "--seed", "5").succeeded()
    assert list(first.object) == ["prompt", "text", "ids", "finish_reason"]
    assert first.object["prompt"] == "It was"
    assert len(first.object["ids"]) == 12
    assert first.err == ""
    assert invoke(*command, "--seed", "5").succeeded().out == first.out
    assert invoke(*command, "--seed", "6").succeeded().out != first.out


def test_generate_against_scores(bundle: Path, invoke: Invoke) -> None:
    """Check that temperature 0 takes the token with the best score."""
    found = invoke("generate", bundle, "It was", "-n", "1", "--temperature", "0", "--json").succeeded().object
    model = xlruntime.load(bundle, threads=1)
    scores = [model.stream().feed([*b"It was", candidate]).log_probs[-1] for candidate in range(256)]
    assert found["ids"] == [int(np.argmax(scores))]


def test_generate_prints_prompt_and_text(bundle: Path, prose: Path, invoke: Invoke) -> None:
    expected = invoke("generate", bundle, PROSE, "-n", "3", "--seed", "1", "--json").succeeded().object
    for prompt in ((PROSE,), ("--file", prose)):
        shown = invoke("generate", bundle, *prompt, "-n", "3", "--seed", "1").succeeded()
        assert shown.out == f"{PROSE}{expected['text']}\n"
    shown = invoke("generate", bundle, "--file", "-", "-n", "0", stdin=b"\xff caf\xc3\xa9").succeeded()
    assert shown.out == "\ufffd café\n"


def test_generate_ends_before_a_stop(bundle: Path, invoke: Invoke) -> None:
    command = ("generate", bundle, "It was", "-n", "40", "--seed", "5", "--json")
    text = invoke(*command).succeeded().object["text"]
    for stop in (text[9:12], text[20]):
        found = invoke(*command, "--stop", "\x00\x00", "--stop", stop).succeeded().object
        assert found["text"] == text.partition(stop)[0] and len(found["ids"]) < 40
    lines = invoke(*command, "--stop", r"\n", "--set=repetition_penalty=1.3", "--set=min_p=0.1").succeeded().object
    assert "\n" not in lines["text"] and lines["text"] != text


def test_generate_ends_at_an_end_token(bundle: Path, tmp_path: Path, invoke: Invoke) -> None:
    command = ("-n", "12", "--temperature", "0", "--json")
    free = invoke("generate", bundle, "It was", *command).succeeded().object
    assert free["finish_reason"] == "length"
    end = free["ids"][5]
    ends = [{"id": end, "name": "</s>", "source": "a test"}]
    ending = with_tokenizer(bundle, tmp_path / "ending", ends=ends)
    found = invoke("generate", ending, "It was", *command).succeeded().object
    assert (found["ids"], found["finish_reason"]) == (free["ids"][: free["ids"].index(end)], "stop")
    line = ("generate", ending, "It was", *command, "--set=ignore_eos=true", "--set=special=true")
    assert invoke(*line).succeeded().object == free
    shown = invoke("inspect", ending).succeeded().out
    assert f"begin with no token of their own; end with </s> (id {end}, a test)" in shown


# inspect


def test_inspect_as_json_is_the_manifest(bundle: Path, invoke: Invoke) -> None:
    found = invoke("inspect", bundle, "--json").succeeded().object
    manifest = read_bundle(bundle)
    assert found["fingerprint"] == manifest.fingerprint
    assert found["provenance"]["parameters"] > 1000
    figures = json.loads((bundle / "parity.json").read_text("utf-8"))
    assert found["parity"] == {name: value for name, value in figures.items() if name != "per_segment"}
    assert (found["format"], found["digest"]) == (FORMAT, manifest.digest)
    assert found["graphs_checked"] == ["detail.onnx", "generate.onnx", "positions.onnx", "score.onnx"]
    assert found["files"].keys() == manifest.files.keys()
    assert found["graphs"].keys() == {"score", "generate", "detail", "positions"}
    assert found["settings"]["mem_len"]["value"] == 20


# `--quiet`.


NO_WINDOW = GOLDEN / "post_lnorm_same_length_empty" / "bundle"


def test_notes_of_score(prose: Path, invoke: Invoke, tmp_path: Path) -> None:
    line = ["score", NO_WINDOW, prose, prose, "--threads", "1", "--per", "word", "--format", "csv"]
    loud, quiet = invoke(*line).succeeded(), invoke(*line, "--quiet").succeeded()
    assert loud.out == quiet.out
    assert "2 documents" in loud.err and quiet.err == ""
    assert invoke(*line, "-q", "-o", tmp_path / "words.csv").succeeded().err == ""
    loud, quiet = invoke(*line[:-2], "--json"), invoke(*line[:-2], "--json", "-q")
    assert '"bits_per_byte"' in loud.err and quiet.err == ""


def test_notes_and_progress_of_other_commands(prose: Path, invoke: Invoke, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert "wrote" in invoke("report", NO_WINDOW, prose, "-o", page).succeeded().err
    assert invoke("report", NO_WINDOW, prose, "-o", page, "--force", "--quiet").succeeded().err == ""
    assert "without RECL" in invoke("context", NO_WINDOW, prose).succeeded().err
    assert invoke("context", NO_WINDOW, prose, "-q").succeeded().err == ""


def test_what_quiet_leaves(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Check in one command that notes and lines of progress are left out, and problems are not."""
    monkeypatch.setenv("XLEXPORT_PROGRESS_SECONDS", "0")

    @click.command()
    @quiet_option
    def work() -> None:
        with progress_bar("working") as progress:
            progress(1, 2)
        tell("a note")
        tell_problem("a problem")

    for options, expected in ([], 3), (["-q"], 1):
        work.main(options, standalone_mode=False)
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == expected and lines[-1] == "a problem"


@pytest.mark.full
def test_convert_says_which_step_it_is_in(
    reuse_export: None, checkpoint: Path, invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XLEXPORT_PROGRESS_SECONDS", "0")  # a line after every segment
    line = ["convert", checkpoint, "--threads", "1", "--segments", "3"]
    loud = invoke(*line, "-o", tmp_path / "loud").succeeded().err.splitlines()
    stage = "verifying up to 3 segments of 8 tokens against the eager model"
    assert {"exporting the step graphs", stage} <= set(loud)
    for done in ("33% 1/3", "67% 2/3", "100% 3/3"):
        assert any(shown.startswith(f"{stage}: {done} [00:") for shown in loud), loud
    assert invoke(*line, "-o", tmp_path / "quiet", "--quiet").succeeded().err == ""


def test_training_prints_lines_where_there_is_no_terminal(
    prose: Path, invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XLEXPORT_PROGRESS_SECONDS", "0")  # a line after every update
    sizes = (
        "--n-layer",
        "1",
        "--d-model",
        "8",
        "--n-head",
        "1",
        "--set=model.d_head=8",
        "--set=model.d_inner=8",
        "--tgt-len",
        "8",
    )
    line = ["train", prose, "--steps", "2", "--batch-size", "2", *sizes, "--threads", "1"]
    loud = invoke(*line, "-o", tmp_path / "loud").succeeded().err
    assert "training: 50% 1/2 [00:" in loud and "training: 100% 2/2 [00:" in loud and "finished" in loud
    assert invoke(*line, "-o", tmp_path / "quiet", "-q").succeeded().err == ""


def test_scoring_compares_known_answers_once(
    bundle: Path, prose: Path, invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    invoke("score", bundle, prose, "--set=check=off").succeeded()
    assert not (tmp_path / "cache").exists()
    invoke("score", bundle, prose).succeeded()
    assert len(list((tmp_path / "cache/xlexport/checks").iterdir())) == 1
