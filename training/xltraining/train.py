"""Train a language model: warm-up and cosine decay, carried memory, exact resume.

The output folder gets `checkpoint.pt` (weights, and the state for a resumed run) and `log.jsonl`, one object per line:
`step`, `bits_per_byte` (mean training loss since the line before), `learning_rate`, `tokens_per_second`, and
`valid_bits_per_byte` if the held-out text was evaluated at that step. Prepared data adds bits per unit of it, such as
`bits_per_word`, and `perplexity`. For the duplication task, the names are
`bits_per_symbol`, `valid_bits_per_symbol` and `valid_accuracy`.
"""

import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from xltraining.architectures import new_model
from xltraining.checkpoint import save_checkpoint
from xltraining.data.tasks import check_task, make_task
from xltraining.data.token_shards import is_prepared
from xltraining.data.tokenizer_file import TokenizerFile
from xltraining.errors import CheckpointError
from xltraining.language_model import ModelConfig
from xltraining.loop.processes import joined
from xltraining.loop.run import CHECKPOINT_NAME, TrainingResult, TrainingRun
from xltraining.training_config import TrainingConfig

__all__ = ["TrainingConfig", "TrainingResult", "train"]


def train(
    model_config: ModelConfig,
    training_config: TrainingConfig,
    train_files: Sequence[Path],
    valid_files: Sequence[Path],
    out_dir: Path,
    *,
    resume: bool = False,
    report: Callable[[str], None] | None = None,
    on_step: Callable[[int], None] = lambda step: None,
    on_line: Callable[[Mapping[str, Any]], None] = lambda line: None,
    show_bar: bool = True,
) -> TrainingResult:
    """Train a model, or resume a run that was stopped.

    Processes that `torchrun` started train one model together; each calls this function with the same arguments.

    On a CPU, a run that was stopped and resumed has the losses of an uninterrupted one, bit for bit.
    Ctrl-C (in the main thread) finishes the update, writes the checkpoint and returns; a second one stops at once.

    Args:
        model_config: the model; segments are `tgt_len` tokens long.
        training_config: the task and the settings of its training.
        train_files: text files, read as bytes, one after the other; or one folder of `xlexport prepare`; none for a
            task that draws its examples.
        valid_files: held-out text; may be empty.
        out_dir: the output folder, made if missing; nothing is written elsewhere.
        resume: continue from the checkpoint in `out_dir`; `loop.run.saved_run` reads its settings. More `steps` than
            before extend a run: from there on, the learning rate follows the longer schedule.
        report: called with one line of text at each evaluation and at the end; None prints it to stderr.
        on_step: called after each update with the number of updates so far.
        on_line: called with each line of the log.
        show_bar: whether to show a bar on stderr, if it is a terminal.

    Raises:
        ConfigError, DataError: the configuration or the text is invalid; nothing was written.
        CheckpointError: `out_dir` holds a checkpoint and `resume` is false, or it does not belong to this run.
        CheckpointWriteError: a checkpoint could not be written.
        TrainingDivergedError: the loss or a weight is no longer finite; the last checkpoint is kept.
    """
    report = report or _print_beside_bar
    check_task(model_config, training_config)
    checkpoint = Path(out_dir) / CHECKPOINT_NAME
    if checkpoint.exists() and (not resume or training_config.steps == 0):  # fresh weights never replace a checkpoint
        raise CheckpointError(
            f"{checkpoint}: the checkpoint exists already.", hint="Resume that run or choose another folder."
        )
    devices = [training_config.device] if training_config.device.startswith("cuda") else []
    with (
        torch.random.fork_rng(devices),
        _threads(training_config.threads),
        joined(training_config.device) as processes,
    ):
        if processes.count > 1:
            processes.wait()  # until every process has seen that no checkpoint is in the way
        torch.manual_seed(training_config.seed)
        if training_config.steps == 0:
            tokenizer: str | TokenizerFile | None = "bytes"
            if train_files and is_prepared(Path(train_files[0])):
                tokenizer = make_task(model_config, training_config, train_files, valid_files).tokenizer
            save_checkpoint(checkpoint, model_config, new_model(model_config).state_dict(), tokenizer=tokenizer)
            report(f"wrote {checkpoint} with fresh weights")
            return TrainingResult(0, None, None, False, checkpoint)
        task = make_task(model_config, training_config, train_files, valid_files)
        files = {"train": train_files, "valid": valid_files}
        run = TrainingRun(model_config, training_config, task, Path(out_dir), files, processes)
        if resume:
            run.restore()
            if processes.is_first:
                report(f"resuming {checkpoint} at step {run.step:,}")
        with _interruptible() as interrupt:
            return run.go(interrupt, report, on_step, show_bar, on_line)


def _print_beside_bar(line: str) -> None:
    tqdm.write(line, file=sys.stderr)


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _interruptible() -> Iterator[threading.Event]:
    """Yield an event that the first Ctrl-C sets; the second raises KeyboardInterrupt. Other threads cannot catch it."""
    interrupt = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield interrupt
        return

    def note(number: int, frame: object) -> None:
        if interrupt.is_set():
            raise KeyboardInterrupt
        interrupt.set()

    before = signal.signal(signal.SIGINT, note)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, before)
