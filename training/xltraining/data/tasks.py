"""Training tasks: the source of a run's batches, and its evaluation."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from torch import Tensor

from xltraining.config_fields import ModelConfig
from xltraining.data.byte_streams import ByteStreams, read_bytes
from xltraining.data.duplication import N_TOKEN, DuplicationTask, sequence_length
from xltraining.data.images import ImageTask, image_problems
from xltraining.data.pairs import PairsTask
from xltraining.data.photos import read_photos
from xltraining.data.prepared_task import PreparedTask
from xltraining.data.token_shards import is_prepared
from xltraining.data.tokenizer_file import TokenizerFile
from xltraining.encoder_decoder import EncoderDecoderConfig
from xltraining.errors import ConfigError, DataError
from xltraining.evaluation import Progress, evaluate, no_progress
from xltraining.language_model import LanguageModel
from xltraining.training_config import TrainingConfig

__all__ = ["Task", "TextTask", "check_task", "make_task"]

_VALID_STREAMS = 8  # the held-out text is walked as so many streams, for speed


class Task(Protocol):
    """A source of batches, each of which depends only on its number."""

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


class TextTask:
    """The task of predicting contiguous streams of bytes."""

    unit = "byte"
    tokenizer = "bytes"
    bytes_per_target = None
    carries_memory = True

    def __init__(self, text: Tensor, valid_text: Tensor, batch_size: int, segment_len: int, seed: int) -> None:
        """Train on `text` (N,) uint8, evaluate on `valid_text`, which may be empty.

        Raises:
            DataError: the training text is too short, or the held-out text is a single byte.
        """
        if len(valid_text) == 1:
            raise DataError("the held-out text is one byte long.", hint="Give at least two bytes, or no text.")
        self.text_sha256 = hashlib.sha256(text.numpy().tobytes()).hexdigest()
        self._streams = ByteStreams(text, batch_size, segment_len, seed)
        self._valid_text = valid_text
        self.segment_len = segment_len
        self.held_out = len(valid_text) > 0

    def batch(self, step: int, rows: slice = slice(None)) -> tuple[Tensor, Tensor]:
        """Return tokens and targets of some rows of a step (from 0), both (rows,S) int64."""
        tokens, targets = self._streams.batch(step)
        return tokens[rows], targets[rows]

    def evaluate(self, model: LanguageModel, progress: Progress = no_progress) -> dict[str, float]:
        """Return bits per byte of the held-out text."""
        streams = min(_VALID_STREAMS, len(self._valid_text) // 2)
        return {"valid_bits_per_byte": evaluate(model, self._valid_text, self.segment_len, streams, progress)}


def check_task(model: ModelConfig, training: TrainingConfig) -> None:
    """Check that the model's sizes fit the task.

    Raises:
        ConfigError: they do not. The message lists every problem.
    """
    problems = []
    limit = model.position_limit
    if isinstance(model, EncoderDecoderConfig) != (training.task == "pairs"):
        problems.append(f"pairs are for an encoder-decoder, and it reads nothing else, found {model.NAME}")
    elif training.task == "duplication":
        length = sequence_length(training.word_length)
        if model.n_token != N_TOKEN:
            problems.append(f"n_token must be {N_TOKEN} (127 symbols and 0), found {model.n_token}")
        if model.tgt_len != length:
            problems.append(f"tgt_len must be {length:,} (0w0w with {training.word_length} symbols in w), found "
                            f"{model.tgt_len:,}")  # fmt: skip
        if limit is not None and limit < length:
            problems.append(f"max_positions must be at least {length:,}, found {limit:,}")
    elif training.task == "images":
        problems += image_problems(model, training.image_size)
    elif limit is not None and limit % model.tgt_len:
        problems.append(
            f"tgt_len {model.tgt_len:,} must divide max_positions {limit:,}{model.position_limit_source}: "
            "the last positions would never be trained"
        )
    if problems:
        raise ConfigError(f"the model does not fit the task {training.task}: {'; '.join(problems)}.")


def make_task(
    model: ModelConfig, training: TrainingConfig, train_files: Sequence[Path], valid_files: Sequence[Path]
) -> Task:
    """Make the task of a run.

    Raises:
        DataError: files are missing, too short, or given to a task that draws its examples.
    """
    if isinstance(model, EncoderDecoderConfig):
        return PairsTask(model, train_files, valid_files, training.batch_size, training.seed)
    if training.task == "duplication":
        if train_files or valid_files:
            raise DataError("the duplication task draws its examples.", hint="Leave out the text files.")
        return DuplicationTask(training.word_length, training.batch_size, training.seed)
    if training.task == "images":
        if not train_files:
            raise DataError("no photographs were given to train on.", hint="Name one or more PNG or JPEG files.")
        photos, valid_photos = (read_photos(files, training.image_size) for files in (train_files, valid_files))
        return ImageTask(photos, valid_photos, training, model.tgt_len)
    if any(is_prepared(Path(file)) for file in (*train_files, *valid_files)):
        if len(train_files) != 1 or valid_files:
            raise DataError(
                "prepared data has its own held-out text.", hint="Name its folder alone, without other files."
            )
        return PreparedTask(Path(train_files[0]), model.n_token, training, model.tgt_len)
    if training.shuffle:
        raise DataError("shuffle needs documents.", hint="Prepare the text with `xlexport prepare` first.")
    if not train_files:
        raise DataError("no text was given to train on.", hint="Name one or more text files.")
    text, valid_text = read_bytes(train_files), read_bytes(valid_files)
    return TextTask(text, valid_text, training.batch_size, model.tgt_len, training.seed)
