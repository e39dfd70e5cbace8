"""Continue documents where each is one step: nothing is carried, so every token costs a step over all before it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from .documents import Ids, check_length, encode
from .errors import OptionError, TextError, XlruntimeError
from .generation import Sampling
from .spec import Evaluation

if TYPE_CHECKING:
    from .model import Model

__all__ = ["generate_whole"]


def generate_whole(
    model: Model,
    evaluation: Evaluation,
    prompt: str | bytes | npt.NDArray[np.int64] | list[int],
    max_tokens: int,
    sampling: Sampling,
) -> Iterator[int]:
    """Continue `prompt`: yields token ids as they are drawn.

    Raises:
        OptionError, TextError: as `Model.generate`.
    """
    if max_tokens < 0:
        raise OptionError(f"max_tokens is {max_tokens}, at least 0 is needed.")
    ids = encode(prompt, model.tokenizer, model.bundle.vocab_size, "the prompt")
    if not len(ids):
        raise TextError("nothing to continue: the prompt is empty. Give a prompt.")
    check_length(len(ids) + max_tokens, evaluation, f"the prompt and {max_tokens:,} tokens after it")
    return _generate(model, evaluation, ids, max_tokens, sampling)


def _generate(model: Model, evaluation: Evaluation, ids: Ids, max_tokens: int, sampling: Sampling) -> Iterator[int]:
    assert evaluation.longest_part is not None
    memory = model.new_memory(evaluation)
    rng = sampling.rng()
    for _ in range(max_tokens):
        part = ids[(len(ids) - 1) // evaluation.longest_part * evaluation.longest_part :]
        memory.restart(0)
        logits = model.step("generate", memory, part[None], part[None])["logits"][0]  # any target will do
        if not np.isfinite(logits).all():
            raise XlruntimeError("the model gave logits that are not finite, so generation stops. Give another prompt.")
        ids = np.append(ids, sampling.draw(logits, rng))
        yield int(ids[-1])
