"""`xlexport context`: points of a curve equal `Model.score`, RECL follows from the losses, and bad input is refused."""

from __future__ import annotations

import gzip
import json
import math
import shutil
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import xlruntime
from tests.helpers import paths
from tests.helpers.invoking import PROSE, Invoke
from tests.helpers.manifests import with_vocabulary
from tests.helpers.paths import golden_bundle
from xlexport.analysis import plots
from xlexport.analysis.recl import find_recl
from xlruntime.tokenizers.vocabulary import Vocabulary

ZEROS, EMPTY, FREE, BAND, CHUNK = map(
    golden_bundle, (paths.ZEROS, paths.EMPTY, "pre_lnorm_empty", paths.BAND, paths.CHUNK)
)
RECL = ("--set=start=2", "--set=step=3", "--set=shares=0.25,1", "--threads", "1")


def write(path: Path, text: bytes = PROSE) -> Path:
    path.write_bytes(text)
    return path


def losses_of(model: xlruntime.Model, text: bytes, mem_len: int) -> Any:
    return np.concatenate([-part.log_probs for part in model.score_tokens([text], mem_len=mem_len)])


def test_points_are_what_score_says(invoke: Invoke, tmp_path: Path) -> None:
    """Compare several documents in a batch at every length that was tried, including the lengths of RECL."""
    files = [write(tmp_path / "one.txt"), write(tmp_path / "two.txt", b"Once upon a time, in a land far away.")]
    report = invoke("context", EMPTY, *files, *RECL, "--set=batch_size=2", "--json").succeeded().object
    assert report["documents"] == [str(file) for file in files]
    assert (report["tokens"], report["scored_tokens"]) == (len(PROSE) + 37, len(PROSE) + 35)
    (found,) = report["models"]
    lengths = [point["mem_len"] for point in found["lengths"]]
    assert set(lengths) >= {1, 3, 6, 12, 24} | {2, 5}
    assert lengths == sorted(lengths)
    model = xlruntime.load(EMPTY, threads=1)
    for point in found["lengths"]:
        totals = list(model.score(files, mem_len=point["mem_len"]))
        nats = sum(total.nats for total in totals)
        # Rows of a batch and sums of other parts round differently: float32 of some 100 numbers about 5.
        assert point["nats"] == pytest.approx(nats, rel=1e-6)
        covered = sum(total.bits / total.bits_per_byte for total in totals if total.bits_per_byte)
        assert point["bits_per_byte"] == pytest.approx(point["nats"] / math.log(2) / covered)
        scored = sum(total.scored_tokens for total in totals)
        assert point["bits_per_token"] == pytest.approx(point["nats"] / math.log(2) / scored)
        assert point["perplexity"] == pytest.approx(math.exp(point["nats"] / scored))
        parts = list(model.score_tokens(files, mem_len=point["mem_len"]))
        assert point["context"] == pytest.approx(np.concatenate([part.context for part in parts]).mean())
    assert len({point["nats"] for point in found["lengths"]}) == len(lengths)


def test_recl_is_that_of_the_losses(invoke: Invoke, tmp_path: Path) -> None:
    """Compute RECL for a group of two models; the baseline is the better one."""
    text = write(tmp_path / "text.txt")
    line = ("context", EMPTY, text, "--beside", ZEROS, *RECL, "--lengths", "6", "--set=longest=20", "--json")
    report = invoke(*line).succeeded().object
    models = [xlruntime.load(path, threads=1) for path in (EMPTY, ZEROS)]
    expected = find_recl(
        lambda c: [losses_of(model, PROSE, c) for model in models], start=2, step=3, longest=20, shares=(0.25, 1.0)
    )
    for found, results in zip(report["models"], expected, strict=True):
        assert [recl["hard"] for recl in found["recl"]] == [0.25, 1.0]
        assert [recl["recl"] for recl in found["recl"]] == [result.recl for result in results]
        for recl, result in zip(found["recl"], results, strict=True):
            assert [gain["gain"] for gain in recl["gains"]] == pytest.approx([gain.gain for gain in result.gains])
    alone = invoke("context", EMPTY, text, *RECL, "--lengths", "6", "--set=longest=20", "--json").succeeded().object
    assert alone["models"][0]["lengths"][0]["nats"] == pytest.approx(report["models"][0]["lengths"][0]["nats"])
    baselines = [r["models"][0]["recl"][1]["gains"][0]["baseline_nats"] for r in (alone, report)]
    assert baselines[1] < baselines[0]


@pytest.mark.full
def test_curves_are_drawn(invoke: Invoke, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    text, path = write(tmp_path / "text.txt"), tmp_path / "reach.svg"
    line = ("context", EMPTY, text, "--beside", ZEROS, *RECL, "--lengths", "4,8", "--plot", path)
    assert invoke(*line).succeeded().err.endswith(f"\nwrote {path}\n")
    assert ElementTree.parse(path).getroot().tag == "{http://www.w3.org/2000/svg}svg"


def test_figure_3_has_the_gains_of_perplexity(invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    figures: list[Any] = []
    monkeypatch.setattr(plots, "save_picture", lambda figure, path: figures.append(figure))
    line = ("context", EMPTY, write(tmp_path / "text.txt"), *RECL, "--lengths", "4,8", "--plot", tmp_path / "reach.svg")
    report = invoke(*line, "--json").succeeded().object
    _, relative, absolute = figures[0].axes
    for recl, percent, perplexity in zip(report["models"][0]["recl"], relative.lines, absolute.lines, strict=False):
        assert list(percent.get_ydata()) == [100 * gain["gain"] for gain in recl["gains"]]
        assert list(perplexity.get_ydata()) == [gain["perplexity_gain"] for gain in recl["gains"]]
    assert absolute.get_ylabel() == "gain in perplexity"


def test_full_context_counts_the_same_tokens_at_every_length(invoke: Invoke, tmp_path: Path) -> None:
    text = write(tmp_path / "text.txt")
    line = (
        "context",
        EMPTY,
        text,
        "--lengths",
        "3,30",
        "--no-recl",
        "--set=full_context=true",
        "--json",
        "--threads",
        "1",
    )
    report = invoke(*line).succeeded().object
    assert report["recl"] is None
    assert report["scored_tokens"] == len(PROSE) - 30
    model = xlruntime.load(EMPTY, threads=1)
    for point in report["models"][0]["lengths"]:
        assert point["nats"] == pytest.approx(losses_of(model, PROSE, point["mem_len"])[29:].sum())
        assert point["context"] == point["mem_len"]


def test_tables(invoke: Invoke, tmp_path: Path) -> None:
    copied = Path(shutil.copytree(ZEROS, tmp_path / "other.bundle"))
    line = ("context", EMPTY, write(tmp_path / "text.txt"), *RECL, "--lengths", "4,8")
    one = invoke(*line).succeeded()
    assert one.err.startswith(f"at most 4 passes over {len(PROSE)} tokens, 2 of them only while RECL is not found")
    assert [row.split()[0] for row in one.out.splitlines()[2:6]] == ["memory", "2", "4", "5"]
    two = invoke(*line, "--beside", copied).succeeded()
    assert "other.bundle, bits per byte" in two.out and two.out.splitlines()[-1].startswith("other.bundle ")
    ids = write(tmp_path / "ids.txt", b" ".join(b"%d" % (n % 29) for n in range(60)))
    free = invoke("context", FREE, "--ids", ids, "--no-recl", "--lengths", "4", "--threads", "1").succeeded()
    assert "bits per token" in free.out and "Without same_length, a token sees the memory" in free.err


def test_memories_too_short_for_recl_are_measured_without_it(invoke: Invoke, tmp_path: Path) -> None:
    found = invoke("context", EMPTY, write(tmp_path / "text.txt"), "--threads", "1", "--json").succeeded()
    assert found.object["recl"] is None
    assert [length["mem_len"] for length in found.object["models"][0]["lengths"]] == [1, 3, 6, 12, 24]
    assert found.err.startswith("without RECL: it needs a memory of start + step = 200 tokens, the longest has 24\n")


def test_what_score_reads_is_read(invoke: Invoke, tmp_path: Path) -> None:
    """Read folders, packed files and JSON lines; each model of a group reads them again."""
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "a.txt.gz").write_bytes(gzip.compress(PROSE))
    lines = tmp_path / "lines.jsonl"
    lines.write_text(json.dumps({"text": PROSE.decode()}) + "\n", "utf-8")
    line = ("--beside", ZEROS, "--no-recl", "--lengths", "4", "--threads", "1", "--json")
    packed = invoke("context", EMPTY, folder, *line).succeeded().object
    listed = invoke("context", EMPTY, lines, "--field", "text", *line).succeeded().object
    piped = invoke("context", EMPTY, "-", *line, stdin=PROSE).succeeded().object
    for report in (packed, listed, piped):
        assert report["scored_tokens"] == len(PROSE) - 1
        model = xlruntime.load(ZEROS, threads=1)
        nats = report["models"][1]["lengths"][0]["nats"]
        assert nats == pytest.approx(losses_of(model, PROSE, 4).sum())


def test_reformers_of_rule_band(invoke: Invoke, tmp_path: Path) -> None:
    ids = write(tmp_path / "ids.txt", b" ".join(b"%d" % (7 * n % 250) for n in range(90)))
    line = ("context", BAND, "--ids", ids, "--no-recl", "--lengths", "2,24", "--threads", "1", "--json")
    short, long = invoke(*line).succeeded().object["models"][0]["lengths"]
    assert short["nats"] != long["nats"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--lengths", "0"), "'0' is not a list of integers of at least 1"),
        (("--lengths", ","), "an empty list"),
        (("--lengths", "a"), "'a' is not a list of integers"),
        (("--set=shares=x",), "'x' is not a list of numbers"),
        (("--mem-len", "4"), "No such option"),
        (("--no-recl", "--set=start=5", "--set=shares=1"), "--set start and --set shares: only for RECL."),
        (("--hard", "1"), "It is a setting: --set shares=VALUE."),
    ],
)
def test_wrong_usage(options: tuple[str, ...], said: str, invoke: Invoke, tmp_path: Path) -> None:
    found = invoke("context", EMPTY, write(tmp_path / "text.txt"), *options)
    assert (found.code, found.out) == (2, "")
    assert said in found.err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--set=shares=0,0.5,2",), "shares of hard tokens are [0.0, 2.0], expected numbers above 0 and up to 1"),
        (("--set=shares=,",), "shares of hard tokens are an empty list"),
        (("--set=step=0", "--set=start=0"), "start is 0, at least 1 is needed; step is 0, at least 1 is needed"),
        (("--set=threshold=1",), "threshold is 1.0, expected a number between 0 and 1"),
        (("--set=longest=150",), "longest is 150, at least start + step = 200 is needed to compare two"),
        (
            ("--recl",),
            "the longest memory is 24, at least start + step = 200 is needed to compare two. Give longer --lengths",
        ),
        (("--no-recl", "--lengths", "9999999999"), "expected 1 to"),
        (
            ("--no-recl", "--set=full_context=true", "--lengths", "500"),
            "no token has 500 others before it in its document",
        ),
        (("--plot", "reach.gif"), "a plot is a .png or .svg file"),
        (("--plot", "no/reach.png"), "no such folder to write reach.png into"),
    ],
)
def test_what_is_refused(options: tuple[str, ...], said: str, invoke: Invoke, tmp_path: Path) -> None:
    assert said in invoke("context", EMPTY, write(tmp_path / "text.txt"), *options, "--threads", "1").error


def test_bundles_and_texts_that_are_refused(invoke: Invoke, tmp_path: Path) -> None:
    text, short = write(tmp_path / "text.txt"), write(tmp_path / "short.txt", b"x")
    ids = write(tmp_path / "ids.txt", b"1 2 3 4 5")
    assert "has no memory, so its length cannot vary" in invoke("context", CHUNK, "--ids", ids, *RECL).error
    assert "none.txt: No such file" in invoke("context", EMPTY, tmp_path / "none.txt", *RECL).error
    (tmp_path / "empty").mkdir()
    empty = invoke("context", EMPTY, tmp_path / "empty", *RECL)
    assert "no documents found; looked for files." in empty.err.splitlines()[-1]
    assert "no such" in invoke("context", tmp_path / "none.bundle", text, *RECL).error
    assert "1 of at least 2 tokens, so nothing to score" in invoke("context", EMPTY, "-", *RECL, stdin=b"x").error
    assert "short.txt: 1 of at least 2 tokens" in invoke("context", EMPTY, short, *RECL).error


def with_words(folder: Path) -> Path:
    """Return a bundle of words instead of bytes."""
    words = Vocabulary("words", ("<unk>", "<eos>", "a", "b", *(f"w{n}" for n in range(25))), "<unk>", None, "<eos>")
    return with_vocabulary(FREE, folder, words)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"a b c d", f"splits the text into 5 tokens, but {EMPTY} into 7."),
        (b"a b", f"its tokens begin and end at other places than the tokens of {EMPTY}."),  # three each
    ],
)
def test_a_group_needs_the_same_tokens(text: bytes, said: str, invoke: Invoke, tmp_path: Path) -> None:
    words = with_words(tmp_path / "words.bundle")
    error = invoke("context", EMPTY, write(tmp_path / "text.txt", text), "--beside", words, *RECL).error
    assert error.startswith(f"Error: {words}: {said} A group is compared token by token: give bundles with the same")
