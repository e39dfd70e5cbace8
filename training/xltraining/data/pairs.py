"""The task of turning texts into others: pairs of lines from files, as bytes."""

import hashlib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from xltraining.encoder_decoder import EncoderDecoderConfig
from xltraining.encoder_decoder.config import END, FIRST_BYTE, PAD, START
from xltraining.errors import DataError
from xltraining.evaluation import Progress, evaluation_mode, no_progress
from xltraining.language_model import IGNORED
from xltraining.layers.seeds import generator_of
from xltraining.messages import listed

__all__ = ["Pair", "PairsTask", "read_pairs"]

Pair = tuple[bytes, bytes]
"""Source and target."""


class PairsTask:
    """The task of predicting each byte of a pair's target, and its end, from the source and the bytes before.

    Pairs are read in a new random order in each epoch. A batch has pairs of similar lengths. It depends only on its
    number.
    """

    unit = "symbol"
    tokenizer = "bytes"
    bytes_per_target = None
    carries_memory = False

    def __init__(
        self,
        config: EncoderDecoderConfig,
        train_files: Sequence[Path],
        valid_files: Sequence[Path],
        batch_size: int,
        seed: int,
    ) -> None:
        """Train on the pairs of some files, evaluate on those of others.

        Raises:
            DataError: files cannot be read, lines are not pairs or too long, or there are too few pairs.
        """
        self.config, self.batch_size, self.seed = config, batch_size, seed
        self._pairs, self._valid = (read_pairs(files, config) for files in (train_files, valid_files))
        if len(self._pairs) < batch_size:
            raise DataError(
                f"{len(self._pairs):,} pairs to train on, but a batch has {batch_size:,}.",
                hint="Give more pairs, or a smaller batch size.",
            )
        self.text_sha256 = hashlib.sha256(repr(self._pairs).encode()).hexdigest()
        self.held_out = bool(self._valid)
        lengths = sum(len(target) + 1 for _, target in self._pairs)
        self.segment_len = round(lengths / len(self._pairs))  # mean length of targets, for the speed in the log
        self._epoch = -1
        self._batches: list[list[int]] = []

    def batch(self, step: int, rows: slice = slice(None)) -> tuple[Tensor, Tensor]:
        """Return tokens and targets of some rows of a step (from 0).

        Tokens (rows, source_len + S) int64 are the sources with padding, then the targets behind `START`. Targets
        (rows,S) are those behind the source, then `END`.
        """
        per_epoch = len(self._pairs) // self.batch_size
        if step // per_epoch != self._epoch:
            self._epoch = step // per_epoch
            self._batches = self._ordered(self._epoch)
        tokens, targets = self._tensors([self._pairs[index] for index in self._batches[step % per_epoch]])
        return tokens[rows], targets[rows]

    def _ordered(self, epoch: int) -> list[list[int]]:
        """Return the indices of each batch of an epoch: pairs of similar lengths, in random order."""
        generator = generator_of(self.seed, epoch)
        order = torch.randperm(len(self._pairs), generator=generator).tolist()
        whole = order[: len(order) // self.batch_size * self.batch_size]
        whole.sort(key=lambda index: tuple(map(len, reversed(self._pairs[index]))))  # stable: ties keep their order
        batches = [whole[start : start + self.batch_size] for start in range(0, len(whole), self.batch_size)]
        return [batches[index] for index in torch.randperm(len(batches), generator=generator).tolist()]

    def _tensors(self, pairs: Sequence[Pair]) -> tuple[Tensor, Tensor]:
        sources = [_ids(source) for source, _ in pairs]
        targets = [_ids(target) for _, target in pairs]
        S = max(map(len, targets)) + 1
        read = [[START, *target] for target in targets]
        source, tokens = _padded(sources, self.config.source_len, PAD), _padded(read, S, PAD)
        return torch.cat([source, tokens], dim=1), _padded([[*target, END] for target in targets], S, IGNORED)

    def evaluate(self, model: Any, progress: Progress = no_progress) -> dict[str, float]:
        """Return bits per symbol of held-out targets, and the fraction of symbols that are the model's first choice.

        Each symbol is predicted from the true symbols before it. The end of a target is a symbol, too.
        """
        nats, right, count = 0.0, 0, 0
        pairs = sorted(self._valid, key=lambda pair: tuple(map(len, reversed(pair))))
        total = sum(len(target) + 1 for _, target in pairs)
        with evaluation_mode(model) as device:
            for start in range(0, len(pairs), self.batch_size):
                tokens, targets = (each.to(device) for each in self._tensors(pairs[start : start + self.batch_size]))
                hidden, _ = model(tokens)
                scored = targets != IGNORED
                log_probs, expected = model.all_log_probs(hidden)[scored], targets[scored]  # (N,V), (N,)
                nats += F.nll_loss(log_probs, expected, reduction="sum").item()
                right += int((log_probs.argmax(dim=-1) == expected).sum())
                count += len(expected)
                progress(count, total)
        return {"valid_bits_per_symbol": nats / count / math.log(2), "valid_accuracy": right / count}


def read_pairs(files: Sequence[Path], config: EncoderDecoderConfig) -> list[Pair]:
    """Return the pairs of all files: each line is a source, a tab and its target.

    Raises:
        DataError: a file cannot be read, or lines are not pairs, or too long for the model. The message lists them.
    """
    pairs: list[Pair] = []
    problems = []
    for file in files:
        try:
            lines = Path(file).read_bytes().splitlines()
        except OSError as error:
            problems.append(f"{file}: {error.strerror}")
            continue
        for number, line in enumerate(lines, 1):
            source, *targets = line.split(b"\t")
            if len(targets) != 1:
                problems.append(f"{file}, line {number:,}: expected a source, one tab and a target, found "
                                f"{len(targets)} tabs")  # fmt: skip
            elif len(source) > config.source_len or len(targets[0]) >= config.tgt_len:
                problems.append(
                    f"{file}, line {number:,}: at most {config.source_len:,} and {config.tgt_len - 1:,} bytes, found "
                    f"{len(source):,} and {len(targets[0]):,}"
                )
            else:
                pairs.append((source, targets[0]))
    if problems:
        raise DataError(
            f"cannot train on these pairs: {listed(problems, '; ')}.",
            hint="Give lines of a source, a tab and a target, or a larger source_len and tgt_len.",
        )
    return pairs


def _ids(text: bytes) -> list[int]:
    return [byte + FIRST_BYTE for byte in text]


def _padded(rows: Sequence[Sequence[int]], width: int, fill: int) -> Tensor:
    return torch.tensor([[*row, *[fill] * (width - len(row))] for row in rows])
