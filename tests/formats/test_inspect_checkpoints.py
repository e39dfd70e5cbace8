"""`xlexport inspect` and `convert` on checkpoints of every format: `checkpoint_format`, `--config`, and questions."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.families.transformer_xl.files import VARIANTS, WAYS, make_oracle, write_nvidia
from tests.helpers.invoking import Invoke
from tests.helpers.paths import ROOT
from tests.helpers.tiers import thinned
from tests.oracles.huggingface import Oracle
from tests.oracles.reformer_configurations import ReformerCase
from tests.oracles.reformers import HuggingFaceReformer
from xlexport import formats
from xlexport.choices import FORMATS
from xlexport.commands import execute
from xlexport.conversion import convert
from xlexport.conversion_options import ConversionOptions
from xlexport.errors import ExportError
from xlruntime.bundle_files import read_bundle
from xltraining.checkpoint import save_checkpoint


def ours(oracle: Oracle, folder: Path) -> Path:
    save_checkpoint(folder / "checkpoint.pt", oracle.config, oracle.state_dict())
    return folder / "checkpoint.pt"


SAVERS: Mapping[str, Callable[[Oracle, Path], Path]] = {
    **{name: WAYS[name].write for name in ("kimiyoung", "nvidia")},
    "huggingface": WAYS["huggingface, torch"].write,
    "xltraining": ours,
}
kimiyoung, huggingface = SAVERS["kimiyoung"], SAVERS["huggingface"]


@pytest.mark.parametrize("format", SAVERS)
def test_table_and_object_of_every_format(format: str, inspect: Invoke, tmp_path: Path) -> None:
    oracle = make_oracle(**VARIANTS["div_val"])
    path = SAVERS[format](oracle, tmp_path)
    source, rows = formats.load(path), inspect(path).rows
    table = dict(rows)
    assert table["checkpoint"] == f"{format}, transformer_xl"
    config = ", ".join(value for name, value in rows if name == "config")
    assert "n_layer 2, n_head 2, d_model 12" in config and "cutoffs [8, 15, 30], div_val 2" in config
    assert table["parameters"] == f"{sum(parameter.numel() for parameter in oracle.model.parameters()):,}"
    shown = [table[name] for name in ("segment_len", "mem_len", "clamp_len", "same_length")]
    assert shown == ["6", "9", "-1", "true"]
    assert table["keys that a token sees"] == ("mem_len + 1" if format == "nvidia" else "mem_len")
    assert table["first memory"] == ("zeros" if format == "huggingface" else "empty")
    for file, digest in source.files.items():
        assert table[file.name] == f"{file.stat().st_size:,} bytes, SHA-256 {digest.sha256}"
    assert [value for name, value in rows if name == "note"] == list(source.notes)
    assert json.loads(inspect(path, "--json").out) == {
        "format": format,
        "architecture": "transformer_xl",
        "config": source.config,
        "parameters": source.parameters,
        "tokenizer": "bytes" if format == "xltraining" else None,
        "evaluation": {
            **{"segment_len": 6, "mem_len": 9, "clamp_len": -1, "same_length": True},
            "first_memory": "zeros" if format == "huggingface" else "empty",
            "window_extra": 1 if format == "nvidia" else 0,
        },
        "about": {},
        "needs": [],
        "notes": list(source.notes),
        "files": {file.name: {"sha256": digest.sha256, "size": digest.size} for file, digest in source.files.items()},
    }


def test_vocabulary_is_described(inspect: Invoke, tmp_path: Path) -> None:
    path = huggingface(make_oracle(), tmp_path)
    rows = dict(inspect(path).rows)
    assert rows["vocabulary"] == "not in the checkpoint: give that of its 40 tokens with --tokenizer"
    assert rows["needs"] == "--tokenizer FILE, or --tokenizer none for token ids only"
    assert rows["keys that a token sees"] == "all of memory and of its segment before it"  # without same_length
    words = ["<eos>", "<unk>", *(f"word{index}" for index in range(38))]
    (path / "vocab.txt").write_text("\n".join(words))
    rows = dict(inspect(path).rows)
    assert rows["vocabulary"].startswith("Vocabulary of 40 words, ") and "needs" not in rows
    found = json.loads(inspect(path, "--json").out)["tokenizer"]
    assert (found["kind"], found["size"], found["line_end"]) == ("words", 40, "<eos>")
    (path / "vocab.txt").write_text("\n".join(words[:-1]))
    said = "39 symbols, but the model has 40 tokens: give its own with --tokenizer"
    assert dict(inspect(path).rows)["vocabulary"] == said


def test_settings_that_the_user_must_give_are_reported(
    inspect: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = kimiyoung(make_oracle(), tmp_path)
    needing = replace(formats.load(path), needs=("segment_len", "same_length"))
    monkeypatch.setattr(formats, "load", lambda *arguments: needing)
    rows = dict(inspect(path).rows)
    assert rows["segment_len"] == "not in the checkpoint: give --segment-len"
    assert rows["same_length"] == "not in the checkpoint: give --set same_length"
    assert rows["keys that a token sees"].startswith("mem_len with same_length, else all")
    found = json.loads(inspect(path, "--json").out)
    assert (found["evaluation"]["segment_len"], found["needs"]) == (None, ["segment_len", "same_length"])


def test_configuration_file_is_read(inspect: Invoke, tmp_path: Path) -> None:
    way, config = WAYS["state_dict"], tmp_path / "settings.json"
    path = way.write(make_oracle(), tmp_path)
    assert "mem_len is not given" in inspect(path).err
    config.write_text(json.dumps(way.config(make_oracle())))
    assert dict(inspect(path, "--config", config).rows)["checkpoint"] == "state_dict, transformer_xl"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "not valid JSON"),
        ("{", "not valid JSON"),
        ("[]", "expected a JSON object, found list"),
        (None, "No such file"),
    ],
)
def test_invalid_configuration_file(content: str | None, said: str, inspect: Invoke, tmp_path: Path) -> None:
    config = tmp_path / "settings.json"
    if content is not None:
        config.write_text(content)
    shown = inspect(kimiyoung(make_oracle(), tmp_path), "--config", config)
    assert (shown.code, shown.out, shown.err.count("\n")) == (1, "", 1)
    assert shown.err.startswith(f"Error: {config}: {said}")


def test_format_is_forced(inspect: Invoke, tmp_path: Path) -> None:
    shown = inspect(kimiyoung(make_oracle(), tmp_path), "--set", "checkpoint_format=nvidia")
    assert shown.code == 1 and "no model_config and model_state in it" in shown.err
    shown = inspect(tmp_path, "--set", "checkpoint_format=keras")
    assert shown.code == 2 and "'keras' is not one of" in shown.err


def test_formats_that_can_be_chosen_are_read_and_documented() -> None:
    assert sorted(FORMATS) == sorted(formats.format_names())
    documented = (ROOT / "docs" / "checkpoints.md").read_text("utf-8")
    assert all(f"\n| `{name}` | " in documented for name in FORMATS)


def test_vocabulary_is_recognized(inspect: Invoke, tmp_path: Path) -> None:
    module = type("Corpus", (), {"__module__": __name__})
    globals()["Corpus"] = module
    try:
        corpus = module()
        corpus.__dict__["train"] = torch.zeros(3, dtype=torch.int64)
        torch.save(corpus, tmp_path / "cache.pt")
    finally:
        del globals()["Corpus"]
    assert "a vocabulary. Give it with --tokenizer" in inspect(tmp_path / "cache.pt").err


# Conversion.


def test_missing_evaluation_settings_are_refused_all_at_once(tmp_path: Path) -> None:
    path = write_nvidia(make_oracle(), tmp_path)
    needing = replace(formats.load(path), needs=("segment_len", "mem_len", "clamp_len", "same_length"))
    with pytest.raises(ExportError) as caught:
        convert(needing, tmp_path / "bundle", ConversionOptions.of(mem_len=9, tokenizer="none"))
    assert str(caught.value).endswith("Give --segment-len, --set clamp_len, --set same_length.")
    assert str(caught.value).startswith(str(path))
    assert not (tmp_path / "bundle").exists()


# Reformers without a number of buckets.


@pytest.fixture
def unsaid(tmp_path: Path) -> Path:
    """Make a Hugging Face folder without a number of buckets."""
    settings = {"attn_layers": ["lsh"], "num_buckets": None, "vocab_size": 258, "max_position_embeddings": 256}
    case = ReformerCase("small", {**settings, "axial_pos_shape": [16, 16]}, ())
    return HuggingFaceReformer(case).save(tmp_path / "reformer")


@pytest.mark.parametrize(
    ("given", "buckets"), [("num_buckets=6", "6"), ("num_buckets=4,6", "4×6"), ("max_length=100", "8")]
)
def test_buckets_that_are_given(given: str, buckets: str, inspect: Invoke, unsaid: Path) -> None:
    rows = dict(inspect(unsaid, "--config", given).rows)
    assert rows["checkpoint"] == "huggingface, reformer"
    assert rows["LSH"] == f"rule chunk, 1 rounds of {buckets} buckets"
    assert rows["vocabulary"] == "bytes, 258 tokens"


def test_checkpoint_without_buckets_is_not_converted(unsaid: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["convert", str(unsaid), "-o", str(unsaid.parent / "bundle")]) == 1
    assert capsys.readouterr().err == (
        f"Error: {unsaid}: config.json has no num_buckets, which transformers sets at the first document that it sees. "
        "Give --config num_buckets=N (or N,M for two factors), or --config max_length=T for documents of T tokens.\n"
    )
    assert not (unsaid.parent / "bundle").exists()


@pytest.mark.release
@pytest.mark.usefixtures("cached_exports")
@pytest.mark.parametrize("rule", thinned(["chunk", "band"], ["band"], pytest.mark.release))
def test_folder_becomes_a_bundle(rule: str, unsaid: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Convert and verify; verify again from the command line: the report notes a rule other than the trained one."""
    bundle, given = tmp_path / "bundle", ["--config", "max_length=100"]
    chosen = [] if rule == "chunk" else ["--rule", "band", "--mem-len", "32", "--segment-len", "16"]
    assert (
        execute(["convert", str(unsaid), "-o", str(bundle), "--threads", "1", "--segments", "3", *given, *chosen]) == 0
    )
    said = capsys.readouterr().err
    assert ("replaces the model's own rule" in said) == (rule == "band")
    assert "as transformers sets it at a first document of 100 tokens" in said
    manifest = read_bundle(bundle)
    assert (manifest.config["rule"], manifest.config["n_buckets"]) == (rule, [8])
    assert (manifest.tokenizer.kind, manifest.tokenizer.first_id) == ("bytes", 2)
    assert execute(["verify", str(bundle), str(unsaid), "--threads", "1", "--segments", "2", *given]) == 0
    assert "equal" in capsys.readouterr().out
