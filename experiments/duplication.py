"""The duplication task (Kitaev et al. 2020, section 4): continue `0w0` with the word w once more.

Every example has a new random word, so the symbols of the second half can only be copied from the first: attention
must find a single, distant position.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import click
import torch
import torch.nn.functional as F
from torch import Tensor

from experiments.commands import FILE
from experiments.running import ExperimentCommand, read_recipe, train_further
from xltraining.config_fields import ModelConfig
from xltraining.errors import ConfigError
from xltraining.evaluation import Progress, evaluation_mode, no_progress
from xltraining.language_model import IGNORED
from xltraining.layers.seeds import generator_of
from xltraining.training_config import TrainingConfig

__all__ = ["N_TOKEN", "DuplicationTask", "duplication_examples", "duplication_scores", "main", "sequence_length"]

SYMBOLS = 127
N_TOKEN = SYMBOLS + 1  # and 0, which begins each half
_HELD_OUT_EXAMPLES = 64


def sequence_length(word_length: int) -> int:
    """Return the number of tokens of `0w0w`."""
    return 2 * word_length + 2


def duplication_examples(count: int, word_length: int, seed: int, number: int) -> tuple[Tensor, Tensor]:
    """Return tokens and targets (B,S) int64 of `count` examples, which depend on `seed` and `number` only.

    Targets are the next tokens in the second word, `IGNORED` elsewhere.
    """
    words = torch.randint(1, N_TOKEN, (count, word_length), generator=generator_of(seed, number))
    tokens = F.pad(words, (1, 0)).repeat(1, 2)  # (B,S)
    targets = torch.full_like(tokens, IGNORED)
    targets[:, word_length + 1 : -1] = words
    return tokens, targets


def duplication_scores(model: Any, tokens: Tensor, targets: Tensor) -> tuple[float, float]:
    """Return bits per symbol of the second word and the fraction of correct symbols, over examples (B,S).

    The model is in evaluation mode during the call.
    """
    scored = targets != IGNORED
    with evaluation_mode(model) as device:
        hidden, _ = model(tokens.to(device))
        log_probs = model.all_log_probs(hidden).cpu()[scored]  # (N,V)
    nats = F.nll_loss(log_probs, targets[scored]).item()
    return nats / math.log(2), (log_probs.argmax(dim=-1) == targets[scored]).float().mean().item()


class DuplicationTask:
    """The task with new examples at each step, and the same held-out ones at each evaluation."""

    unit = "symbol"
    tokenizer = None
    bytes_per_target = None
    carries_memory = False
    text_sha256 = None
    held_out = True

    def __init__(self, word_length: int, batch_size: int, seed: int) -> None:
        self.word_length, self.batch_size, self.seed = word_length, batch_size, seed
        self.segment_len = sequence_length(word_length)

    @classmethod
    def of(cls, model: ModelConfig, training: TrainingConfig) -> DuplicationTask:
        """Return the task whose sequences `0w0w` have `tgt_len` tokens.

        Raises:
            ConfigError: the model's sizes do not fit the task. The message lists every problem.
        """
        problems = []
        if model.n_token != N_TOKEN:
            problems.append(f"n_token must be {N_TOKEN} ({SYMBOLS} symbols and 0), found {model.n_token}")
        if model.tgt_len < 4 or model.tgt_len % 2:
            problems.append(f"tgt_len must be even and at least 4, found {model.tgt_len:,}")
        if model.position_limit is not None and model.position_limit < model.tgt_len:
            problems.append(f"max_positions must be at least {model.tgt_len:,}, found {model.position_limit:,}")
        if problems:
            raise ConfigError(f"the model does not fit the duplication task: {'; '.join(problems)}.")
        return cls(model.tgt_len // 2 - 1, training.batch_size, training.seed)

    def batch(self, step: int, rows: slice = slice(None)) -> tuple[Tensor, Tensor]:
        """Return tokens and targets of some rows of a step (from 0), both (rows,S) int64."""
        tokens, targets = duplication_examples(self.batch_size, self.word_length, self.seed, step + 1)
        return tokens[rows], targets[rows]

    def held_out_examples(self, count: int) -> tuple[Tensor, Tensor]:
        """Return tokens and targets (B,S) int64 of examples that no step uses."""
        return duplication_examples(count, self.word_length, self.seed, 0)

    def evaluate(self, model: Any, progress: Progress = no_progress) -> dict[str, float]:
        """Return bits per symbol and accuracy on held-out examples."""
        tokens, targets = self.held_out_examples(_HELD_OUT_EXAMPLES)
        sums, done = torch.zeros(2, dtype=torch.float64), 0
        for part in zip(tokens.split(self.batch_size), targets.split(self.batch_size), strict=True):
            sums += torch.tensor(duplication_scores(model, *part), dtype=torch.float64) * len(part[0])
            done += len(part[0])
            progress(done * self.word_length, _HELD_OUT_EXAMPLES * self.word_length)
        bits, accuracy = (sums / _HELD_OUT_EXAMPLES).tolist()
        return {"valid_bits_per_symbol": bits, "valid_accuracy": accuracy}


@click.command(cls=ExperimentCommand)
@click.option("--settings", required=True, type=FILE, help="Recipe in TOML, such as recipes/duplication.toml.")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder for checkpoint.pt and log.jsonl.")
def main(settings: Path, out: Path) -> None:
    """Train a model on the duplication task; words have half of `tgt_len` symbols, less one."""
    model, training = read_recipe(settings)
    train_further(model, training, out, DuplicationTask.of(model, training))
