"""Read a checkpoint of any format to continue its training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from xlexport.errors import CheckpointError, TrustError
from xlexport.families import description_of
from xlexport.model_names import load_source
from xlexport.tokenizer_choice import choose_tokenizer
from xltraining.architectures import architecture_names, architecture_of, config_from
from xltraining.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

    from xltraining.config_fields import ModelConfig
    from xltraining.data.token_shards import PreparedData

__all__ = ["initial_model"]


def initial_model(
    name: str, changes: Mapping[str, Any], data: PreparedData | None, report: Callable[[str], None]
) -> tuple[ModelConfig, dict[str, Tensor]]:
    """Return the configuration and the weights of the checkpoint that a name means, read as `convert` does.

    Args:
        changes: settings of the model; the weights must not depend on them.
        data: prepared data to train on, which must have the checkpoint's vocabulary; None: texts, read as bytes. A
            checkpoint that does not say what its tokens are is only compared by their number.
        report: called with each note about the checkpoint.

    Raises:
        CheckpointError: the checkpoint is damaged, `train` does not train its model, or changes or data do not fit. The
            message lists all problems.
        ConfigError: the changes contradict each other.
    """
    try:
        source = load_source(name)
        model = source.build_model()
        model = getattr(model, "module", model)  # an LSTM or Mamba of ours is inside a recurrent model
        architecture = architecture_of(getattr(model, "config", None))
    except (ConfigError, TrustError) as error:
        what = f"{name}: not a checkpoint of an architecture that `train` trains."
        raise CheckpointError(what, hint=f"Give one of {', '.join(architecture_names())}.") from error
    config: ModelConfig = model.config
    if config.NAME == "encoder-decoder":
        raise CheckpointError(f"{name}: an encoder-decoder.", hint="Give a model of texts; --init has no others.")
    fields = description_of(architecture).evaluation_fields
    free = (*fields.values(), "dropout", "dropatt")
    problems = [
        f"its weights decide {field} (only {', '.join(free)} may change)" for field in changes if field not in free
    ]
    problems += [f"it does not hold {fields[need]}; give it" for need in source.needs if fields[need] not in changes]
    n_token = 256 if data is None else data.n_token  # 256 bytes
    if config.n_token != n_token:
        problems.append(f"it has {config.n_token:,} tokens, but the training data has {n_token:,}")
    elif source.tokenizer not in (None, "none"):
        content = None if data is None else data.tokenizer_file()
        if choose_tokenizer(source).content != content:
            problems.append("its vocabulary is not that of the training data; xlexport prepare --tokenizer takes it")
    if problems:
        raise CheckpointError(f"{name}: {'; '.join(problems)}.")
    for note in source.notes:
        report(note)
    return config_from(architecture, {**config.to_dict(), **changes}), model.state_dict()
