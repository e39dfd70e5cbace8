"""Compare steps that CUDA captured and replays with plain runs of the same steps on the same device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.gpu.bundles import TEXT_MODEL, bundle_of
from tests.gpu.parts import PartError, Record, Settings
from xlruntime import Model, load
from xlruntime.memory import Memory

__all__ = ["captured_against_plain"]

BATCHES, TINY_BATCHES = (1, 8), (1, 3)
STEPS, TINY_STEPS = 200, 24
RESTART = 9  # the step before which a row begins a new document
SPELL = 3  # steps of one memory before the other memory's turn
RESULTS = {"score": "log_prob", "generate": "logits"}
# As in `tests/export/test_cuda_graphs.py`: if all sizes are known, ONNX Runtime folds and fuses more, so sums round
# otherwise.
WITHIN = 1e-4


def captured_against_plain(settings: Settings, record: Record) -> None:
    """Step two memories in turns, for each purpose and batch size; one row restarts on the way.

    On a CPU the same steps run in sessions of fixed sizes, and nothing is captured.

    Raises:
        PartError: results differ, or a repeated shape did not get its own session.
    """
    folder = bundle_of(settings, TEXT_MODEL)
    plain = load(folder, device=settings.device)
    captured = load(folder, device=settings.device, cuda_graphs=settings.on_cuda)
    if not settings.on_cuda:
        captured.use_fixed()
    steps = TINY_STEPS if settings.tiny else STEPS
    largest: dict[str, float] = {}
    for purpose in RESULTS:
        for batch_size in TINY_BATCHES if settings.tiny else BATCHES:
            case = f"{purpose}, batch {batch_size}"
            pairs = zip(
                _walk(captured, purpose, batch_size, steps), _walk(plain, purpose, batch_size, steps), strict=True
            )
            largest[case] = max(float(np.abs(found - wanted).max()) for found, wanted in pairs)
            record({"largest_difference": largest, "steps": steps})
            if not largest[case] <= WITHIN:
                raise PartError(f"{case}: captured steps differ by {largest[case]:.1e} from plain ones")
    fixed = captured._fixed
    assert fixed is not None
    sessions = {key: len(session._captures) for key, session in fixed._open.items()}
    record({"sessions": len(sessions), "captures": sum(sessions.values())})
    if len(sessions) != len(largest) or any(walks < 1 for walks in sessions.values()):
        raise PartError(f"{len(largest)} shapes were repeated, but {len(sessions)} have their own sessions")


def _walk(model: Model, purpose: str, batch_size: int, steps: int) -> Sequence[npt.NDArray[Any]]:
    """Return the results of all steps; two memories take turns, each on its own text."""
    evaluation = model.evaluation()
    S = evaluation.segment_len
    assert S is not None
    memories = [model.new_memory(evaluation, batch_size) for _ in range(2)]
    random = np.random.default_rng(0)
    found = []
    for number in range(steps):
        memory: Memory = memories[number // SPELL % 2]
        if number == RESTART:
            memory.restart(batch_size - 1)
        tokens, targets = random.integers(0, model.bundle.vocab_size, (2, batch_size, S))
        found.append(model.step(purpose, memory, tokens, targets)[RESULTS[purpose]])
    return found
