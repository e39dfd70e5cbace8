"""A training run: updates, the lines of its log, and the state from which it resumes exactly."""

import json
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from xltraining import atomic_output
from xltraining.architectures import architecture_of, new_model
from xltraining.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from xltraining.data.tasks import Task
from xltraining.errors import CheckpointError, CheckpointWriteError, ConfigError, TrainingDivergedError
from xltraining.language_model import ModelConfig
from xltraining.layers.swapping import LayerStore
from xltraining.loop.processes import Processes
from xltraining.loop.updates import Updates
from xltraining.training_config import TrainingConfig, learning_rate

__all__ = ["BEST_NAME", "CHECKPOINT_NAME", "LOG_NAME", "SavedRun", "TrainingResult", "TrainingRun", "saved_run"]

CHECKPOINT_NAME = "checkpoint.pt"
BEST_NAME = "best.pt"
LOG_NAME = "log.jsonl"
# Among these, `steps` changes weights: the learning rate's schedule follows the new number from the resume on. So does
# `micro_batches` by rounding, and by other units that are dropped.
_FREE_TO_CHANGE = {
    *("device", "threads", "log_every", "eval_every", "checkpoint_every", "steps"),
    *("best", "compile", "micro_batches", "sharded", "swap_layers"),
}


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


@dataclass(frozen=True)
class SavedRun:
    """The settings with which an unfinished run was started."""

    model_config: ModelConfig
    training_config: TrainingConfig
    train_files: tuple[Path, ...]
    """Absolute paths; empty if the task draws its examples, or an earlier version wrote the checkpoint."""
    valid_files: tuple[Path, ...]


def saved_run(out_dir: Path) -> SavedRun:
    """Read the settings with which the run in a folder was started.

    Raises:
        CheckpointError: the folder holds no run.
    """
    checkpoint = Path(out_dir) / CHECKPOINT_NAME
    saved = load_checkpoint(checkpoint)
    state = _state_of(checkpoint, saved)
    files = {name: tuple(map(Path, paths)) for name, paths in state.get("files", {}).items()}
    config = TrainingConfig(**state["config"])
    return SavedRun(saved.config, config, files.get("train", ()), files.get("valid", ()))


def _state_of(checkpoint: Path, saved: Checkpoint) -> dict[str, Any]:
    if saved.training is None:
        raise CheckpointError(f"{checkpoint}: holds weights only, no run to resume.", hint="Choose another folder.")
    return saved.training


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
    ) -> None:
        """Make a fresh model and its optimizer.

        Args:
            files: paths of the task's texts, as `train` and `valid`; the checkpoint stores them for a later resume.
            processes: all that train the model together; None: this one alone.

        Raises:
            ConfigError: the settings do not fit the processes.
        """
        self.config, self.task, self.out_dir = config, task, out_dir
        self.processes = processes or Processes()
        self.files = {name: [str(path.absolute()) for path in paths] for name, paths in files.items()}
        self.device = torch.device(config.device)
        if self.device.type == "cuda" and self.processes.count > 1:
            self.device = torch.device("cuda", self.processes.local_rank)
        if config.swap_layers and self.processes.count > 1:
            raise ConfigError(f"swap_layers trains on one process, found {self.processes.count}.")
        store = self._new_store() if config.swap_layers else None
        self.model = new_model(model_config, store).to(self.device).train()
        self.model.prepare_training(config)
        self.updates = Updates(self.model, config, self.processes)
        self.step = 0
        self.loss_sum = torch.zeros(
            (), device=self.device, dtype=torch.float64
        )  # nats per target, since the last line of the log
        self.loss_count = 0
        self.last: dict[str, Any] = {}
        self.best: float | None = None  # score on held-out text

    def _new_store(self) -> LayerStore:
        """Make a store whose files are in the output folder."""
        self._make_folder()
        return LayerStore(self.device, self.out_dir)

    def _make_folder(self) -> None:
        try:
            self.out_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CheckpointWriteError(
                f"{self.out_dir}: the output folder cannot be made ({error.strerror}).", hint="Choose another place."
            ) from error

    @property
    def checkpoint(self) -> Path:
        """Path of the run's checkpoint."""
        return self.out_dir / CHECKPOINT_NAME

    def go(
        self,
        interrupt: threading.Event,
        report: Callable[[str], None],
        on_step: Callable[[int], None],
        show_bar: bool = True,
        on_line: Callable[[Mapping[str, Any]], None] = lambda line: None,
    ) -> TrainingResult:
        """Train to the end, or until `interrupt` is set; then finish the current update and save."""
        config, unit, first = self.config, self.task.unit, self.processes.is_first
        self._make_folder()
        hidden = None if show_bar and first else True  # None: unless stderr is a terminal
        bar = tqdm(total=config.steps, initial=self.step, unit="step", disable=hidden, dynamic_ncols=True)  # on stderr
        stopping = False
        with bar, ExitStack() as open_files:
            # A new run starts a new log, even if a run that was killed before its first checkpoint left one.
            log = self.out_dir / LOG_NAME
            written = open_files.enter_context(log.open("a" if self.step else "w", encoding="utf-8")) if first else None
            since, logged_step = time.perf_counter(), self.step
            while self.step < config.steps and not stopping:
                self._update()
                bar.update()
                last = self.step == config.steps
                evaluating = self.task.held_out and (last or self.step % config.eval_every == 0)
                if last or evaluating or self.step % config.log_every == 0:
                    line = self._log_line((self.step - logged_step) / (time.perf_counter() - since), evaluating)
                    if written is not None:
                        written.write(json.dumps(line) + "\n")
                        written.flush()
                        on_line(line)
                    bar.set_postfix_str(f"{self._shown_bits()}, {line['tokens_per_second']:,.0f} tokens/s")
                    if evaluating and first:
                        report(f"step {self.step:,}: {self._shown_scores()}")
                    if evaluating and config.best:
                        self._keep_best()
                    since, logged_step = time.perf_counter(), self.step
                if self.step % config.checkpoint_every == 0:
                    self.save()
                on_step(self.step)
                stopping = self.processes.any(interrupt.is_set())
            self.save()
            stopped = stopping and self.step < config.steps
        ended = "stopped" if stopped else "finished"
        if first:
            report(f"{ended} at step {self.step:,} of {config.steps:,}; wrote {self.checkpoint}")
        return TrainingResult(
            self.step, self._train_bits, self.last.get(f"valid_bits_per_{unit}"), stopped, self.checkpoint
        )

    def _update(self) -> None:
        self.loss_sum += self.updates.do(self.task, self.step)
        self.loss_count += 1
        self.step += 1

    def _log_line(self, steps_per_second: float, evaluating: bool) -> dict[str, Any]:
        bits = self.processes.mean(self.loss_sum).item() / self.loss_count / math.log(2)
        if not math.isfinite(bits):
            raise self._diverged(f"the loss is {bits}")
        self.loss_sum.zero_()
        self.loss_count = 0
        line: dict[str, Any] = {"step": self.step, f"bits_per_{self.task.unit}": bits}
        if self.task.bytes_per_target is not None:
            line |= {"bits_per_byte": bits / self.task.bytes_per_target, "perplexity": 2 ** min(bits, 1000.0)}
        line |= {
            "learning_rate": learning_rate(self.config, self.step - 1),
            "tokens_per_second": steps_per_second * self.config.batch_size * self.task.segment_len,
        }
        if evaluating:
            line |= self.task.evaluate(self.updates.evaluated)
        self.last |= line
        return line

    def _keep_best(self) -> None:
        """Keep the weights, without the state of the run, if their score on held-out text is the best so far."""
        score = self.last[f"valid_bits_per_{self.task.unit}"]
        if self.best is None or score < self.best:
            self.best = score
            weights = self.updates.weights()
            if self.processes.is_first:
                save_checkpoint(
                    self.out_dir / BEST_NAME,
                    self.model.config,
                    weights,
                    tokenizer=self.task.tokenizer,
                    release=self.updates.release,
                )

    @property
    def _train_bits(self) -> float | None:
        return self.last.get(f"bits_per_{self.task.unit}")

    def _shown_bits(self, prefix: str = "", digits: int = 3) -> str:
        """Return bits per unit, and if that is not a byte, bits per byte and perplexity."""
        unit, last = self.task.unit, self.last
        shown = f"{last[f'{prefix}bits_per_{unit}']:.{digits}f} bits/{unit}"
        if self.task.bytes_per_target is None:
            return shown
        per_byte, perplexity = last[f"{prefix}bits_per_byte"], last[f"{prefix}perplexity"]
        return f"{shown}, {per_byte:.{digits}f} bits/byte, perplexity {perplexity:,.1f}"

    def _shown_scores(self) -> str:
        unit, last = self.task.unit, self.last
        if self.task.bytes_per_target is not None:
            return f"{self._shown_bits(digits=4)}; held out {self._shown_bits('valid_', 4)}"
        shown = f"{self._train_bits:.4f} bits/{unit}, held out {last[f'valid_bits_per_{unit}']:.4f}"
        accuracy = last.get("valid_accuracy")
        return shown if accuracy is None else f"{shown}, {accuracy:.1%} right"

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
        if self.processes.is_first:
            save_checkpoint(
                self.checkpoint,
                self.model.config,
                weights,
                training=training,
                tokenizer=self.task.tokenizer,
                release=self.updates.release,
            )
        self.processes.wait()

    def restore(self) -> None:
        """Resume the run whose checkpoint is in the output folder; drop the log's lines after the checkpoint.

        Every process must call this. The number of processes may be another one than before.

        Raises:
            CheckpointError: the folder has no checkpoint, or that of another run. The message lists every difference.
        """
        saved = load_checkpoint(self.checkpoint)
        state = _state_of(self.checkpoint, saved)
        self._check_same_run(saved.config, state)
        self.updates.load(saved.state_dict, state["optimizer"], state.get("averaging"))
        self.updates.set_memory(state["memory"], state.get("groups", 1))
        self.step, self.loss_count, self.best = state["step"], state["loss_count"], state.get("best")
        self.loss_sum = state["loss_sum"].to(self.device).double()
        torch.set_rng_state(state["random_state"])
        if self.device.type == "cuda" and state["cuda_random_state"] is not None:
            torch.cuda.set_rng_state(state["cuda_random_state"], self.device)
        log = self.out_dir / LOG_NAME
        if log.exists():
            lines = [line for line in log.read_text(encoding="utf-8").splitlines() if line.endswith("}")]
            kept = [line for line in lines if json.loads(line)["step"] <= self.step]
            self.processes.wait()  # until every process has read it
            if self.processes.is_first:
                with atomic_output.file(log) as temporary:
                    temporary.write_text("".join(line + "\n" for line in kept), encoding="utf-8")
            for line in kept:
                self.last |= json.loads(line)

    def _check_same_run(self, model_config: ModelConfig, state: dict[str, Any]) -> None:
        here: dict[str, Any] = {"architecture": architecture_of(self.model.config)}
        there: dict[str, Any] = {"architecture": architecture_of(model_config)}
        if here == there:  # other architectures have other fields
            here |= vars(self.model.config)
            there |= vars(model_config)
        here |= {**self.config.to_dict(), "training text": self.task.text_sha256}
        # A checkpoint from before a setting existed has its default.
        there |= {**TrainingConfig().to_dict(), **state["config"], "training text": state["text_sha256"]}
        differences = [
            f"{name} was {there.get(name)}, is now {here[name]}"
            for name in here
            if here[name] != there.get(name) and name not in _FREE_TO_CHANGE
        ]
        if not differences and self.config.steps < state["step"]:
            raise CheckpointError(
                f"{self.checkpoint}: {state['step']:,} steps are done, but steps is now {self.config.steps:,}.",
                hint="Give more steps.",
            )
        if differences:
            raise CheckpointError(
                f"{self.checkpoint}: belongs to another run: {'; '.join(differences)}.",
                hint="Resume with the same settings and text, or choose another output folder.",
            )
