"""Updates of a model by the rows of a batch, in groups, on one process or on several.

A batch of B rows is cut into `micro_batches` groups. A process computes its groups one after the other, and each group
carries its own memory. An update follows the mean gradient of all groups. With more than one group, dropout is seeded
by the number of the update and of the group, so it does not matter which process computes a group.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

from xltraining.data.tasks import Task
from xltraining.errors import ConfigError
from xltraining.language_model import LanguageModel
from xltraining.layers.seeds import mixed_seed
from xltraining.loop.fast_dropout import use_fast_dropout
from xltraining.loop.optimizers import learning_rate, make_optimizers
from xltraining.loop.processes import Processes, joined_rows, split_rows
from xltraining.messages import first_line
from xltraining.training_config import TrainingConfig
from xltraining.transformer_xl import TransformerXL

__all__ = ["Updates", "first_intermediate", "update_loss"]


def first_intermediate(config: TrainingConfig, n_layer: int, step: int) -> int | None:
    """Return the lowest layer (from 1) whose intermediate loss counts in an update (from 0), or None if none does.

    Layer l of n counts during the first l / 2n of the run, so after half of it only the last layer does (Al-Rfou et al.
    2018, arXiv:1808.04444, section 3.2).
    """
    if not config.auxiliary:
        return None
    counting = [layer for layer in range(1, n_layer) if step * 2 * n_layer < config.steps * layer]
    return min(counting, default=None)


def update_loss(
    model: LanguageModel,
    tokens: Tensor,
    targets: Tensor,
    memory: Any,
    half: bool = False,
    intermediate: int | None = None,
    smoothing: float = 0.0,
) -> tuple[Tensor, Tensor, Any]:
    """Run one segment.

    Args:
        tokens, targets: (B,S) int64; targets of -100 do not count.
        memory: memory of the segment before it, or None.
        half: count only the later half of the positions (section 4.2 of Dai et al. 2019): S // 2 of them are left out.
        intermediate: lowest layer (from 1) that also predicts, through the same output layer; None: only the last.
        smoothing: label smoothing of the loss to minimise.

    Returns:
        The loss to minimise, which is the sum over all predicting layers; the loss of the last layer alone, without
        gradient and smoothing; the new memory.
    """
    first = targets.shape[1] // 2 if half else 0
    targets = targets[:, first:]
    if intermediate is None:
        hidden, memory = model(tokens, memory)
        loss = model.loss(hidden[:, first:], targets, smoothing)
        return loss, _plain_loss(model, hidden[:, first:], targets) if smoothing else loss.detach(), memory
    assert isinstance(model, TransformerXL)
    outputs, memory = model.forward_layers(tokens, memory)
    *lower, last = (model.dropout(output)[:, first:] for output in outputs[intermediate - 1 :])
    own = model.loss(last, targets, smoothing)
    total = own
    for hidden in lower:
        total = total + model.loss(hidden, targets, smoothing)
    return total, _plain_loss(model, last, targets) if smoothing else own.detach(), memory


@torch.no_grad()
def _plain_loss(model: LanguageModel, hidden: Tensor, targets: Tensor) -> Tensor:
    return model.loss(hidden, targets)


class _GroupLoss(nn.Module):
    """A model and its loss as one module, because DDP and FSDP2 prepare gradients when a module is called."""

    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, tokens: Tensor, targets: Tensor, memory: Any, half: bool, intermediate: int | None, smoothing: float
    ) -> tuple[Tensor, Tensor, Any]:
        return update_loss(self.model, tokens, targets, memory, half, intermediate, smoothing)


class Updates:
    """The model, its optimizer and its memory; `do` makes one update."""

    def __init__(self, model: LanguageModel, config: TrainingConfig, processes: Processes) -> None:
        """Prepare a model for updates.

        Raises:
            ConfigError: the batch or the weights cannot be divided among the processes, the model has no auxiliary
                losses, or torch.compile does not work here.
        """
        self.model, self.config, self.processes = model, config, processes
        self._store = model.store
        self.sharded = config.sharded and processes.count > 1
        if self.sharded and "reversible" in model.config.RUN_SETTINGS:
            raise ConfigError(
                f"sharded gathers the weights of whole layers, but those of a {model.config.NAME} run in parts.",
                hint="Train without sharded.",
            )
        if config.auxiliary and not isinstance(model, TransformerXL):
            raise ConfigError(f"auxiliary losses are for Transformer-XL, found {type(model).__name__}.")
        self._divide(config.micro_batches or processes.count)
        self.device = next(model.parameters()).device
        if self.device.type == "cpu" and not config.compile:
            use_fast_dropout(model)
        on_gpu = self.device.type == "cuda"
        bf16 = config.bf16 if config.bf16 is not None else on_gpu and torch.cuda.is_bf16_supported()
        self._autocast: AbstractContextManager[Any] = (
            torch.autocast(self.device.type, torch.bfloat16) if bf16 else nullcontext()
        )
        loss: nn.Module = _GroupLoss(model)
        if self.sharded:
            from xltraining.loop.sharding import shard

            shard(loss, model, processes.count, self.device)
        if config.compile:
            _check_compiler(self.device)
            loss.compile()
        if processes.count > 1 and not self.sharded:
            devices = [self.device.index] if on_gpu else None
            loss = DistributedDataParallel(loss, device_ids=devices, forward_sync_buffers=False)
        self._loss = loss
        self.optimizers = make_optimizers(config, model.named_parameters())
        self._average = None if config.average_from is None else AveragedModel(model)

    def _divide(self, groups: int) -> None:
        """Divide the rows of a batch into groups, and these among the processes."""
        processes, rows = self.processes.count, self.config.batch_size
        if groups % processes or rows % groups:
            raise ConfigError(
                f"{processes} processes must divide micro_batches {groups}, which must divide batch_size {rows}."
            )
        self.groups, own = groups, groups // processes
        self._own = range(self.processes.rank * own, (self.processes.rank + 1) * own)
        self._memories: list[Any] = [None] * own

    def do(self, task: Task, step: int) -> Tensor:
        """Make the update of a step (from 0); return the mean loss of this process's groups in nats per target."""
        self.optimizers.set_learning_rate(learning_rate(self.config, step))
        self.optimizers.zero_grad()
        rows = self.config.batch_size // self.groups
        total = torch.zeros((), device=self.device, dtype=torch.float64)
        half = self.config.loss == "half"
        intermediate = first_intermediate(self.config, getattr(self.model.config, "n_layer", 1), step)
        for place, group in enumerate(self._own):
            if self.groups > 1:
                torch.manual_seed(mixed_seed(self.config.seed, step, group))
            part = slice(group * rows, (group + 1) * rows)
            tokens, targets = (each.to(self.device) for each in task.batch(step, part))
            memory = None
            if task.carries_memory:
                memory = self.model.memory_before(self._memories[place], tokens.shape[1])
            with self._exchanging(place == len(self._own) - 1):
                with self._autocast:
                    loss, own, self._memories[place] = self._loss(
                        tokens, targets, memory, half, intermediate, self.config.label_smoothing
                    )
                (loss / len(self._own)).backward()
            total += own.double() / len(self._own)
        if self._store is None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip)
            self.optimizers.step()
        else:
            self._store.update(self.model, self.optimizers.parts, self.config.clip)
        if self._average is not None and step + 1 > (self.config.average_from or 0) * self.config.steps:
            self._average.update_parameters(self.model)
        return total

    def release(self) -> None:
        """Release memory of layers that a store keeps, after other code has read their weights."""
        if self._store is not None:
            self._store.release()

    def _exchanging(self, last: bool) -> AbstractContextManager[Any]:
        """Let processes exchange gradients after the last group only."""
        if isinstance(self._loss, DistributedDataParallel):
            return nullcontext() if last else self._loss.no_sync()
        if self.sharded:
            cast(Any, self._loss).set_requires_gradient_sync(last)
        return nullcontext()

    @property
    def evaluated(self) -> LanguageModel:
        """The model to evaluate: the average of weights as soon as there is one."""
        average = self._average
        return self.model if average is None or not average.n_averaged else cast(LanguageModel, average.module)

    def averaging(self) -> dict[str, Any] | None:
        """Return the state of averaging, if it has begun: the weights that the run goes on with, and how many steps."""
        if self._average is None or not self._average.n_averaged:
            return None
        return {"weights": self.model.state_dict(), "averaged": int(self._average.n_averaged)}

    def plain_memory(self) -> Any:
        """Return the memory of all rows as plain values; only the first process gets it."""
        own = [self.model.plain_memory(memory) for memory in self._memories]
        every = [memory for memories in self.processes.gathered(own) for memory in memories]
        return joined_rows(every) if every and every[0] is not None else None

    def set_memory(self, plain: Any, groups: int) -> None:
        """Take the memory of all rows; each process keeps that of its groups.

        Args:
            groups: the groups of the run that had it. They are kept if the settings leave their number open and the
                processes divide it: then updates are the same as before.
        """
        if self.config.micro_batches is None and groups % self.processes.count == 0:
            self._divide(groups)
        every = split_rows(plain, self.groups)
        self._memories = [self.model.memory_from_plain(every[group], self.device) for group in self._own]

    def weights(self) -> dict[str, Tensor]:
        """Return the weights to save, whole: those of `evaluated`; every process must call this."""
        return cast(dict[str, Tensor], self._whole(self.evaluated.state_dict()))

    def optimizer_state(self) -> Any:
        """Return the optimizer's state, whole; every process must call this."""
        return self._whole(self.optimizers.state_dict())

    def _whole(self, state: Any) -> Any:
        if not self.sharded:
            return state
        from xltraining.loop.sharding import whole

        return whole(state)

    def load(self, weights: dict[str, Tensor], optimizer_state: Any, averaging: dict[str, Any] | None = None) -> None:
        """Take whole weights, the whole state of the optimizer, and the result of `averaging`."""
        if averaging is not None and self._average is not None:
            self._average.module.load_state_dict(weights)
            self._average.n_averaged.fill_(averaging["averaged"])
            weights = averaging["weights"]
        if not self.sharded:
            self.model.load_state_dict(weights)
            self.optimizers.load_state_dict(optimizer_state)
            if self._store is not None:
                self._store.keep_state(self.optimizers.parts)
            return
        from xltraining.loop.sharding import load_whole, shard_optimizer_state

        load_whole(self.model, weights)
        (optimizer,) = self.optimizers.parts
        optimizer.load_state_dict(shard_optimizer_state(optimizer, optimizer_state))


def _check_compiler(device: torch.device) -> None:
    """Compile a small function, so that a missing compiler is an error before a run begins."""
    try:
        torch.compile(lambda values: values + 1)(torch.zeros(64, device=device))
    except RuntimeError as error:
        raise ConfigError(
            f"torch.compile does not work on this machine ({first_line(error)}).",
            hint="Install a C++ compiler such as g++, or train without compile.",
        ) from error
