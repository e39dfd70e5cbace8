"""Commands print data on standard output, with the names of the design, and everything else on standard error."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import xlruntime
from xlruntime.bundle import FORMAT
from xlruntime.bundle_files import read_bundle

if TYPE_CHECKING:
    from tests.helpers.invoking import Finished

    Invoke = Callable[..., Finished]

SCORE_FIELDS = [
    "document",
    "tokens",
    "scored_tokens",
    "unknown_tokens",
    "words",
    "chars",
    "bytes",
    "dropped_chars",
    "dropped_bytes",
    "scored_chars",
    "scored_bytes",
    "nats",
    "bits",
    "bits_per_byte",
    "bits_per_char",
    "bits_per_token",
    "perplexity",
    "segment_len",
    "mem_len",
    "clamp_len",
    "same_length",
    "tokens_per_second",
]
TOKEN_FIELDS = ["document", "index", "token", "id", "start", "end", "log_prob", "surprisal_bits", "context"]
VERIFY_FIELDS = [
    "segments",
    "tokens",
    "max_abs_log_prob_diff",
    "mean_abs_log_prob_diff",
    "max_abs_memory_diff",
    "top1_agreement",
    "delta_bits_per_token",
    "first_segment_over_tolerance",
    "bucket_flips",
    "largest_flip_margin",
    "overflow_fraction",
    "tolerance",
    "passed",
]
MORE_VERIFY_FIELDS = [
    "detail_segments",
    "max_distribution_diff",
    "drift",
    "segment_len",
    "mem_len",
    "full_document",
    "settings",
    "bits_per_token",
    "flip_effect_bits_per_token",
    "overflow_fraction_per_layer",
    "overflow_mismatches",
    "kernels",
    "rounding",
    "rms_ratio",
    "largest_ratio",
]
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


def test_score_for_people(bundle: Path, prose: Path, invoke: Invoke) -> None:
    shown = invoke("score", bundle, prose, "--set=same_length=true").succeeded()
    assert shown.out.startswith(f"{prose}: 80 tokens, ")
    bits = score_of(bundle, PROSE.encode(), same_length=True).bits_per_byte
    assert f"{bits:.4f} bits per byte" in shown.out
    assert shown.err == ""


def test_score_under_other_settings(bundle: Path, prose: Path, invoke: Invoke) -> None:
    settings = {"segment_len": 5, "mem_len": 9, "clamp_len": 6}
    options = ("--segment-len", "5", "--mem-len", "9", "--set=clamp_len=6")
    found = invoke("score", bundle, prose, "--json", *options).succeeded().object
    assert (found["segment_len"], found["mem_len"]) == (5, 9)
    assert found["nats"] == pytest.approx(score_of(bundle, PROSE.encode(), **settings).nats)
    assert abs(found["nats"] - score_of(bundle, PROSE.encode()).nats) > 0.01


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


def test_totals_leave_standard_output_to_the_tokens(bundle: Path, prose: Path, invoke: Invoke) -> None:
    shown = invoke("score", bundle, prose, "--per", "token", "--json", "--set=same_length=true").succeeded()
    assert [list(found) for found in shown.objects] == [TOKEN_FIELDS] * 79
    assert shown.err.startswith('{"document"') and len(shown.err.splitlines()) == 1


@pytest.mark.parametrize("batch_size", [1, 2, 8])
def test_several_documents(batch_size: int, bundle: Path, invoke: Invoke, tmp_path: Path) -> None:
    """Score documents in the given order, each independently of the others."""
    paths = []
    for number, length in enumerate((80, 2, 40, 9, 79)):
        paths.append(tmp_path / f"{number}.txt")
        paths[-1].write_bytes(PROSE.encode()[:length])
    shown = invoke("score", bundle, *paths, "--json", "--batch-size", str(batch_size)).succeeded()
    assert [found["document"] for found in shown.objects] == list(map(str, paths))
    for path, found in zip(paths, shown.objects, strict=True):
        assert found["nats"] == pytest.approx(score_of(bundle, path.read_bytes()).nats, abs=1e-3)


def test_standard_input(bundle: Path, prose: Path, invoke: Invoke) -> None:
    found = invoke("score", bundle, "-", "--json", stdin=PROSE.encode()).succeeded().object
    wanted = invoke("score", bundle, prose, "--json").succeeded().object
    assert found["document"] == "standard input"
    assert found["nats"] == wanted["nats"]


def test_token_ids(bundle: Path, prose: Path, invoke: Invoke, tmp_path: Path) -> None:
    path = tmp_path / "ids.txt"
    path.write_text(" ".join(map(str, PROSE.encode())))
    wanted = invoke("score", bundle, prose, "--json").succeeded().object
    for given, stdin in ((path, b""), ("-", path.read_bytes())):
        found = invoke("score", bundle, given, "--ids", "--json", stdin=stdin).succeeded().object
        assert (found["nats"], found["tokens"]) == (wanted["nats"], 80)
        assert (found["bytes"], found["bits_per_byte"], found["bits_per_char"]) == (0, None, None)


def test_text_of_any_bytes(bundle: Path, invoke: Invoke) -> None:
    shown = invoke("score", bundle, "-", "--per", "token", "--set=binary=true", stdin=bytes(range(256)) * 2).succeeded()
    assert [found["id"] for found in shown.objects] == (list(range(256)) * 2)[1:]
    assert shown.objects[199]["token"] == "\ufffd"  # a byte that is not a whole character


# verify


def test_verify_as_json(bundle: Path, checkpoint: Path, invoke: Invoke) -> None:
    shown = invoke("verify", bundle, checkpoint, "--json", "--segments", "30", "--threads", "1").succeeded()
    found = shown.object
    assert [name for name in found if name in VERIFY_FIELDS] == VERIFY_FIELDS
    assert set(found) == {*VERIFY_FIELDS, *MORE_VERIFY_FIELDS, "per_segment"}
    assert (found["segments"], found["tokens"], found["passed"]) == (30, 240, True)
    assert len(found["per_segment"]) == 30
    assert shown.err == ""


def test_verify_for_people(bundle: Path, checkpoint: Path, prose: Path, invoke: Invoke) -> None:
    settings = ("--text", prose, "--mem-len", "11", "--segment-len", "7", "--set=same_length=true")
    shown = invoke("verify", bundle, checkpoint, *settings).succeeded()
    assert "12 of 7 tokens, memory 11" in shown.out  # the text is no longer
    assert shown.out.splitlines()[-1].split() == ["equal", "yes"]


def test_verify_fails_on_another_checkpoint(
    bundle: Path, make_checkpoint: Callable[..., Path], invoke: Invoke, tmp_path: Path
) -> None:
    other = make_checkpoint(tmp_path / "other.pt", seed=1)
    shown = invoke("verify", bundle, other, "--json", "--segments", "3")
    assert shown.code == 1
    assert shown.object["passed"] is False
    assert shown.object["first_segment_over_tolerance"] == 0
    failure = json.loads(shown.err)
    assert failure["error"].startswith("the graphs differ from the trained model")
    assert failure["hint"] == "Make sure that bundle and checkpoint belong together."


# convert


def test_convert_as_json(reuse_export: None, checkpoint: Path, invoke: Invoke, tmp_path: Path) -> None:
    output = tmp_path / "out"
    options = ("--json", "--mem-len", "11", "--segments", "4", "--threads", "1")
    shown = invoke("convert", checkpoint, "-o", output, *options).succeeded()
    found = shown.object
    assert next(iter(found)) == "bundle" and found["bundle"] == str(output)
    assert set(found) == {"bundle", "verified_on", *VERIFY_FIELDS, *MORE_VERIFY_FIELDS}
    assert (found["mem_len"], found["segments"], found["passed"]) == (11, 4, True)
    assert shown.err.splitlines()[0] == f"read {checkpoint}: xltraining, transformer_xl"
    assert shown.err.splitlines()[-1] == f"wrote {output}"
    assert read_bundle(output).settings["mem_len"] == 11


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
    assert list(first.object) == ["prompt", "text", "ids"]
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
    lines = invoke(*command, "--stop", r"\n", "--repetition-penalty", "1.3", "--min-p", "0.1").succeeded().object
    assert "\n" not in lines["text"] and lines["text"] != text


# inspect


def test_inspect_as_json_is_the_manifest(bundle: Path, invoke: Invoke) -> None:
    found = invoke("inspect", bundle, "--json").succeeded().object
    manifest = read_bundle(bundle)
    assert found["fingerprint"] == manifest.fingerprint
    assert found["provenance"]["parameters"] > 1000
    figures = json.loads((bundle / "parity.json").read_text("utf-8"))
    assert found["parity"] == {name: value for name, value in figures.items() if name != "per_segment"}
    assert (found["format"], found["digest"]) == (FORMAT, manifest.digest)
    assert found["files"].keys() == manifest.files.keys()
    assert found["graphs"].keys() == {"score", "generate", "detail", "positions"}
    assert found["settings"]["mem_len"]["value"] == 20
