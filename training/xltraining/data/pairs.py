"""The task of turning texts into others: pairs of lines from files as bytes, or prepared pairs of subwords."""

import codecs
import hashlib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from xltraining.data.token_shards import PreparedData, Split, TokenIds, is_prepared, read_to_train
from xltraining.encoder_decoder import EncoderDecoderConfig
from xltraining.encoder_decoder.config import END, FIRST_BYTE, PAD, START
from xltraining.errors import DataError
from xltraining.evaluation import Progress, evaluation_mode, no_progress
from xltraining.language_model import IGNORED
from xltraining.layers.seeds import generator_of
from xltraining.messages import listed

__all__ = ["Pair", "PairsTask", "prepared_pairs", "read_pairs"]

Pair = tuple[TokenIds, TokenIds]
"""Token ids of source and target."""


class PairsTask:
    """The task of predicting each token of a pair's target, and its end, from the source and the tokens before.

    Pairs are read in a new random order in each epoch. A batch has pairs of similar lengths. It depends only on its
    number.
    """

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
        """Train on the pairs of some files, evaluate on those of others; or on both splits of a prepared folder.

        Raises:
            DataError: files cannot be read, lines are not pairs, pairs are too long, or there are too few of them. A
                folder is damaged, or prepared for another model.
        """
        self.config, self.batch_size, self.seed = config, batch_size, seed
        if train_files and is_prepared(Path(train_files[0])):
            data = read_to_train(Path(train_files[0]), config.n_token, pairs=True)
            self._pairs, self._valid = (_pairs_of(data, split, config) for split in ("train", "valid"))
            self.unit, self.tokenizer, self.text_sha256 = data.unit, data.tokenizer_of_model(), data.sha256
        else:
            train, valid = (read_pairs(files, config) for files in (train_files, valid_files))
            self._pairs, self._valid = [*map(_ids, train)], [*map(_ids, valid)]
            self.unit, self.tokenizer = "symbol", "bytes"
            self.text_sha256 = hashlib.sha256(repr(train).encode()).hexdigest()
        if len(self._pairs) < batch_size:
            raise DataError(
                f"{len(self._pairs):,} pairs to train on, but a batch has {batch_size:,}.",
                hint="Give more pairs, or a smaller batch size.",
            )
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
        sources, targets = ([ids.tolist() for ids in sides] for sides in zip(*pairs, strict=True))
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
        return {f"valid_bits_per_{self.unit}": nats / count / math.log(2), "valid_accuracy": right / count}


def read_pairs(files: Sequence[Path], config: EncoderDecoderConfig) -> list[tuple[bytes, bytes]]:
    """Return the pairs of all files: each line is a source, a tab and its target.

    Raises:
        DataError: a file cannot be read, or lines are not pairs, or too long for the model. The message lists them.
    """
    pairs: list[tuple[bytes, bytes]] = []
    problems = []
    for file in files:
        try:
            lines = Path(file).read_bytes().removeprefix(codecs.BOM_UTF8).splitlines()
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


def _ids(pair: tuple[bytes, bytes]) -> Pair:
    source, target = (np.frombuffer(side, np.uint8).astype(np.int64) + FIRST_BYTE for side in pair)
    return source, target


def prepared_pairs(split: Split) -> list[Pair]:
    """Return the pairs of a split of prepared pairs, as views of one array."""
    sides = np.split(split.read(0, len(split)), split.document_starts()[1:])
    return list(zip(sides[::2], sides[1::2], strict=True))


def _pairs_of(data: PreparedData, split: str, config: EncoderDecoderConfig) -> list[Pair]:
    """Return the pairs of a split, which must not be too long for the model; none if there is no such split."""
    if split not in data.splits:
        return []
    pairs = prepared_pairs(data.splits[split])
    source, target = (max(map(len, sides)) for sides in zip(*pairs, strict=True))
    if source > config.source_len or target >= config.tgt_len:
        raise DataError(
            f"the pairs of {split}: at most {config.source_len:,} and {config.tgt_len - 1:,} tokens, found up to "
            f"{source:,} in a source and {target:,} in a target.",
            hint="Remove long pairs before you prepare the data, or give a larger source_len and tgt_len.",
        )
    return pairs


def _padded(rows: Sequence[Sequence[int]], width: int, fill: int) -> Tensor:
    return torch.tensor([[*row, *[fill] * (width - len(row))] for row in rows])
