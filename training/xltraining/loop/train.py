"""Train a language model: warm-up and cosine decay, carried memory, exact resume.

The output folder gets `checkpoint.pt` (weights, and the state for a resumed run) and `log.jsonl`, one object per line:
`step`, `bits_per_byte` (mean training loss since the line before), `learning_rate`, `tokens_per_second`, and
`valid_bits_per_byte` if the held-out text was evaluated at that step. Prepared data adds bits per unit of it, such as
`bits_per_word`, and `perplexity`. A task from outside names its unit and its figures.
"""

import json
import math
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from xltraining.architectures import new_model
from xltraining.checkpoint import check_tensors, load_checkpoint, save_checkpoint
from xltraining.config_fields import ModelConfig
from xltraining.data.tasks import Task, check_positions, make_task
from xltraining.data.token_shards import is_prepared
from xltraining.errors import CheckpointWriteError, ConfigError, RunFileError, TrainingDivergedError
from xltraining.evaluation import Progress, no_progress
from xltraining.layers.swapping import LayerStore
from xltraining.loop.log import Log
from xltraining.loop.optimizers import learning_rate
from xltraining.loop.processes import Processes, joined
from xltraining.loop.saved_run import CHECKPOINT_NAME, check_same_run, state_of
from xltraining.loop.updates import Updates
from xltraining.training_config import TrainingConfig

__all__ = ["BEST_NAME", "TrainingConfig", "TrainingResult", "TrainingRun", "train"]

BEST_NAME = "best.pt"


@dataclass(frozen=True)
class TrainingResult:
    """The result of a run."""

    step: int
    """Number of updates, including those before a resume."""
    train_bits: float | None
    """Bits per byte, or per symbol of the task, in the log's last line."""
    valid_bits: float | None
    """Bits per byte, or per symbol of the task, in the last evaluation."""
    interrupted: bool
    checkpoint: Path


def train(
    model_config: ModelConfig,
    training_config: TrainingConfig,
    train_files: Sequence[Path],
    valid_files: Sequence[Path],
    out_dir: Path,
    *,
    task: Task | None = None,
    resume: bool = False,
    initial: Mapping[str, Tensor] | None = None,
    about: Mapping[str, str] | None = None,
    report: Callable[[str], None] | None = None,
    on_step: Callable[[int], None] = lambda step: None,
    on_line: Callable[[Mapping[str, Any]], None] = lambda line: None,
    on_evaluation: Progress = no_progress,
) -> TrainingResult:
    """Train a model, or resume a run that was stopped.

    Processes that `torchrun` started train one model together; each calls this function with the same arguments.

    On a CPU, a run that was stopped and resumed has the losses of an uninterrupted one, bit for bit.
    Ctrl-C (in the main thread) finishes the update or ends the evaluation, writes the checkpoint and returns; a second
    one stops at once. A resumed run repeats an evaluation that was ended.

    Args:
        model_config: the model; segments are `tgt_len` tokens long.
        training_config: the settings of the training.
        train_files: text files, read as bytes, one after the other; or one folder of `xlexport prepare`.
        valid_files: held-out text; may be empty.
        out_dir: the output folder, made if missing; nothing is written elsewhere.
        task: the source of batches and of held-out figures; the checkpoint only lists the files. None: the files' text.
        resume: continue from the checkpoint in `out_dir`; `loop.saved_run` reads its settings. More `steps` than
            before extend a run: from there on, the learning rate follows the longer schedule.
        initial: weights of a new run, under the model's names; None: fresh ones.
        about: `licence` and `data` for the checkpoints, which also get the last held-out score; a resumed run keeps
            those that are not given.
        report: called with one line of text at each evaluation and at the end; None prints it to stderr.
        on_step: called after each update with the number of updates so far.
        on_line: called with each line of the log.
        on_evaluation: called during each evaluation with the targets that are scored, and all.

    Raises:
        ConfigError, DataError: the configuration or the text is invalid; nothing was written.
        RunFileError: `out_dir` holds a checkpoint and `resume` is false, it does not belong to this run, or
            `initial` does not fit the configuration.
        CheckpointWriteError: a checkpoint could not be written.
        TrainingDivergedError: the loss or a weight is no longer finite; the last checkpoint is kept.
    """
    report = report or partial(print, file=sys.stderr)
    if task is None:
        check_positions(model_config)
    checkpoint = Path(out_dir) / CHECKPOINT_NAME
    if checkpoint.exists() and (not resume or training_config.steps == 0):  # fresh weights never replace a checkpoint
        raise RunFileError(
            f"{checkpoint}: the checkpoint exists already.", hint="Resume that run or choose another folder."
        )
    devices = [training_config.device] if training_config.device.startswith("cuda") else []
    if initial is not None:
        check_tensors("initial weights", model_config, initial)
    with torch.random.fork_rng(devices), _threads(training_config.threads), joined(training_config.device) as processes:
        if processes.count > 1:
            processes.wait()  # until every process has seen that no checkpoint is in the way
        torch.manual_seed(training_config.seed)
        if training_config.steps == 0:
            if task is None and train_files and is_prepared(Path(train_files[0])):
                task = make_task(model_config, training_config, train_files, valid_files)
            tokenizer = "bytes" if task is None else task.tokenizer
            weights = new_model(model_config).state_dict() if initial is None else initial
            save_checkpoint(checkpoint, model_config, weights, tokenizer=tokenizer, about=about)
            report(f"wrote {checkpoint} with {'fresh' if initial is None else 'initial'} weights")
            return TrainingResult(0, None, None, False, checkpoint)
        task = task or make_task(model_config, training_config, train_files, valid_files)
        files = {"train": train_files, "valid": valid_files}
        run = TrainingRun(model_config, training_config, task, Path(out_dir), files, processes, initial, about)
        if resume:
            planned, steps = run.restore(), training_config.steps
            if processes.is_first:
                report(f"resuming {checkpoint} at step {run.step:,}")
            if processes.is_first and steps < planned:
                report(
                    f"steps was {planned:,}, is now {steps:,}: the run ends there, also when it is resumed again. "
                    "Give more steps to extend it."
                )
        with _interruptible() as interrupt:
            return run.go(interrupt, report, on_step, on_line, on_evaluation)


class TrainingRun:
    """The model and everything that changes from update to update."""

    def __init__(
        self,
        model_config: ModelConfig,
        config: TrainingConfig,
        task: Task,
        out_dir: Path,
        files: Mapping[str, Sequence[Path]],
        processes: Processes | None = None,
        initial: Mapping[str, Tensor] | None = None,
        about: Mapping[str, str] | None = None,
    ) -> None:
        """Make a model and its optimizer.

        Args:
            files: paths of the task's texts, as `train` and `valid`; the checkpoint stores them for a later resume.
            processes: all that train the model together; None: this one alone.
            initial: the model's weights; None: fresh ones.
            about: as in `train`.

        Raises:
            ConfigError: the settings do not fit the processes or the task.
        """
        self.config, self.task, self.out_dir = config, task, out_dir
        self.processes = processes or Processes()
        self.files = {name: [str(path.absolute()) for path in paths] for name, paths in files.items()}
        self.device = torch.device(config.device)
        if self.device.type == "cuda" and self.processes.count > 1:
            self.device = torch.device("cuda", self.processes.local_rank)
        if config.swap_layers and self.processes.count > 1:
            raise ConfigError(f"swap_layers trains on one process, found {self.processes.count}.")
        if config.best and not task.held_out:
            raise ConfigError("best needs held-out text.", hint="Give some, or leave it out.")
        store = None
        if config.swap_layers:
            self._make_folder()
            store = LayerStore(self.device, self.out_dir)
        self.model = new_model(model_config, store).to(self.device).train()
        if initial is not None:
            self.model.load_state_dict(initial)
        self.model.prepare_training(config)
        self.updates = Updates(self.model, config, self.processes)
        self.step = 0
        # Nats per target, since the last line of the log.
        self.loss_sum = torch.zeros((), device=self.device, dtype=torch.float64)
        self.loss_count = 0
        self.log = Log(out_dir, task)
        self.best: float | None = None  # score on held-out text
        self._about: dict[str, Any] = dict(about or {})

    def _make_folder(self) -> None:
        try:
            self.out_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CheckpointWriteError(
                f"{self.out_dir}: cannot create the output folder ({error.strerror}).", hint="Choose another place."
            ) from error

    @property
    def checkpoint(self) -> Path:
        """Path of the run's checkpoint."""
        return self.out_dir / CHECKPOINT_NAME

    @property
    def about(self) -> dict[str, Any]:
        """What the checkpoint says of the model."""
        bits = self.log.valid_bits
        return self._about if bits is None else {**self._about, "held_out_bits_per_token": bits}

    def go(
        self,
        interrupt: threading.Event,
        report: Callable[[str], None],
        on_step: Callable[[int], None],
        on_line: Callable[[Mapping[str, Any]], None] = lambda line: None,
        on_evaluation: Progress = no_progress,
    ) -> TrainingResult:
        """Train to the end, or until `interrupt` is set; then finish the update, but not an evaluation, and save."""
        config, first = self.config, self.processes.is_first
        self._make_folder()

        def progress(done: int, total: int) -> None:
            if self.processes.any(interrupt.is_set()):
                raise _EvaluationEndedError
            if first:
                on_evaluation(done, total)

        stopping, since, logged_step = False, time.perf_counter(), self.step

        def write_line() -> None:
            nonlocal since, logged_step
            line = self._log_line((self.step - logged_step) / (time.perf_counter() - since), progress)
            if lines is not None:
                lines.write(json.dumps(line) + "\n")
                lines.flush()
                on_line(line)
            if self._has_evaluation and first:
                report(f"step {self.step:,}: {self.log.scores_in_words()}")
            if self._has_evaluation and config.best:
                self._keep_best()
            since, logged_step = time.perf_counter(), self.step

        with self.log.open(begun=self.step > 0) if first else nullcontext() as lines:
            try:
                if self.loss_count and self._has_line:  # the run was stopped in the evaluation of this step
                    write_line()
                while self.step < config.steps and not stopping:
                    self.loss_sum += self.updates.do(self.task, self.step)
                    self.loss_count += 1
                    self.step += 1
                    if self._has_line:
                        write_line()
                    if self.step % config.checkpoint_every == 0:
                        self.save()
                    on_step(self.step)
                    stopping = self.processes.any(interrupt.is_set())
            except _EvaluationEndedError:
                stopping = True
            self.save()
        stopped = stopping and (self.step < config.steps or self.loss_count > 0)
        if first:
            ended, further = ("stopped", "; go on with --resume") if stopped else ("finished", "")
            report(f"{ended} at step {self.step:,} of {config.steps:,}; wrote {self.checkpoint}{further}")
        return TrainingResult(self.step, self.log.train_bits, self.log.valid_bits, stopped, self.checkpoint)

    @property
    def _has_evaluation(self) -> bool:
        """Whether the held-out text is evaluated at this step."""
        return self.task.held_out and (self.step == self.config.steps or self.step % self.config.eval_every == 0)

    @property
    def _has_line(self) -> bool:
        """Whether the log has a line of this step."""
        return self._has_evaluation or self.step == self.config.steps or self.step % self.config.log_every == 0

    def _log_line(self, steps_per_second: float, progress: Progress) -> dict[str, Any]:
        """Return the line of the log for the steps since the line before; every process must call this."""
        bits = self.processes.mean(self.loss_sum).item() / self.loss_count / math.log(2)
        if not math.isfinite(bits):
            raise self._diverged(f"the loss is {bits}")
        values = {"learning_rate": learning_rate(self.config, self.step - 1)}
        if steps_per_second:  # none in a line that an earlier process owed
            values["tokens_per_second"] = steps_per_second * self.config.batch_size * self.task.segment_len
        if self._has_evaluation:
            values |= self.task.evaluate(self.updates.evaluated, progress)
        self.loss_sum.zero_()
        self.loss_count = 0
        return self.log.line(self.step, bits, values)

    def _keep_best(self) -> None:
        """Keep the weights, without the state of the run, if their score on held-out text is the best so far."""
        score = self.log.valid_bits
        if score is not None and (self.best is None or score < self.best):
            self.best = score
            self._write(self.out_dir / BEST_NAME, self.updates.weights())

    def _write(self, path: Path, weights: Mapping[str, Tensor], training: dict[str, Any] | None = None) -> None:
        """Write a checkpoint in the first process."""
        if self.processes.is_first:
            save_checkpoint(
                path,
                self.model.config,
                weights,
                training=training,
                tokenizer=self.task.tokenizer,
                about=self.about,
                release=self.updates.release,
            )

    def _diverged(self, what: str) -> TrainingDivergedError:
        return TrainingDivergedError(
            f"{what} at step {self.step}; no checkpoint was written for this step in {self.out_dir}.",
            hint="Lower the learning rate or the clipping norm, and start again.",
        )

    def save(self) -> None:
        """Write the checkpoint with all state for `restore`; weights that are not finite never replace it.

        Every process must call this; the first one writes.
        """
        weights = self.updates.weights()
        for tensor in weights.values():
            if not tensor.isfinite().all():
                raise self._diverged("some weights are not finite")
            self.updates.release()
        on_cuda = self.device.type == "cuda"
        training = {
            "config": self.config.to_dict(),
            "files": self.files,
            "text_sha256": self.task.text_sha256,
            "step": self.step,
            "optimizer": self.updates.optimizer_state(),
            "memory": self.updates.plain_memory() if self.task.carries_memory else None,
            "random_state": torch.get_rng_state(),
            "cuda_random_state": torch.cuda.get_rng_state(self.device) if on_cuda else None,
            "loss_sum": self.processes.mean(self.loss_sum),
            "loss_count": self.loss_count,
            "best": self.best,
            "groups": self.updates.groups,
            "averaging": self.updates.averaging(),
        }
        self._write(self.checkpoint, weights, training)
        self.processes.wait()

    def restore(self) -> int:
        """Resume the run whose checkpoint is in the output folder; drop the log's lines after the checkpoint.

        Every process must call this. The number of processes may be another one than before.

        Returns:
            The number of steps that the run had before.

        Raises:
            RunFileError: the folder has no checkpoint, or that of another run. The message lists every difference.
        """
        saved = load_checkpoint(self.checkpoint)
        state = state_of(self.checkpoint, saved)
        check_same_run(self.checkpoint, saved, state, self.model.config, self.config, self.task.text_sha256)
        self.updates.load(saved.state_dict, state["optimizer"], state.get("averaging"))
        self.updates.set_memory(state["memory"], state.get("groups", 1))
        self.step, self.loss_count, self.best = state["step"], state["loss_count"], state.get("best")
        self.loss_sum = state["loss_sum"].to(self.device).double()
        torch.set_rng_state(state["random_state"])
        if self.device.type == "cuda" and state["cuda_random_state"] is not None:
            torch.cuda.set_rng_state(state["cuda_random_state"], self.device)
        self.log.restore(self.step, self.processes)
        self._about = {**saved.about, **self._about}
        return int(state["config"]["steps"])


class _EvaluationEndedError(Exception):
    """Ctrl-C ended an evaluation."""


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
