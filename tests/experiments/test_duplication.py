import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from experiments.__main__ import main
from experiments.duplication import (
    N_TOKEN,
    DuplicationTask,
    duplication_examples,
    duplication_scores,
    sequence_length,
)
from tests.helpers.invoking import Invoke
from tests.training.runs import quiet, resumed_like_whole
from xltraining.architectures import new_model
from xltraining.checkpoint import build_model, load_checkpoint
from xltraining.errors import ConfigError
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
    task = DuplicationTask.of(MODEL, TRAINING)
    result = train(MODEL, TRAINING, [], [], tmp_path / "run", task=task, report=quiet)
    assert result.step == 120
    checkpoint = load_checkpoint(result.checkpoint)
    assert checkpoint.tokenizer is None
    scores = task.evaluate(build_model(checkpoint))
    assert scores["valid_accuracy"] > 0.9  # chance is under 0.01
    assert result.valid_bits == pytest.approx(scores["valid_bits_per_symbol"], abs=1e-6)


def test_a_resumed_run_is_bit_identical(tmp_path: Path) -> None:
    short = replace(TRAINING, steps=9, batch_size=3, log_every=1, eval_every=3, checkpoint_every=5)
    resumed_like_whole(MODEL, short, tmp_path, [], stop=7, task=DuplicationTask.of(MODEL, short))


def test_a_model_of_another_size_is_refused() -> None:
    wrong = replace(MODEL, n_token=256, tgt_len=21, max_positions=10)
    with pytest.raises(ConfigError, match=r"n_token must be 128.*tgt_len must be even.*max_positions must be at least"):
        DuplicationTask.of(wrong, TRAINING)


def test_the_command_trains_by_a_recipe(tmp_path: Path, invoke: Invoke) -> None:
    recipe, out = tmp_path / "recipe.toml", tmp_path / "run"
    sizes = "n_token = 128\ntgt_len = 14\nmem_len = 14\nn_head = 2\nd_model = 8\nd_head = 4\nd_inner = 8"
    run = "steps = 2\nbatch_size = 2\nthreads = 1"
    recipe.write_text(f'architecture = "reformer"\n[model]\nattn_layers = ["local"]\n{sizes}\n[training]\n{run}\n')
    arguments = ["duplication", "--settings", str(recipe), "--out", str(out)]
    for ending in (r"held out \d\.\d{4}, \d\.\d% right", "at step 2"):  # the second run goes on with the first
        assert re.search(ending, CliRunner().invoke(main, arguments, catch_exceptions=False).stderr)
    assert json.loads((out / "log.jsonl").read_text().splitlines()[-1]).keys() >= {
        *("bits_per_symbol", "valid_bits_per_symbol", "valid_accuracy")
    }
    error = invoke("convert", out / "checkpoint.pt", "-o", tmp_path / "bundle").error
    assert "does not say what its 128 tokens are. Give --tokenizer" in error
    recipe.write_text("[model]\n")
    refused = CliRunner().invoke(main, arguments)
    assert refused.exit_code == 2 and "no recipe with architecture, model and training" in refused.stderr
