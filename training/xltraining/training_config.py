"""Settings of training, validated as a whole."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from xltraining.config_fields import PlainFields, setting

__all__ = ["TrainingConfig"]


@dataclass(frozen=True)
class TrainingConfig(PlainFields):
    """Settings of training.

    Raises:
        ConfigError: values are invalid. The message lists all of them.
    """

    NAME: ClassVar[str] = "training"

    steps: int = setting(10_000, "Updates in all; 0: an untrained model.", minimum=0, common=True)
    """Also the end of the learning rate's schedule."""
    batch_size: int = setting(16, "Streams, or examples, of one update.", minimum=1, common=True)
    micro_batches: int | None = setting(
        None,
        "Groups of streams to compute one after the other, which saves memory.  [default: one for each process]",
        minimum=1,
    )
    """Dropout depends on them, so runs with equal groups have equal updates, on any number of processes."""
    shuffle: bool = setting(False, "Read the documents of prepared data in random order.")
    optimizer: Literal["adam", "adamw", "adafactor", "muon"] = setting(
        "adam",
        "Optimizer; adafactor keeps little state, muon updates matrices and leaves the rest to AdamW.",
    )
    learning_rate: float = setting(2e-3, "Highest learning rate.", above=0, common=True)
    schedule: Literal["cosine", "inverse_sqrt", "constant"] = setting(
        "cosine", "Course of the learning rate after the warm-up."
    )
    """A cosine to the end, 1 / root of the update's number, or constant."""
    min_lr_ratio: float = setting(0.02, "Learning rate at the end, as a fraction of the highest.", minimum=0, maximum=1)
    """For schedules other than the cosine, no rate is lower."""
    warmup_steps: int = setting(300, "Updates until the learning rate is highest.", minimum=0)
    betas: tuple[float, float] = setting((0.9, 0.99), minimum=0, below=1)
    """Adam's decay rates of the first and second moments."""
    weight_decay: float = setting(0.0, "Strength of the weight decay.", minimum=0)
    clip: float = setting(1.0, "Largest norm of the gradient; larger gradients are scaled down.", above=0)
    loss: Literal["full", "half"] = setting(
        "full", "Positions of a segment that the loss counts: all, or the later half."
    )
    """See Dai et al. 2019, section 4.2."""
    label_smoothing: float = setting(
        0.0, "Share of the loss that all tokens have as targets alike, such as 0.1.", minimum=0, below=1
    )
    """Vaswani et al. 2017, section 5.4. Only gradients depend on it; logs and evaluations have the plain loss."""
    auxiliary: bool = setting(False, "Let intermediate layers predict, too, during the first half of the run.")
    """Layer l of n predicts during the first l / 2n of the run (Al-Rfou et al. 2018, arXiv:1808.04444)."""
    average_from: float | None = setting(
        None,
        "Share of the steps after which to average weights, such as 0.6.  [default: no average]",
        minimum=0,
        below=1,
    )
    """All with equal weight (Polyak and Juditsky 1992; Merity et al. 2017, arXiv:1708.02182). Evaluations and
    checkpoints use the average."""
    seed: int = setting(0, "Seed of the weights and of dropout.", common=True)
    log_every: int = setting(50, "Updates between two lines of log.jsonl.", minimum=1)
    eval_every: int = setting(500, "Updates between two evaluations.", minimum=1)
    checkpoint_every: int = setting(500, "Updates between two checkpoints.", minimum=1)
    best: bool = setting(False, "Save the weights with the best held-out score in best.pt.")
    device: str = setting("cpu", "Device: cpu, cuda or cuda:N.", common=True)
    bf16: bool | None = setting(None, "Compute in bfloat16 (autocast).  [default: on CUDA devices that support it]")
    compile: bool = setting(False, "Compile the model with torch.compile first.")
    sharded: bool = setting(False, "Divide the weights among processes (FSDP2) instead of copying them (DDP).")
    threads: int | None = setting(None, "CPU threads.  [default: all cores]", minimum=1, common=True)
    reversible: bool = setting(
        True, "Let reversible layers recompute activations in the backward pass, which saves memory."
    )
    """An update takes longer."""
    swap_layers: bool = setting(
        False, "Keep layers in a mapped file, or for a GPU in the host's memory, while others compute."
    )

    def contradictions(self) -> Iterator[str]:
        """Yield the problems of values that do not go together, or have rules of their own."""
        if self.micro_batches is not None and self.batch_size % max(self.micro_batches, 1):
            yield f"micro_batches must divide batch_size {self.batch_size}, found {self.micro_batches}"
        if self.sharded and self.average_from is not None:
            yield "average_from needs whole weights, but sharded divides them"
        if self.sharded and self.optimizer not in ("adam", "adamw"):
            yield f"sharded needs the optimizer adam or adamw, found {self.optimizer}"
        unfit = {"reversible": not self.reversible, "compile": self.compile, "sharded": self.sharded}
        unfit["average_from"] = self.average_from is not None
        if self.swap_layers and any(unfit.values()):
            yield f"swap_layers needs other values of {', '.join(name for name, wrong in unfit.items() if wrong)}"
        if self.device.partition(":")[0] not in ("cpu", "cuda"):
            yield f"device must be cpu, cuda or cuda:N, found {self.device!r}"
        elif self.device.startswith("cuda"):
            import torch

            if not torch.cuda.is_available():
                yield f"device {self.device} is not available: install a CUDA build of PyTorch or use cpu"
