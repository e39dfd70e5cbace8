"""Published weights by name, and `xlexport reproduce`, with files of the real names and keys and random weights."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.families.transformer_xl.files import VARIANTS, make_oracle, write_huggingface
from tests.helpers.invoking import PROSE, Invoke
from tests.helpers.paths import ROOT
from tests.oracles.reformer_configurations import ReformerCase
from tests.oracles.reformers import HuggingFaceReformer
from tests.runtime.tokenizer_files import sentencepiece_file
from xlexport.published import ENWIK8, SCORES, read_test_set

Publish = Callable[[str], None]

COMMIT = "1" * 40
XL, BYTES, NOVEL = "transfo-xl/transfo-xl-wt103", "google/reformer-enwik8", "google/reformer-crime-and-punishment"
PARTS = {"axial_pos_shape": [8, 16], "max_position_embeddings": 128, "hash_seed": None, "num_hashes": 2}
REFORMERS = {
    BYTES: {**PARTS, "vocab_size": 258, "attn_layers": ["local", "local", "lsh", "local"]},
    NOVEL: {**PARTS, "vocab_size": 320, "attn_layers": ["local", "lsh"], "num_buckets": [2, 4]},
}
S128 = "--segment-len 128 --mem-len 1600 --set clamp_len=1000 --set same_length=true"


def write(name: str, folder: Path) -> Path:
    """Write the files of a published model, with tiny sizes."""
    if name == XL:
        oracle = make_oracle(**{**VARIANTS["div_val"], "pre_lnorm": False, "untie_r": True})
        files = write_huggingface(oracle, folder, {"tgt_len": None}, safetensors=False)
        ids = {"<eos>": 0, "<unk>": 1, "It": 2, **{f"word{index}": index for index in range(3, 40)}}
        fields = {"idx2sym": list(ids), "sym2idx": ids, "lower_case": False, "delimiter": None}
        torch.save(fields, files / "vocab.bin")
        return files
    reformer = HuggingFaceReformer(ReformerCase("tiny", REFORMERS[name], ()))
    files = reformer.save(folder / "files")
    (files / "model.safetensors").unlink()
    torch.save(reformer.model.state_dict(), files / "pytorch_model.bin")
    if name == NOVEL:
        (files / "spiece.model").write_bytes(sentencepiece_file())
    return files


@pytest.fixture
def publish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Publish:
    """Return a function that puts a tiny model of a published name into the cache of the hub."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))

    def published(name: str) -> None:
        repository = tmp_path / "hub" / f"models--{name.replace('/', '--')}"
        for folder in (repository / "snapshots" / COMMIT, repository / "blobs", repository / "refs"):
            folder.mkdir(parents=True)
        (repository / "refs" / "main").write_text(COMMIT)
        for number, file in enumerate(write(name, tmp_path).iterdir()):
            file.rename(repository / "blobs" / str(number))
            (repository / "snapshots" / COMMIT / file.name).symlink_to(Path("..", "..", "blobs", str(number)))

    return published


@pytest.mark.parametrize(("name", "vocabulary"), [(XL, "40 words"), (BYTES, "bytes"), (NOVEL, "spiece.model")])
def test_published_weights_need_no_option(name: str, vocabulary: str, publish: Publish, invoke: Invoke) -> None:
    publish(name)
    shown = invoke("inspect", name).succeeded().out
    assert re.search(rf"^vocabulary .*{vocabulary}", shown, re.M) and not re.search("^needs", shown, re.M)


@pytest.mark.release
@pytest.mark.usefixtures("cached_exports")
@pytest.mark.parametrize(("name", "options"), [(XL, S128), (BYTES, "--protocol document --restart")])
def test_reproduce_is_convert_and_evaluate(name: str, options: str, publish: Publish, invoke: Invoke) -> None:
    """Reproduce from weights by name and the folder of the corpus; then evaluate the bundle on the same file."""
    publish(name)
    text = Path(SCORES[name].dataset.file)
    text.write_bytes(PROSE * 8)
    comparison = invoke("reproduce", name, ".", "--bundle", "bundle", "--json").succeeded().object
    score = invoke("evaluate", "bundle", text, *options.split(), "--json").succeeded().object
    ours, theirs = (score["perplexity"], 18.3) if name == XL else (score["bits_per_token"], 1.05)
    expected = {**score, "published": SCORES[name].figures, "figure": ours, "difference": ours - theirs}
    expected |= {"converted_from": f"{name}@{COMMIT}", "tokens_per_second": comparison["tokens_per_second"]}
    assert expected.items() <= comparison.items()

    size = f"tokens {score['tokens']}, published 245569" if name == XL else f"bytes {len(PROSE) * 8}, published 5000000"
    others = [f"d_model {12 if name == XL else 32}, published 1024", size]
    assert set(others) <= set(comparison["not_as_published"])

    shown = invoke("reproduce", name, text, "--bundle", "bundle").succeeded().out
    for row in (f"converted from {name}@{COMMIT}", f"published {theirs} .*", f"not as published {others[0]}"):
        assert re.search(f"^{row}$", re.sub("  +", " ", shown), re.M)
    assert invoke("verify", "bundle", name, "--segments", "2").code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (f"{NOVEL} .", "'google/reformer-crime-and-punishment' is not one of 'transfo-xl/transfo-xl-wt103', 'google"),
        (f"{XL} .", "wiki.test.tokens: no such file. Expected wiki.test.tokens with the test set of WikiText-103, or"),
        ("lm1b-tf text --bundle absent", "Missing option '--model', a checkpoint of tf/sota/lm1b.sh, or '--bundle'"),
        (f"{XL} text --bundle text", "text: exists and is not a bundle, so it is never replaced."),
        (f"{XL} text", f"To have a model of the hub in the cache, run `hf download {XL}`."),
    ],
)
@pytest.mark.usefixtures("publish")
def test_what_is_missing(arguments: str, message: str, invoke: Invoke) -> None:
    Path("text").write_bytes(PROSE)
    assert message in invoke("reproduce", *arguments.split()).err
    assert [path.name for path in Path().iterdir()] == ["text"]


@pytest.mark.usefixtures("publish")
def test_options_of_a_conversion_are_refused_if_the_bundle_is_there(invoke: Invoke) -> None:
    Path("text").write_bytes(PROSE)
    Path("bundle").mkdir()
    Path("bundle", "bundle.json").write_text("{}")
    options = ("--model", "model.pt", "--tokenizer", "cache.pt")
    shown = invoke("reproduce", "enwik8-tf", "text", "--bundle", "bundle", *options)
    assert shown.code == 2
    assert "--model and --tokenizer are for a conversion, but bundle is there already. Leave them out" in shown.err


def test_end_of_a_larger_file_is_the_test_set(tmp_path: Path) -> None:
    (tmp_path / "enwik8").write_bytes(b"training" + PROSE)
    assert read_test_set(dataclasses.replace(ENWIK8, bytes=len(PROSE)), tmp_path).source == PROSE
    assert read_test_set(ENWIK8, tmp_path / "enwik8").source == tmp_path / "enwik8"


def test_documentation_has_the_same_scores() -> None:
    table = (ROOT / "docs" / "protocols.md").read_text("utf-8").partition("| `reproduce` |")[2].partition("\n\n")[0]
    rows = dict(re.findall(r"^\| `([\w/-]+)` \|(.*)\|$", table, re.M))
    assert rows.keys() == SCORES.keys()
    for name, published in SCORES.items():
        weights, settings, figures = rows[name].split(" | ")
        assert published.weights in weights
        assert "/".join(str(value) for value in published.settings.values() if value is not True) in settings
        assert all(str(figure) in figures for figure in published.figures.values())
