"""Published weights by name, and `xlexport reproduce`, with files of the real names and keys and random weights."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.checkpoints.transformer_xl_files import VARIANTS, make_oracle, write_huggingface
from tests.helpers.invoking import PROSE, Invoke
from tests.helpers.paths import GOLDEN, ROOT
from tests.oracles.reformer_configurations import ReformerCase
from tests.oracles.reformers import HuggingFaceReformer
from tests.runtime.tokenizer_files import sentencepiece_file
from xlexport.published import ENWIK8, SCORES, read_test_set

Publish = Callable[[str], Path]

COMMIT = "1" * 40
XL, BYTES, NOVEL = "transfo-xl/transfo-xl-wt103", "google/reformer-enwik8", "google/reformer-crime-and-punishment"
BUNDLE = GOLDEN / "post_lnorm_same_length_empty" / "bundle"
WORDS = ["<eos>", "<unk>", *sorted(set(PROSE.decode().split())), *(f"word{index}" for index in range(40))][:40]
PARTS = {"axial_pos_shape": [8, 16], "max_position_embeddings": 128, "hash_seed": None, "num_hashes": 2}
REFORMERS = {
    BYTES: {**PARTS, "vocab_size": 258, "attn_layers": ["local", "local", "lsh", "local"]},
    NOVEL: {**PARTS, "vocab_size": 320, "attn_layers": ["local", "lsh"], "num_buckets": [2, 4]},
}


@pytest.fixture
def publish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Publish:
    """Return a function that puts a tiny model into the cache of the hub, and returns the folder with its files."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))

    def published(name: str) -> Path:
        repository = tmp_path / "hub" / f"models--{name.replace('/', '--')}"
        snapshot, blobs = repository / "snapshots" / COMMIT, repository / "blobs"
        for folder in (snapshot, blobs, repository / "refs"):
            folder.mkdir(parents=True)
        (repository / "refs" / "main").write_text(COMMIT)
        for number, file in enumerate(sorted(write(name, tmp_path).iterdir())):
            file.rename(blobs / str(number))
            (snapshot / file.name).symlink_to(Path("..", "..", "blobs", str(number)))
        return snapshot

    return published


def write(name: str, folder: Path) -> Path:
    """Write the files of a published model, with tiny sizes."""
    if name == XL:
        oracle = make_oracle(**{**VARIANTS["div_val"], "pre_lnorm": False, "untie_r": True})
        files = write_huggingface(oracle, folder, {"tgt_len": None}, safetensors=False)
        ids = {symbol: index for index, symbol in enumerate(WORDS)}
        fields = {"idx2sym": WORDS, "sym2idx": ids, "lower_case": False, "delimiter": None, "special": ["<eos>"]}
        torch.save(fields, files / "vocab.bin")
        return files
    oracle = HuggingFaceReformer(ReformerCase("tiny", REFORMERS[name], ()))
    files = oracle.save(folder / "files")
    torch.save(oracle.model.state_dict(), files / "pytorch_model.bin")
    for file in ("model.safetensors", "generation_config.json"):
        (files / file).unlink()
    if name == NOVEL:
        (files / "spiece.model").write_bytes(sentencepiece_file())
    return files


@pytest.mark.parametrize(("name", "vocabulary"), [(XL, "40 words"), (BYTES, "bytes"), (NOVEL, "spiece.model")])
def test_published_weights_need_no_option(name: str, vocabulary: str, publish: Publish, invoke: Invoke) -> None:
    publish(name)
    shown = invoke("inspect", name).succeeded().out
    assert re.search(rf"^vocabulary .*{vocabulary}", shown, re.M) and not re.search("^needs", shown, re.M)


@pytest.mark.full
@pytest.mark.usefixtures("cached_exports")
@pytest.mark.parametrize(
    ("name", "file", "options", "figures", "other_model"),
    [
        (
            XL,
            "wiki.test.tokens",
            "--segment-len 128 --mem-len 1600 --set clamp_len=1000 --set same_length=true",
            {"Transformer-XL, Table 1": 18.3, "Hugging Face's documentation of run_transfo_xl.py": 18.22},
            "n_layer 2, published 18",
        ),
        (BYTES, "enwik8", "--protocol document --restart", SCORES[BYTES].figures, "d_model 32, published 1024"),
    ],
)
def test_reproduce_is_convert_and_evaluate(
    name: str, file: str, options: str, figures: dict[str, float], other_model: str, publish: Publish, invoke: Invoke
) -> None:
    """Reproduce from weights by name and the folder of the corpus; then evaluate the bundle on the same file."""
    publish(name)
    Path("corpus").mkdir()
    text = Path("corpus", file)
    text.write_bytes(PROSE * 8)
    comparison = invoke("reproduce", name, "corpus", "-o", "bundle", "--json").succeeded().object
    score = invoke("evaluate", "bundle", text, *options.split(), "--json").succeeded().object
    ours, theirs = score["perplexity" if name == XL else "bits_per_token"], next(iter(figures.values()))
    expected = {**score, "published": figures, "figure": ours, "difference": ours - theirs}
    del expected["tokens_per_second"]
    assert expected.items() <= comparison.items()
    size = "tokens {tokens:d}, published 245569" if name == XL else "bytes {bytes:d}, published 5000000"
    others = [other_model, size.format(**score)]
    assert set(others) <= set(comparison["not_as_published"])

    shown = invoke("reproduce", name, text, "--model", "bundle").succeeded().out
    for where, figure in figures.items():
        assert re.search(rf"^published +{figure} [a-z ]+: {where}$", shown, re.M)
    assert all(re.search(f"^not as published +{other}$", shown, re.M) for other in others)
    provenance = json.loads(Path("bundle", "bundle.json").read_text())["provenance"]
    assert provenance["options"]["model"] == f"{name}@{COMMIT}"
    assert invoke("verify", "bundle", name, "--segments", "2").succeeded()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (f"{NOVEL} .", "'google/reformer-crime-and-punishment' is not one of 'transfo-xl/transfo-xl-wt103', 'google"),
        (
            f"{XL} .",
            ".: not in this folder: wiki.test.tokens, with the test set of WikiText-103. It is in wikitext-103",
        ),
        ("text8-tf absent", "absent: no such file or folder: text8 or test.txt.raw, with the test set of text8. Its"),
        ("enwik8-base text", "Missing option '--model': enwik8-base is about weights of run_enwik8_base.sh"),
        (f"enwik8-base text --model {BUNDLE} --force", "--tokenizer, --output and --force are for checkpoints, but"),
        (f"{XL} text", f"run `hf download {XL}`."),
        (f"{XL} text --model {XL}@v1", f"run `hf download {XL} --revision v1`."),
        ("enwik8-base text --model ../absent", "../absent: no such file or folder. Check the path."),
    ],
)
def test_what_is_missing(arguments: str, message: str, publish: Publish, invoke: Invoke) -> None:
    Path("text").write_bytes(PROSE)
    shown = invoke("reproduce", *arguments.split())
    assert shown.code in (1, 2) and message in shown.err
    assert [path.name for path in Path().iterdir()] == ["text"]


def test_incomplete_or_hostile_cache(publish: Publish, invoke: Invoke, tmp_path: Path) -> None:
    snapshot = publish(BYTES)
    (snapshot / "pytorch_model.bin").unlink()
    missing = "no 'config.json', model.safetensors or pytorch_model.bin"
    (snapshot / "config.json").resolve().unlink()
    assert f"cache ({snapshot}): {missing}. Run `hf download {BYTES}`." in invoke("inspect", BYTES).error
    snapshot.rename(tmp_path / "elsewhere")
    snapshot.symlink_to(tmp_path / "elsewhere")
    assert f"{snapshot}: a link, or behind one" in invoke("convert", BYTES).error
    snapshot.unlink()
    (tmp_path / "elsewhere").rename(snapshot)
    repository = snapshot.parent.parent
    repository.rename(tmp_path / "repository")
    repository.symlink_to(tmp_path / "repository")
    assert f"{snapshot}: a link, or behind one" in invoke("convert", BYTES).error


def test_end_of_a_larger_file_is_the_test_set(tmp_path: Path) -> None:
    (tmp_path / "enwik8").write_bytes(b"training" + PROSE)
    dataset = dataclasses.replace(ENWIK8, bytes=len(PROSE))
    for data in (tmp_path, tmp_path / "enwik8"):
        assert read_test_set(dataset, data).source == PROSE
    (tmp_path / "part").write_bytes(PROSE)
    assert read_test_set(dataset, tmp_path / "part").source == tmp_path / "part"


def test_list_and_documentation_have_the_same_scores(invoke: Invoke) -> None:
    shown = dict(
        re.split("  +", line, maxsplit=1) for line in invoke("reproduce", "--list").succeeded().out.splitlines()
    )
    table = (ROOT / "docs" / "protocols.md").read_text("utf-8").partition("| `reproduce` |")[2].partition("\n\n")[0]
    rows = dict(re.findall(r"^\| `([\w/-]+)` \|(.*)\|$", table, re.M))
    assert rows.keys() == shown.keys() == SCORES.keys()
    for name, published in SCORES.items():
        (figure, *_) = published.figures.values()
        assert shown[name].startswith(f"{figure} {published.dataset.measure} of {published.dataset.title}; ")
        assert all(re.search(rf"\b{re.escape(str(value))}\b", rows[name]) for value in published.figures.values())
        assert published.weights in rows[name]
