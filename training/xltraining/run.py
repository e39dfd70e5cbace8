"""A training run: updates, the lines of its log, and the state from which it resumes exactly."""

import json
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from xltraining import atomic_output
from xltraining.architectures import architecture_of, new_model
from xltraining.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from xltraining.errors import CheckpointError, CheckpointWriteError, TrainingDivergedError
from xltraining.language_model import ModelConfig
from xltraining.optimizers import make_optimizer
from xltraining.tasks import Task
from xltraining.training_config import TrainingConfig, learning_rate

__all__ = ["CHECKPOINT_NAME", "LOG_NAME", "SavedRun", "TrainingResult", "TrainingRun", "saved_run"]

CHECKPOINT_NAME = "checkpoint.pt"
LOG_NAME = "log.jsonl"
# Only `steps` among these changes weights: the learning rate's schedule follows the new number from the resume on.
_FREE_TO_CHANGE = {"device", "threads", "log_every", "eval_every", "checkpoint_every", "steps"}


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
        raise CheckpointError(f"{checkpoint}: holds weights only, no run to resume.", repair="Choose another folder.")
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
    ) -> None:
        """Make a fresh model and its optimizer.

        Args:
            files: paths of the task's texts, as `train` and `valid`; the checkpoint stores them for a later resume.
        """
        self.config, self.task, self.out_dir = config, task, out_dir
        self.files = {name: [str(path.absolute()) for path in paths] for name, paths in files.items()}
        self.device = torch.device(config.device)
        self.bf16 = config.bf16
        if self.bf16 is None:
            self.bf16 = self.device.type == "cuda" and torch.cuda.is_bf16_supported()
        self.model = new_model(model_config).to(self.device).train()
        self.model.prepare_training(config)
        self.optimizer = make_optimizer(config, self.model.parameters())
        self.memory: Any = None
        self.step = 0
        self.loss_sum = torch.zeros((), device=self.device)  # nats per target, since the last line of the log
        self.loss_count = 0
        self.last: dict[str, Any] = {}

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
    ) -> TrainingResult:
        """Train to the end, or until `interrupt` is set; then finish the current update and save."""
        config, unit = self.config, self.task.unit
        try:
            self.out_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CheckpointWriteError(
                f"{self.out_dir}: the output folder cannot be made ({error.strerror}).", repair="Choose another place."
            ) from error
        hidden = None if show_bar else True  # None: unless stderr is a terminal
        bar = tqdm(total=config.steps, initial=self.step, unit="step", disable=hidden, dynamic_ncols=True)  # on stderr
        # A new run starts a new log, even if a run that was killed before its first checkpoint left one.
        with bar, (self.out_dir / LOG_NAME).open("a" if self.step else "w", encoding="utf-8") as log:
            since, logged_step = time.perf_counter(), self.step
            while self.step < config.steps and not interrupt.is_set():
                self._update()
                bar.update()
                last = self.step == config.steps
                evaluating = self.task.held_out and (last or self.step % config.eval_every == 0)
                if last or evaluating or self.step % config.log_every == 0:
                    line = self._log_line((self.step - logged_step) / (time.perf_counter() - since), evaluating)
                    log.write(json.dumps(line) + "\n")
                    log.flush()
                    bits, speed = self._train_bits, line["tokens_per_second"]
                    bar.set_postfix_str(f"{bits:.3f} bits/{unit}, {speed:,.0f} tokens/s")
                    if evaluating:
                        report(f"step {self.step:,}: {self._shown_scores()}")
                    since, logged_step = time.perf_counter(), self.step
                if self.step % config.checkpoint_every == 0:
                    self.save()
                on_step(self.step)
            self.save()
            stopped = interrupt.is_set() and self.step < config.steps
        ended = "stopped" if stopped else "finished"
        report(f"{ended} at step {self.step:,} of {config.steps:,}; wrote {self.checkpoint}")
        return TrainingResult(
            self.step, self._train_bits, self.last.get(f"valid_bits_per_{unit}"), stopped, self.checkpoint
        )

    def _update(self) -> None:
        tokens, targets = (part.to(self.device) for part in self.task.batch(self.step))
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.config, self.step)
        memory = self.model.memory_before(self.memory, tokens.shape[1]) if self.task.carries_memory else None
        autocast: AbstractContextManager[Any] = (
            torch.autocast(self.device.type, torch.bfloat16) if self.bf16 else nullcontext()
        )
        with autocast:
            hidden, self.memory = self.model(tokens, memory)
            loss = self.model.loss(hidden, targets)
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip)
        self.optimizer.step()
        self.loss_sum += loss.detach()
        self.loss_count += 1
        self.step += 1

    def _log_line(self, steps_per_second: float, evaluating: bool) -> dict[str, Any]:
        bits = self.loss_sum.item() / self.loss_count / math.log(2)
        if not math.isfinite(bits):
            raise self._diverged(f"the loss is {bits}")
        self.loss_sum.zero_()
        self.loss_count = 0
        line = {
            "step": self.step,
            f"bits_per_{self.task.unit}": bits,
            "learning_rate": learning_rate(self.config, self.step - 1),
            "tokens_per_second": steps_per_second * self.config.batch_size * self.task.segment_len,
        }
        if evaluating:
            line |= self.task.evaluate(self.model)
        self.last |= line
        return line

    @property
    def _train_bits(self) -> float | None:
        return self.last.get(f"bits_per_{self.task.unit}")

    def _shown_scores(self) -> str:
        unit = self.task.unit
        shown = f"{self._train_bits:.4f} bits/{unit}, held out {self.last[f'valid_bits_per_{unit}']:.4f}"
        accuracy = self.last.get("valid_accuracy")
        return shown if accuracy is None else f"{shown}, {accuracy:.1%} right"

    def _diverged(self, what: str) -> TrainingDivergedError:
        return TrainingDivergedError(
            f"{what} at step {self.step}; no checkpoint was written for this step in {self.out_dir}.",
            repair="Lower the learning rate or the clipping norm, and start again.",
        )

    def save(self) -> None:
        """Write the checkpoint with all state for `restore`; weights that are not finite never replace it."""
        if not all(parameter.isfinite().all() for parameter in self.model.parameters()):
            raise self._diverged("some weights are not finite")
        on_cuda = self.device.type == "cuda"
        training = {
            "config": self.config.to_dict(),
            "files": self.files,
            "text_sha256": self.task.text_sha256,
            "step": self.step,
            "optimizer": self.optimizer.state_dict(),
            "memory": self.model.plain_memory(self.memory) if self.task.carries_memory else None,
            "random_state": torch.get_rng_state(),
            "cuda_random_state": torch.cuda.get_rng_state(self.device) if on_cuda else None,
            "loss_sum": self.loss_sum,
            "loss_count": self.loss_count,
        }
        save_checkpoint(
            self.checkpoint,
            self.model.config,
            self.model.state_dict(),
            training=training,
            tokenizer=self.task.tokenizer,
        )

    def restore(self) -> None:
        """Resume the run whose checkpoint is in the output folder; drop the log's lines after the checkpoint.

        Raises:
            CheckpointError: the folder has no checkpoint, or that of another run. The message lists every difference.
        """
        saved = load_checkpoint(self.checkpoint)
        state = _state_of(self.checkpoint, saved)
        self._check_same_run(saved.config, state)
        self.model.load_state_dict(saved.state_dict)
        self.optimizer.load_state_dict(state["optimizer"])
        self.memory = self.model.memory_from_plain(state["memory"], self.device)
        self.step, self.loss_count = state["step"], state["loss_count"]
        self.loss_sum = state["loss_sum"].to(self.device)
        torch.set_rng_state(state["random_state"])
        if self.device.type == "cuda" and state["cuda_random_state"] is not None:
            torch.cuda.set_rng_state(state["cuda_random_state"], self.device)
        log = self.out_dir / LOG_NAME
        if log.exists():
            lines = [line for line in log.read_text(encoding="utf-8").splitlines() if line.endswith("}")]
            kept = [line for line in lines if json.loads(line)["step"] <= self.step]
            with atomic_output.file(log) as temporary:
                temporary.write_text("".join(line + "\n" for line in kept), encoding="utf-8")
            for line in kept:
                self.last |= json.loads(line)

    def _check_same_run(self, model_config: ModelConfig, state: dict[str, Any]) -> None:
        here: dict[str, Any] = {"architecture": architecture_of(self.model.config)}
        there: dict[str, Any] = {"architecture": architecture_of(model_config)}
        if here == there:  # other architectures have other fields
            here |= self.model.config.to_dict()
            there |= model_config.to_dict()
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
                repair="Give more steps.",
            )
        if differences:
            raise CheckpointError(
                f"{self.checkpoint}: belongs to another run: {'; '.join(differences)}.",
                repair="Resume with the same settings and text, or choose another output folder.",
            )
