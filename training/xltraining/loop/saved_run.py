"""The settings of a saved run: how to read them, and whether a checkpoint belongs to a run."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xltraining.architectures import architecture_of
from xltraining.checkpoint import Checkpoint, load_checkpoint
from xltraining.config_fields import ModelConfig
from xltraining.errors import RunFileError
from xltraining.messages import renamed
from xltraining.training_config import TrainingConfig

__all__ = ["CHECKPOINT_NAME", "RunSettings", "check_same_run", "saved_run", "state_of"]

if not TYPE_CHECKING:  # which would take any name
    __getattr__ = renamed(__name__, {"SavedRun": "RunSettings"})

CHECKPOINT_NAME = "checkpoint.pt"
# Among these, `steps` changes weights: the learning rate's schedule follows the new number from the resume on. So does
# `micro_batches` by rounding, and by other units that are dropped.
_FREE_TO_CHANGE = {
    *("device", "threads", "log_every", "eval_every", "checkpoint_every", "steps"),
    *("best", "compile", "micro_batches", "sharded", "swap_layers"),
}
# Settings of earlier versions; the model and its task say the same.
_FORMER = ("task", "word_length", "image_size")


@dataclass(frozen=True)
class RunSettings:
    """The settings with which an unfinished run was started."""

    model_config: ModelConfig
    training_config: TrainingConfig
    train_files: tuple[Path, ...]
    """Absolute paths; empty if the task reads none, or an earlier version wrote the checkpoint."""
    valid_files: tuple[Path, ...]


def saved_run(out_dir: Path) -> RunSettings:
    """Read the settings with which the run in a folder was started.

    Raises:
        RunFileError: the folder holds no run.
    """
    checkpoint = Path(out_dir) / CHECKPOINT_NAME
    saved = load_checkpoint(checkpoint)
    state = state_of(checkpoint, saved)
    files = {name: tuple(map(Path, paths)) for name, paths in state.get("files", {}).items()}
    config = TrainingConfig.from_dict({name: value for name, value in state["config"].items() if name not in _FORMER})
    return RunSettings(saved.config, config, files.get("train", ()), files.get("valid", ()))


def state_of(checkpoint: Path, saved: Checkpoint) -> dict[str, Any]:
    """Return the state of the run that a checkpoint holds.

    Raises:
        RunFileError: it holds weights only.
    """
    if saved.training is None:
        raise RunFileError(f"{checkpoint}: holds weights only, no run to resume.", hint="Choose another folder.")
    return saved.training


def check_same_run(
    checkpoint: Path,
    saved: Checkpoint,
    state: Mapping[str, Any],
    model_config: ModelConfig,
    config: TrainingConfig,
    text_sha256: str | None,
) -> None:
    """Check that a checkpoint belongs to the run with these settings and this text.

    Raises:
        RunFileError: it belongs to another run; the message lists every difference.
    """
    here: dict[str, Any] = {"architecture": architecture_of(model_config)}
    there: dict[str, Any] = {"architecture": architecture_of(saved.config)}
    if here == there:  # other architectures have other fields
        here |= vars(model_config)
        there |= vars(saved.config)
    here |= {**config.to_dict(), "training text": text_sha256}
    # A checkpoint from before a setting existed has its default.
    there |= {**TrainingConfig().to_dict(), **state["config"], "training text": state["text_sha256"]}
    differences = [
        f"{name} was {there.get(name)}, is now {here[name]}"
        for name in here
        if here[name] != there.get(name) and name not in _FREE_TO_CHANGE
    ]
    if not differences and config.steps < state["step"]:
        raise RunFileError(
            f"{checkpoint}: {state['step']:,} steps are done, but steps is now {config.steps:,}.",
            hint="Give more steps.",
        )
    if differences:
        raise RunFileError(
            f"{checkpoint}: belongs to another run: {'; '.join(differences)}.",
            hint="Resume with the same settings and text, or choose another output folder.",
        )
