"""The sample checkpoints were trained: they tell English from noise. The page on their training describes them."""

from __future__ import annotations

import hashlib
import json
import tomllib

import pytest
import torch
from torch import Tensor

from tests.helpers.paths import ROOT
from xltraining.checkpoint import Checkpoint, build_model, load_checkpoint
from xltraining.data.tokenizer_file import TokenizerFile
from xltraining.evaluation import evaluate
from xltraining.training_config import TrainingConfig

SAMPLES = ROOT / "samples"
NAMES = sorted(path.parent.name for path in SAMPLES.glob("*/checkpoint.pt"))
TRAINING = SAMPLES / "train_sample"
LARGEST = 13_000_000  # bytes; they are cloned with the code
PROSE = (
    b"It was a dark night, and the rain fell upon the road. The old man took his hat and went out of the house, for he "
    b"had heard that his brother was coming home from the war. He did not know what he should say to him.\n"
) * 2
BITS_OF_PROSE = {  # per byte
    "reformer_bytes": 2.385896,
    "transformer_xl_bpe": 1.382747,
    "transformer_xl_bytes": 1.540490,
}


def sample(name: str) -> Checkpoint:
    return load_checkpoint(SAMPLES / name / "checkpoint.pt")


def tokens_of(checkpoint: Checkpoint, text: bytes) -> Tensor:
    if not isinstance(checkpoint.tokenizer, TokenizerFile):
        return torch.frombuffer(bytearray(text), dtype=torch.uint8)
    from tokenizers import Tokenizer

    return torch.tensor(Tokenizer.from_str(checkpoint.tokenizer.content.decode()).encode(text.decode()).ids)


def test_samples_are_small_and_described() -> None:
    """Read them, too: the names of their weights are the format of checkpoints."""
    assert BITS_OF_PROSE.keys() == set(NAMES)
    page = SAMPLES.joinpath("README.md").read_text("utf-8")
    for name in NAMES:
        content = (SAMPLES / name / "checkpoint.pt").read_bytes()
        assert len(content) < LARGEST and sample(name).state_dict
        assert f"../{name}/checkpoint.pt" in page
        assert f"{len(content):,} bytes" in page and hashlib.sha256(content).hexdigest() in page


def test_recipe_is_that_of_the_sample() -> None:
    recipe = tomllib.loads(TRAINING.joinpath("transformer_xl_bpe.toml").read_text("utf-8"))
    training = TrainingConfig(**recipe["training"])  # refuses settings that do not exist
    assert training.average_from is not None and training.best
    checkpoint = sample("transformer_xl_bpe")
    config = checkpoint.config.to_dict()
    chosen_by_publish = {"mem_len"}
    assert {name: config[name] for name in recipe["model"].keys() - chosen_by_publish} == {
        name: value for name, value in recipe["model"].items() if name not in chosen_by_publish
    }
    assert isinstance(checkpoint.tokenizer, TokenizerFile)
    assert len(json.loads(checkpoint.tokenizer.content)["model"]["vocab"]) == config["n_token"] == 4096


@pytest.mark.full
@pytest.mark.parametrize("name", NAMES)
def test_sample_checkpoint_was_trained(name: str) -> None:
    checkpoint = sample(name)
    model = build_model(checkpoint)
    letters = torch.frombuffer(bytearray(PROSE), dtype=torch.uint8)
    noise = letters[torch.randperm(len(letters), generator=torch.Generator().manual_seed(0))]
    bits = []
    for text in (PROSE, bytes(noise.tolist())):
        tokens = tokens_of(checkpoint, text)
        bits.append(evaluate(model, tokens, segment_len=64) * (len(tokens) - 1) / len(text))
    assert bits[0] == pytest.approx(BITS_OF_PROSE[name], rel=1e-4)
    assert bits[0] < 3 and bits[1] > 5
