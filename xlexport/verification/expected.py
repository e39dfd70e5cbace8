"""The eager model's results for each segment of a text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch

__all__ = ["BEST", "LARGEST_TABLE", "Expected", "Ids", "expect"]

BEST = 64  # most probable tokens that the eager model keeps for each position; the detail graph lists fewer
LARGEST_TABLE = 1 << 22  # numbers in a table of log-probabilities

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Expected:
    """The eager model's results for consecutive tokens."""

    tokens: Ids  # (1, S)
    targets: Ids  # (1, S)
    log_prob: npt.NDArray[np.float32]  # (S,) of each target
    entropy: npt.NDArray[np.float32]  # (S,)
    best_ids: Ids  # (S, k), most probable first
    best_log_probs: npt.NDArray[np.float32]  # (S, k)
    ranks: Ids  # (2, S) lowest and highest rank of each target that are possible within tolerance
    last: npt.NDArray[np.float32] | None  # (n_token,) of every token, at the last position; None: not kept
    exact: npt.NDArray[np.float64] | None = None  # (S,) of each target, by the model in float64; None: not computed

    def part(self, start: int, stop: int) -> Expected:
        """Return the results for the positions from `start` to `stop`."""
        return Expected(
            self.tokens[:, start:stop],
            self.targets[:, start:stop],
            self.log_prob[start:stop],
            self.entropy[start:stop],
            self.best_ids[start:stop],
            self.best_log_probs[start:stop],
            self.ranks[:, start:stop],
            self.last if stop == len(self.log_prob) else None,
        )


def expect(eager: Any, hidden: torch.Tensor, tokens: Ids, targets: Ids, tolerance: float) -> Expected:
    """Reduce the eager model's distributions, a few positions at a time; all at once may be larger than the model.

    Args:
        hidden: (1, S, D), what the model returned for `tokens`.
        tolerance: how far log-probabilities may differ, in nats; it decides which ranks are accepted.
    """
    import torch

    n_token = eager.config.n_token
    own, entropy, best_ids, best_log_probs, ranks = [], [], [], [], []
    with torch.inference_mode():
        for places in torch.arange(hidden.shape[1]).split(max(1, LARGEST_TABLE // n_token)):
            log_probs = eager.all_log_probs(hidden[:, places])[0]  # (n, n_token)
            target = log_probs.gather(1, torch.from_numpy(targets)[0, places, None])  # (n, 1)
            own.append(target[:, 0])
            # Both the target and the token that it is compared with may differ within tolerance.
            slack = 2 * tolerance * target.abs().clamp(min=1)
            better = [(log_probs > target + slack).sum(dim=1) + 1, (log_probs > target - slack).sum(dim=1)]
            ranks.append(torch.stack(better))
            entropy.append(-(log_probs.exp() * log_probs).sum(dim=1))
            best = log_probs.topk(min(BEST, n_token), dim=1)
            best_ids.append(best.indices)
            best_log_probs.append(best.values)
    return Expected(
        tokens,
        targets,
        torch.cat(own).numpy(),
        torch.cat(entropy).numpy(),
        torch.cat(best_ids).numpy(),
        torch.cat(best_log_probs).numpy(),
        torch.cat(ranks, dim=1).numpy(),
        log_probs[-1].numpy().copy(),
    )
