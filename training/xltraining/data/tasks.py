"""Training tasks: the source of a run's batches, and its evaluation."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from xltraining.config_fields import ModelConfig
from xltraining.data.pairs import PairsTask
from xltraining.data.streams import ByteText, OrderedStreams, ShuffledStreams, Text, TokenStreams, read_bytes
from xltraining.data.token_shards import is_prepared, read_to_train
from xltraining.data.tokenizer_file import TokenizerFile
from xltraining.encoder_decoder import EncoderDecoderConfig
from xltraining.errors import ConfigError, DataError
from xltraining.evaluation import Progress, evaluate, no_progress
from xltraining.language_model import LanguageModel
from xltraining.messages import renamed
from xltraining.training_config import TrainingConfig

__all__ = ["StreamTask", "Task", "check_positions", "make_task", "prepared_task", "text_task"]

if not TYPE_CHECKING:  # which would take any name
    __getattr__ = renamed(__name__, {"check_task": "check_positions"})

_VALID_STREAMS = 8  # the held-out text is walked as so many streams, for speed


class Task(Protocol):
    """A source of batches, each of which depends only on its number; `train` takes one from outside.

    `experiments/duplication.py` and `experiments/images.py` are examples.
    """

    @property
    def unit(self) -> str:
        """Name of a target in the log: `byte` as in `bits_per_byte`, or `symbol` as in `bits_per_symbol`."""

    @property
    def tokenizer(self) -> str | TokenizerFile | None:
        """The tokenizer that turns text into the model's tokens, if there is one."""

    @property
    def bytes_per_target(self) -> float | None:
        """Bytes of text that a target represents on average; None if `unit` is the only measure."""

    @property
    def segment_len(self) -> int:
        """Tokens of a row of a batch."""

    @property
    def carries_memory(self) -> bool:
        """Whether a row continues the same row of the previous batch; if not, each row is a document."""

    @property
    def text_sha256(self) -> str | None:
        """SHA-256 of the training text, if there is one."""

    @property
    def held_out(self) -> bool:
        """Whether the task has held-out data for evaluation."""

    def batch(self, step: int, rows: slice = slice(None)) -> tuple[Tensor, Tensor]:
        """Return tokens and targets of some rows of a step (from 0), both (rows,S) int64; -100 is not scored."""

    def evaluate(self, model: LanguageModel, progress: Progress = no_progress) -> dict[str, float]:
        """Return figures on held-out data, by their names in the log."""


class StreamTask:
    """The task of predicting contiguous streams of bytes or prepared tokens."""

    carries_memory = True

    def __init__(
        self,
        streams: TokenStreams,
        valid: Text | None,
        *,
        text_sha256: str,
        unit: str = "byte",
        tokenizer: str | TokenizerFile = "bytes",
        text_bytes: tuple[int, int] | None = None,
    ) -> None:
        """Train on streams of a text, evaluate on another one if there is one.

        Args:
            text_bytes: bytes of the training text and of the held-out text, if tokens are not bytes.

        Raises:
            DataError: the held-out text is a single token.
        """
        if valid is not None and len(valid) < 2:
            raise DataError(f"the held-out text is one {unit} long.", hint="Give at least two, or no held-out text.")
        self._streams, self._valid, self._text_bytes = streams, valid, text_bytes
        self.unit, self.tokenizer, self.text_sha256 = unit, tokenizer, text_sha256
        self.segment_len = streams.segment_len
        self.held_out = valid is not None
        self.bytes_per_target = None if text_bytes is None else text_bytes[0] / len(streams.text)

    def batch(self, step: int, rows: slice = slice(None)) -> tuple[Tensor, Tensor]:
        """Return tokens and targets of some rows of a step (from 0), both (rows,S) int64."""
        return self._streams.batch(step, rows)

    def evaluate(self, model: LanguageModel, progress: Progress = no_progress) -> dict[str, float]:
        """Return bits per token of the held-out text; if tokens are not bytes, also bits per byte and perplexity."""
        assert self._valid is not None
        count = len(self._valid)
        tokens = torch.from_numpy(self._valid.read(0, count))
        bits = evaluate(model, tokens, self.segment_len, min(_VALID_STREAMS, count // 2), progress)
        scores = {f"valid_bits_per_{self.unit}": bits}
        if self._text_bytes is None:
            return scores
        return scores | {"valid_bits_per_byte": bits * count / self._text_bytes[1], "valid_perplexity": 2**bits}


def text_task(text: Tensor, valid_text: Tensor, training: TrainingConfig, segment_len: int) -> StreamTask:
    """Return the task of a text (N,) uint8; the held-out text may be empty.

    Raises:
        DataError: the training text is too short, or the held-out text is a single byte.
    """
    streams = OrderedStreams(ByteText(text), training.batch_size, segment_len, training.seed)
    digest = hashlib.sha256(text.numpy().tobytes()).hexdigest()
    return StreamTask(streams, ByteText(valid_text) if len(valid_text) else None, text_sha256=digest)


def prepared_task(folder: Path, n_token: int, training: TrainingConfig, segment_len: int) -> StreamTask:
    """Return the task of prepared data, of its split `train`, and of its split `valid` if it has one.

    Raises:
        DataError: the folder is damaged, changed, too short, or has another vocabulary than the model.
    """
    data = read_to_train(folder, n_token)
    text, valid = data.splits["train"], data.splits.get("valid")
    kind = ShuffledStreams if training.shuffle else OrderedStreams
    return StreamTask(
        kind(text, training.batch_size, segment_len, training.seed, n_token),
        valid,
        text_sha256=data.sha256,
        unit=data.unit,
        tokenizer=data.tokenizer_of_model(),
        text_bytes=None if data.unit == "byte" else (text.text_bytes, 0 if valid is None else valid.text_bytes),
    )


def check_positions(model: ModelConfig) -> None:
    """Check that texts in segments of `tgt_len` tokens reach all positions of a model.

    Raises:
        ConfigError: they do not.
    """
    limit = model.position_limit
    if limit is not None and limit % model.tgt_len:
        raise ConfigError(
            f"tgt_len {model.tgt_len:,} must divide max_positions {limit:,}{model.position_limit_source}: "
            "the last positions would never be trained."
        )


def make_task(
    model: ModelConfig, training: TrainingConfig, train_files: Sequence[Path], valid_files: Sequence[Path]
) -> Task:
    """Make the task of files: pairs for an encoder-decoder, otherwise prepared data or text.

    Raises:
        DataError: files are missing or too short.
    """
    prepared = any(is_prepared(Path(file)) for file in (*train_files, *valid_files))
    if prepared and (len(train_files) != 1 or valid_files):
        raise DataError("prepared data has its own held-out text.", hint="Name its folder alone, without other files.")
    if isinstance(model, EncoderDecoderConfig):
        return PairsTask(model, train_files, valid_files, training.batch_size, training.seed)
    if prepared:
        return prepared_task(Path(train_files[0]), model.n_token, training, model.tgt_len)
    if training.shuffle:
        raise DataError("shuffle needs documents.", hint="Prepare the text with `xlexport prepare` first.")
    if not train_files:
        raise DataError("no text was given to train on.", hint="Name one or more text files.")
    return text_task(read_bytes(train_files), read_bytes(valid_files), training, model.tgt_len)
