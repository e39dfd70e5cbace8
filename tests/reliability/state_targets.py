"""Damage saved streams, and change their content under a matching digest."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import safe_open

from tests.helpers.paths import GOLDEN
from tests.reliability.bundle_targets import CLOSE
from tests.reliability.damage import damage_array, damage_bytes
from tests.reliability.judging import Outcome, judged
from xlruntime import Model, XlruntimeError, load
from xlruntime.state import write_state

__all__ = ["StateBytes", "StateFields"]

NAMES = ("post_lnorm_same_length_empty", "pre_lnorm_same_length_zeros", "post_lnorm_zeros", "reformer_band")


class _State:
    """A saved stream, and its next scores."""

    def __init__(self, name: str, folder: Path) -> None:
        self.model: Model = load(GOLDEN / name / "bundle", threads=1)
        self.file = folder / f"{name}.safetensors"
        ids = np.random.default_rng(3).integers(0, self.model.bundle.vocab_size, 64)
        stream = self.model.stream()
        stream.feed(ids[:35])
        stream.save(self.file)
        self.content = self.file.read_bytes()
        self.following = ids[35:]
        self.expected = stream.feed(self.following).log_probs
        with safe_open(self.file, "numpy") as opened:
            self.metadata: dict[str, str] = opened.metadata()
            self.arrays = {key: opened.get_tensor(key) for key in opened.keys()}  # noqa: SIM118
        del self.metadata["digest"]

    def judge(self, file: Path, may_differ: bool) -> Outcome:
        def attempt() -> npt.NDArray[Any]:
            return self.model.restore(file).feed(self.following).log_probs

        def is_right(found: npt.NDArray[Any]) -> bool:
            return found.shape == self.expected.shape and bool((abs(found - self.expected) <= CLOSE).all())

        return judged(attempt, (XlruntimeError,), is_right, may_differ)


class _States:
    def __init__(self, folder: Path) -> None:
        self._file = folder / "state.safetensors"
        self._states = [_State(name, folder) for name in NAMES]


class StateBytes(_States):
    """A state with damaged bytes, or the state of another bundle."""

    def case(self, number: int) -> Outcome:
        rng = random.Random(f"state {number}")
        state, other = rng.choice(self._states), rng.choice(self._states)
        if rng.random() < 0.97:
            self._file.write_bytes(damage_bytes(state.content, rng, other.content))
        else:
            shutil.copyfile(other.file, self._file)
        return state.judge(self._file, may_differ=other is state)


class StateFields(_States):
    """A state with other counters, settings or tensors, and a new digest.

    Counters and numbers within range may belong to another document; then the scores may differ.
    """

    def case(self, number: int) -> Outcome:
        rng = random.Random(f"state fields {number}")
        state = rng.choice(self._states)
        metadata, arrays = dict(state.metadata), dict(state.arrays)
        if rng.random() < 0.75:
            name = rng.choice(sorted({*metadata} - {"kind", "version"}))
            metadata[name] = damage_bytes(metadata[name].encode(), rng, b"").decode("utf-8", "replace")
            if rng.random() < 0.1:
                del metadata[name]
        else:
            name = rng.choice(sorted(arrays))
            arrays[name] = damage_array(arrays[name], rng)
            if arrays[name].size == 0 and rng.random() < 0.5:
                del arrays[name]
        write_state(self._file, metadata, arrays)
        return state.judge(self._file, may_differ=True)
