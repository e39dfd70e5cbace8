import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.training.runs import quiet
from xltraining.architectures import new_model
from xltraining.checkpoint import build_model, load_checkpoint
from xltraining.data.duplication import (
    N_TOKEN,
    DuplicationTask,
    duplication_examples,
    duplication_scores,
    sequence_length,
)
from xltraining.errors import ConfigError, DataError
from xltraining.language_model import IGNORED
from xltraining.loop.train import TrainingConfig, train
from xltraining.reformer import ReformerConfig

WORD = 7
LENGTH = sequence_length(WORD)
MODEL = ReformerConfig(
    n_token=N_TOKEN, d_model=64, n_head=2, d_head=32, d_inner=64, attn_layers=("full",), tgt_len=LENGTH, mem_len=LENGTH,
    position="absolute", max_positions=LENGTH, dropout=0.0,
)  # fmt: skip
TRAINING = TrainingConfig(
    task="duplication",
    word_length=WORD,
    steps=120,
    batch_size=16,
    learning_rate=3e-3,
    warmup_steps=20,
    min_lr_ratio=1.0,
    eval_every=60,
    checkpoint_every=60,
    threads=1,
)


def test_examples_are_a_word_twice_with_a_zero_before_each() -> None:
    tokens, targets = duplication_examples(50, WORD, seed=3, number=4)
    assert tokens.shape == targets.shape == (50, sequence_length(WORD))
    first, second = tokens.split(WORD + 1, dim=1)
    assert torch.equal(first, second)
    assert not first[:, 0].any()
    symbols = first[:, 1:]
    assert (symbols.min(), symbols.max()) == (1, N_TOKEN - 1)  # in 350 draws, with this seed
    assert torch.equal(targets[:, WORD + 1 : -1], tokens[:, WORD + 2 :])
    assert (targets[:, : WORD + 1] == IGNORED).all()
    assert (targets[:, -1] == IGNORED).all()


def test_examples_depend_on_seed_and_number_alone() -> None:
    torch.manual_seed(0)
    first = duplication_examples(4, WORD, seed=1, number=2)[0]
    torch.manual_seed(1)
    assert torch.equal(duplication_examples(4, WORD, seed=1, number=2)[0], first)
    others = [duplication_examples(4, WORD, seed, number)[0] for seed, number in ((1, 3), (2, 2), (2, 1))]
    assert not any(torch.equal(other, first) for other in others)


def test_a_model_that_knows_nothing_scores_as_chance_does() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = new_model(MODEL)
    with torch.no_grad():
        for parameter in model.head.parameters():
            parameter.zero_()
    bits, accuracy = duplication_scores(model, *duplication_examples(40, WORD, 0, 0))
    assert bits == pytest.approx(math.log2(N_TOKEN), abs=1e-5)  # float32's rounding
    assert accuracy == 0.0  # all logits are equal, so the model predicts 0, which is never right


@pytest.mark.full
def test_the_task_is_learned(tmp_path: Path) -> None:
    result = train(MODEL, TRAINING, [], [], tmp_path / "run", report=quiet)
    assert result.step == 120
    checkpoint = load_checkpoint(result.checkpoint)
    assert checkpoint.tokenizer is None
    task = DuplicationTask(WORD, TRAINING.batch_size, TRAINING.seed)
    scores = task.evaluate(build_model(checkpoint))
    assert scores["valid_accuracy"] > 0.9  # chance is under 0.01
    assert result.valid_bits == pytest.approx(scores["valid_bits_per_symbol"], abs=1e-6)


def test_a_model_of_another_size_is_refused(tmp_path: Path) -> None:
    wrong = replace(MODEL, n_token=256, tgt_len=20, max_positions=10)
    with pytest.raises(ConfigError, match=r"n_token must be 128.*tgt_len must be 16.*max_positions must be at least"):
        train(wrong, TRAINING, [], [], tmp_path / "run", report=quiet)
    assert not (tmp_path / "run").exists()


def test_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("text")
    with pytest.raises(DataError, match=r"draws its examples\. Leave out the text files\.$"):
        train(MODEL, TRAINING, [tmp_path / "text"], [], tmp_path / "run", report=quiet)
