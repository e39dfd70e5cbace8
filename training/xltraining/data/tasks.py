"""Training tasks: the source of a run's batches, and its evaluation."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, cast

import torch
from torch import Tensor

from xltraining.config_fields import ModelConfig
from xltraining.data.duplication import N_TOKEN, DuplicationTask, sequence_length
from xltraining.data.images import ImageTask, image_problems
from xltraining.data.pairs import PairsTask
from xltraining.data.photos import read_photos
from xltraining.data.streams import ByteText, OrderedStreams, ShuffledStreams, Text, TokenStreams, read_bytes
from xltraining.data.token_shards import is_prepared, read_to_train
from xltraining.data.tokenizer_file import TokenizerFile, TokenizerKind
from xltraining.encoder_decoder import EncoderDecoderConfig
from xltraining.errors import ConfigError, DataError
from xltraining.evaluation import Progress, evaluate, no_progress
from xltraining.language_model import LanguageModel
from xltraining.training_config import TrainingConfig

__all__ = ["StreamTask", "Task", "check_task", "make_task", "prepared_task", "text_task"]

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
    text, valid, content = data.splits["train"], data.splits.get("valid"), data.tokenizer_file()
    kind = ShuffledStreams if training.shuffle else OrderedStreams
    return StreamTask(
        kind(text, training.batch_size, segment_len, training.seed, n_token),
        valid,
        text_sha256=data.sha256,
        unit=data.unit,
        tokenizer="bytes" if content is None else TokenizerFile(cast(TokenizerKind, data.tokenizer["kind"]), content),
        text_bytes=None if data.unit == "byte" else (text.text_bytes, 0 if valid is None else valid.text_bytes),
    )


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
    prepared = any(is_prepared(Path(file)) for file in (*train_files, *valid_files))
    if prepared and (len(train_files) != 1 or valid_files):
        raise DataError("prepared data has its own held-out text.", hint="Name its folder alone, without other files.")
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
    if prepared:
        return prepared_task(Path(train_files[0]), model.n_token, training, model.tgt_len)
    if training.shuffle:
        raise DataError("shuffle needs documents.", hint="Prepare the text with `xlexport prepare` first.")
    if not train_files:
        raise DataError("no text was given to train on.", hint="Name one or more text files.")
    return text_task(read_bytes(train_files), read_bytes(valid_files), training, model.tgt_len)
