"""Text in segments, and what the eager model says of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch

__all__ = ["BEST", "LARGEST_TABLE", "Expected", "Ids", "expect"]

BEST = 64  # likeliest tokens that the eager model keeps of each position; the detail graph lists fewer
LARGEST_TABLE = 1 << 22  # numbers in a table of log-probabilities

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Expected:
    """What the eager model says of consecutive tokens."""

    tokens: Ids  # (1, S)
    targets: Ids  # (1, S)
    log_prob: npt.NDArray[np.float32]  # (S,) of each target
    entropy: npt.NDArray[np.float32]  # (S,)
    best_ids: Ids  # (S, k), likeliest first
    best_log_probs: npt.NDArray[np.float32]  # (S, k)
    ranks: Ids  # (2, S) lowest and highest rank of each target that differences within tolerance can give
    last: npt.NDArray[np.float32] | None  # (n_token,) of every token, at the last position; None: not kept

    def part(self, start: int, stop: int) -> Expected:
        """Of some of the positions."""
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
    """Reduce the eager model's distributions, a few positions at a time: all may be more than the model itself.

    Args:
        hidden: (1, S, D), what the model returned for `tokens`.
        tolerance: how far log-probabilities may differ, in nats; ranks that it allows are all right.
    """
    import torch

    n_token = eager.config.n_token
    own, entropy, best_ids, best_log_probs, ranks = [], [], [], [], []
    with torch.inference_mode():
        for places in torch.arange(hidden.shape[1]).split(max(1, LARGEST_TABLE // n_token)):
            log_probs = eager.all_log_probs(hidden[:, places])[0]  # (n, n_token)
            target = log_probs.gather(1, torch.from_numpy(targets)[0, places, None])  # (n, 1)
            own.append(target[:, 0])
            # The target may differ within tolerance, and so may the token that it is compared with.
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
