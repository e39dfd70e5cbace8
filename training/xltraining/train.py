"""Train a Transformer-XL on bytes: Adam with warm-up and cosine decay, carried memory, exact resume.

The output folder gets `checkpoint.pt` (weights, and all that a resumed run needs) and `log.jsonl`, one object per line:
`step`, `bits_per_byte` (mean training loss since the line before), `learning_rate`, `tokens_per_second`, and
`valid_bits_per_byte` on the lines where the held-out text was evaluated.
"""

import hashlib
import json
import math
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

from xltraining.checkpoint import load_checkpoint, save_checkpoint
from xltraining.config import TransformerXLConfig
from xltraining.data import ByteStreams, read_bytes
from xltraining.errors import CheckpointError, CheckpointWriteError, ConfigError, DataError, TrainingDivergedError
from xltraining.transformer_xl import TransformerXL

__all__ = ["TrainingConfig", "TrainingResult", "evaluate", "learning_rate", "train"]

CHECKPOINT_NAME = "checkpoint.pt"
LOG_NAME = "log.jsonl"
_VALID_STREAMS = 8  # the held-out text is walked as so many streams, for speed
_FREE_TO_CHANGE = {"device", "threads", "log_every", "eval_every", "checkpoint_every"}  # none of them changes a weight


@dataclass(frozen=True)
class TrainingConfig:
    """How a model is trained.

    Raises:
        ConfigError: lists every value that is wrong.
    """

    steps: int = 10_000
    """Updates in all; the learning rate's schedule ends there. 0 writes a freshly initialised model."""
    batch_size: int = 16
    """Parallel streams."""
    learning_rate: float = 2e-3
    min_lr_ratio: float = 0.02
    """The learning rate at the end, as a part of the highest."""
    warmup_steps: int = 300
    betas: tuple[float, float] = (0.9, 0.99)
    weight_decay: float = 0.0
    clip: float = 1.0
    """Largest norm of the gradient."""
    seed: int = 0
    log_every: int = 50
    eval_every: int = 500
    checkpoint_every: int = 500
    device: str = "cpu"
    bf16: bool | None = None
    """bfloat16 autocast; None: on CUDA where the device can."""
    threads: int | None = None
    """CPU threads; None leaves PyTorch's choice."""

    def __post_init__(self) -> None:
        problems = [f"{name} must be 0 or more" for name in ("steps", "warmup_steps") if getattr(self, name) < 0]
        counts = ("batch_size", "log_every", "eval_every", "checkpoint_every")
        problems += [f"{name} must be at least 1" for name in counts if getattr(self, name) < 1]
        problems += [f"{name} must be above 0" for name in ("learning_rate", "clip") if not getattr(self, name) > 0]
        if not 0 <= self.min_lr_ratio <= 1:
            problems.append("min_lr_ratio must be between 0 and 1")
        if not all(0 <= beta < 1 for beta in self.betas):
            problems.append("betas must be in [0, 1)")
        if self.weight_decay < 0:
            problems.append("weight_decay must be 0 or more")
        if self.threads is not None and self.threads < 1:
            problems.append("threads must be at least 1")
        if self.device.partition(":")[0] not in ("cpu", "cuda"):
            problems.append(f"device must be cpu, cuda or cuda:N, found {self.device!r}")
        elif self.device.startswith("cuda") and not torch.cuda.is_available():
            problems.append(f"device {self.device} is not available: install a CUDA build of PyTorch or use cpu")
        if problems:
            raise ConfigError("invalid training configuration: " + "; ".join(problems))


@dataclass(frozen=True)
class TrainingResult:
    """How a run ended."""

    step: int
    """Updates done, those before a resume included."""
    train_bits_per_byte: float | None
    """Of the last line of the log."""
    valid_bits_per_byte: float | None
    """Of the last evaluation."""
    interrupted: bool
    checkpoint: Path


def learning_rate(config: TrainingConfig, step: int) -> float:
    """Learning rate of an update (from 0): a linear warm-up, then a cosine down to `min_lr_ratio` of the highest."""
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    progress = (step - config.warmup_steps) / max(1, config.steps - config.warmup_steps)
    cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
    return config.learning_rate * (config.min_lr_ratio + (1 - config.min_lr_ratio) * cosine)


@torch.no_grad()
def evaluate(model: TransformerXL, text: Tensor, segment_len: int, batch_size: int = 1) -> float:
    """Bits per byte of a text (N,) uint8, walked with carried memory as `batch_size` streams of equal length.

    The first byte of each stream is not scored, nor are the fewer than `batch_size` bytes that are left over. The model
    is put into evaluation mode for the time being.

    Raises:
        DataError: the text has fewer than two bytes for each stream.
    """
    rows = text[: len(text) // batch_size * batch_size].view(batch_size, -1)  # (B,N/B)
    rows = rows.to(next(model.parameters()).device).long()
    scored = rows.shape[1] - 1
    if scored < 1:
        raise DataError(f"the text has {len(text)} bytes; {batch_size} streams need at least 2 bytes each")
    was_training = model.training
    model.eval()
    nats, memory = 0.0, None
    for start in range(0, scored, segment_len):
        end = min(start + segment_len, scored)
        hidden, memory = model(rows[:, start:end], memory)
        nats -= model.log_probs(hidden, rows[:, start + 1 : end + 1]).double().sum().item()
    model.train(was_training)
    return nats / math.log(2) / (batch_size * scored)


def train(
    model_config: TransformerXLConfig,
    training_config: TrainingConfig,
    train_files: Sequence[Path],
    valid_files: Sequence[Path],
    out_dir: Path,
    *,
    resume: bool = False,
    report: Callable[[str], None] | None = None,
    on_step: Callable[[int], None] = lambda step: None,
) -> TrainingResult:
    """Train a model, or go on with a run that was stopped.

    On a CPU a run that was stopped and resumed has the losses of an unbroken one, bit for bit.
    Ctrl-C (in the main thread) finishes the update, writes the checkpoint and returns; a second one stops at once.

    Args:
        model_config: the model; segments are `tgt_len` tokens long.
        training_config: how it is trained.
        train_files: text files, read as bytes, one after the other.
        valid_files: held-out text; may be empty.
        out_dir: made if missing; nothing is written elsewhere.
        resume: go on from the checkpoint in `out_dir`.
        report: is given one line of text at each evaluation and at the end; None prints it to stderr.
        on_step: is given the number of updates done, after each.

    Raises:
        ConfigError, DataError: the configuration or the text does not do; nothing was written.
        CheckpointError: `out_dir` holds a checkpoint and `resume` is false, or it does not belong to this run.
        CheckpointWriteError: a checkpoint could not be written.
        TrainingDivergedError: the loss or a weight is not finite any more; the last checkpoint stands.
    """
    report = report or _print_beside_bar
    checkpoint = Path(out_dir) / CHECKPOINT_NAME
    if checkpoint.exists() and (not resume or training_config.steps == 0):  # fresh weights replace nothing
        raise CheckpointError(f"{checkpoint}: a checkpoint stands there; resume that run or choose another folder")
    devices = [training_config.device] if training_config.device.startswith("cuda") else []
    with torch.random.fork_rng(devices), _threads(training_config.threads):
        torch.manual_seed(training_config.seed)
        if training_config.steps == 0:
            save_checkpoint(checkpoint, model_config, TransformerXL(model_config).state_dict())
            report(f"wrote {checkpoint} with fresh weights")
            return TrainingResult(0, None, None, False, checkpoint)
        run = _Run(model_config, training_config, read_bytes(train_files), read_bytes(valid_files), Path(out_dir))
        if resume:
            run.restore()
            report(f"resuming {checkpoint} at step {run.step:,}")
        return run.go(report, on_step)


class _Run:
    """A training run: the model and everything that changes from update to update."""

    def __init__(
        self, model_config: TransformerXLConfig, config: TrainingConfig, text: Tensor, valid_text: Tensor, out_dir: Path
    ) -> None:
        self.config, self.valid_text, self.out_dir = config, valid_text, out_dir
        if len(valid_text) == 1:
            raise DataError("the held-out text is one byte long; give at least two, or none")
        self.text_sha256 = hashlib.sha256(text.numpy().tobytes()).hexdigest()
        self.streams = ByteStreams(text, config.batch_size, model_config.tgt_len, config.seed)
        self.device = torch.device(config.device)
        self.bf16 = config.bf16
        if self.bf16 is None:
            self.bf16 = self.device.type == "cuda" and torch.cuda.is_bf16_supported()
        self.model = TransformerXL(model_config).to(self.device).train()
        self.optimizer = torch.optim.Adam(
            self.model.parameters(), config.learning_rate, config.betas, weight_decay=config.weight_decay, fused=True
        )
        self.memory = self.model.first_memory(config.batch_size)
        self.step = 0
        self.loss_sum = torch.zeros((), device=self.device)  # nats per byte, since the last line of the log
        self.loss_count = 0
        self.last: dict[str, Any] = {}

    @property
    def checkpoint(self) -> Path:
        return self.out_dir / CHECKPOINT_NAME

    def go(self, report: Callable[[str], None], on_step: Callable[[int], None]) -> TrainingResult:
        """Train to the end or to Ctrl-C."""
        config = self.config
        try:
            self.out_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CheckpointWriteError(
                f"{self.out_dir}: the output folder cannot be made ({error.strerror}); choose another place"
            ) from error
        bar = tqdm(total=config.steps, initial=self.step, unit="step", disable=None, dynamic_ncols=True)  # on stderr
        with bar, _interruptible() as interrupt, (self.out_dir / LOG_NAME).open("a", encoding="utf-8") as log:
            since, logged_step = time.perf_counter(), self.step
            while self.step < config.steps and not interrupt.is_set():
                self._update()
                bar.update()
                last = self.step == config.steps
                evaluating = len(self.valid_text) > 0 and (last or self.step % config.eval_every == 0)
                if last or evaluating or self.step % config.log_every == 0:
                    line = self._log_line((self.step - logged_step) / (time.perf_counter() - since), evaluating)
                    log.write(json.dumps(line) + "\n")
                    log.flush()
                    bits, speed = line["bits_per_byte"], line["tokens_per_second"]
                    bar.set_postfix_str(f"{bits:.3f} bits/byte, {speed:,.0f} tokens/s")
                    if evaluating:
                        report(f"step {self.step:,}: {bits:.4f} bits/byte, held out {line['valid_bits_per_byte']:.4f}")
                    since, logged_step = time.perf_counter(), self.step
                if self.step % config.checkpoint_every == 0:
                    self.save()
                on_step(self.step)
            self.save()
            stopped = interrupt.is_set() and self.step < config.steps
        ended = "stopped" if stopped else "finished"
        report(f"{ended} at step {self.step:,} of {config.steps:,}; wrote {self.checkpoint}")
        return TrainingResult(
            self.step, self.last.get("bits_per_byte"), self.last.get("valid_bits_per_byte"), stopped, self.checkpoint
        )

    def _update(self) -> None:
        tokens, targets = (part.to(self.device) for part in self.streams.batch(self.step))
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.config, self.step)
        autocast: AbstractContextManager[Any] = (
            torch.autocast(self.device.type, torch.bfloat16) if self.bf16 else nullcontext()
        )
        with autocast:
            hidden, self.memory = self.model(tokens, self.memory)
            logits = self.model.logits(hidden)
        loss = F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
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
            "bits_per_byte": bits,
            "learning_rate": learning_rate(self.config, self.step - 1),
            "tokens_per_second": steps_per_second * self.config.batch_size * self.streams.segment_len,
        }
        if evaluating:
            streams = min(_VALID_STREAMS, len(self.valid_text) // 2)
            line["valid_bits_per_byte"] = evaluate(self.model, self.valid_text, self.streams.segment_len, streams)
        self.last |= line
        return line

    def _diverged(self, what: str) -> TrainingDivergedError:
        return TrainingDivergedError(
            f"{what} at step {self.step}: lower the learning rate or the clipping norm, and start anew; "
            f"no checkpoint was written for this step in {self.out_dir}"
        )

    def save(self) -> None:
        """Write the checkpoint with all that `restore` needs; weights that are not finite never replace it."""
        if not all(parameter.isfinite().all() for parameter in self.model.parameters()):
            raise self._diverged("some weights are not finite")
        on_cuda = self.device.type == "cuda"
        training = {
            "config": _plain(self.config),
            "text_sha256": self.text_sha256,
            "step": self.step,
            "optimizer": self.optimizer.state_dict(),
            "memory": [layer.clone() for layer in self.memory],  # the layers themselves are views of longer tensors
            "random_state": torch.get_rng_state(),
            "cuda_random_state": torch.cuda.get_rng_state(self.device) if on_cuda else None,
            "loss_sum": self.loss_sum,
            "loss_count": self.loss_count,
        }
        save_checkpoint(self.checkpoint, self.model.config, self.model.state_dict(), training=training)

    def restore(self) -> None:
        """Take up the run whose checkpoint stands in the output folder; drop the log's lines that came after it."""
        saved = load_checkpoint(self.checkpoint)
        state = saved.training
        if state is None:
            raise CheckpointError(f"{self.checkpoint}: holds weights only, no run to resume; choose another folder")
        here = {**self.model.config.to_dict(), **_plain(self.config), "training text": self.text_sha256}
        there = {**saved.config.to_dict(), **state["config"], "training text": state["text_sha256"]}
        differences = [
            f"{name} was {there.get(name)}, is now {here[name]}"
            for name in here
            if here[name] != there.get(name) and name not in _FREE_TO_CHANGE
        ]
        if differences:
            raise CheckpointError(
                f"{self.checkpoint}: belongs to another run: {'; '.join(differences)}. "
                "Resume with the same settings and text, or choose another output folder."
            )
        self.model.load_state_dict(saved.state_dict)
        self.optimizer.load_state_dict(state["optimizer"])
        self.memory = [layer.to(self.device) for layer in state["memory"]]
        self.step, self.loss_count = state["step"], state["loss_count"]
        self.loss_sum = state["loss_sum"].to(self.device)
        torch.set_rng_state(state["random_state"])
        if self.device.type == "cuda" and state["cuda_random_state"] is not None:
            torch.cuda.set_rng_state(state["cuda_random_state"], self.device)
        log = self.out_dir / LOG_NAME
        if log.exists():
            lines = [line for line in log.read_text(encoding="utf-8").splitlines() if line.endswith("}")]
            kept = [line for line in lines if json.loads(line)["step"] <= self.step]
            log.write_text("".join(line + "\n" for line in kept), encoding="utf-8")
            for line in kept:
                self.last |= json.loads(line)


def _print_beside_bar(line: str) -> None:
    tqdm.write(line, file=sys.stderr)


def _plain(config: TrainingConfig) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(config).items()}


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
    """An event that the first Ctrl-C sets; the second raises KeyboardInterrupt. Only the main thread can catch it."""
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
