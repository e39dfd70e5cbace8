"""The task of predicting the tokens of prepared data."""

from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from xltraining.data.token_shards import Split, check_digests, read_prepared
from xltraining.data.token_streams import OrderedStreams, ShuffledStreams, TokenStreams
from xltraining.data.tokenizer_file import TokenizerFile, TokenizerKind
from xltraining.errors import DataError
from xltraining.evaluation import Progress, evaluate, no_progress
from xltraining.language_model import LanguageModel
from xltraining.training_config import TrainingConfig

__all__ = ["PreparedTask"]

_VALID_STREAMS = 8  # the held-out text is walked as so many streams, for speed


class PreparedTask:
    """The task of predicting contiguous streams of prepared tokens, with scores per token and per byte."""

    carries_memory = True

    def __init__(self, folder: Path, n_token: int, training: TrainingConfig, segment_len: int) -> None:
        """Train on the split `train` of a folder, evaluate on its split `valid` if it has one.

        Raises:
            DataError: the folder is damaged, changed, too short, or has another vocabulary than the model.
        """
        data = read_prepared(folder)
        if data.n_token != n_token:
            raise DataError(
                f"{folder}: a vocabulary of {data.n_token:,}, but the model has {n_token:,} tokens.",
                hint="Leave n_token out, or prepare the data with the model's vocabulary.",
            )
        check_digests(data)
        if "train" not in data.splits:
            raise DataError(f"{folder}: no split named train.", hint="Prepare the data again.")
        text = data.splits["train"]
        kind: type[ShuffledStreams | OrderedStreams] = ShuffledStreams if training.shuffle else OrderedStreams
        self._streams: TokenStreams = kind(text, training.batch_size, segment_len, training.seed, n_token)
        self._valid = data.splits.get("valid")
        if self._valid is not None and len(self._valid) < 2:
            raise DataError(f"{folder}: the held-out text is one token long.", hint="Prepare more of it.")
        content = data.tokenizer_file()
        self.tokenizer: str | TokenizerFile = (
            "bytes" if content is None else TokenizerFile(cast(TokenizerKind, data.tokenizer["kind"]), content)
        )
        self.unit = data.unit
        self.bytes_per_target = None if self.unit == "byte" else text.text_bytes / len(text)
        self.text_sha256 = data.sha256
        self.segment_len = segment_len
        self.held_out = self._valid is not None

    def batch(self, step: int, rows: slice = slice(None)) -> tuple[Tensor, Tensor]:
        """Return tokens and targets of some rows of a step (from 0), both (rows,S) int64."""
        return self._streams.batch(step, rows)

    def evaluate(self, model: LanguageModel, progress: Progress = no_progress) -> dict[str, float]:
        """Return bits per token and per byte, and perplexity, of the held-out text."""
        split = cast(Split, self._valid)
        tokens = torch.from_numpy(split.read(0, len(split)))
        bits = evaluate(model, tokens, self.segment_len, min(_VALID_STREAMS, len(tokens) // 2), progress)
        scores = {f"valid_bits_per_{self.unit}": bits}
        if self.bytes_per_target is None:
            return scores
        return scores | {"valid_bits_per_byte": bits * len(split) / split.text_bytes, "valid_perplexity": 2**bits}
