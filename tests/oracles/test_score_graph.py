"""The score graph of an adaptive softmax: it computes each target's score in the right place, and nothing more."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
import pytest
import torch

import xlruntime
from tests.helpers.export_cache import cached_exports
from tests.oracles.comparison import LOG_PROB_TOLERANCE
from tests.oracles.huggingface import Oracle
from xlexport.conversion import convert
from xlexport.conversion_options import ConversionOptions
from xlexport.formats import load
from xltraining.checkpoint import save_checkpoint
from xltraining.transformer_xl import TransformerXLConfig

pytestmark = pytest.mark.full

Ids = npt.NDArray[np.int64]

SMALL = TransformerXLConfig(
    n_token=1000,
    n_layer=1,
    n_head=2,
    d_model=16,
    d_head=4,
    d_inner=8,
    tgt_len=12,
    mem_len=8,
    cutoffs=(100, 300, 620),
    div_val=2,
    tie_projs=(False, True, True, True),
)
SIZES = {1: 200, 2: 320, 3: 380}  # of the tails: all different, also from the head's 103 columns
# The vocabulary of WikiText-103, and its clusters.
CLUSTERS: dict[str, Any] = {
    "n_token": 267_735,
    "cutoffs": (20_000, 40_000, 200_000),
    "div_val": 4,
    "d_embed": 64,
    "tie_projs": (),
}
LARGE = replace(SMALL, **CLUSTERS, tgt_len=128, mem_len=128)
FULL_LOGITS = 4 * LARGE.tgt_len * LARGE.n_token  # bytes


def convert_oracle(oracle: Oracle, folder: Path) -> Path:
    save_checkpoint(folder / "checkpoint.pt", oracle.config, oracle.state_dict())
    options = ConversionOptions(tokenizer="none", threads=1, segments=1)
    with cached_exports():
        convert(load(folder / "checkpoint.pt"), folder / "bundle", options)
    return folder / "bundle"


@pytest.fixture(scope="module")
def oracle() -> Oracle:
    return Oracle(SMALL)


@pytest.fixture(scope="module")
def bundle(oracle: Oracle, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return convert_oracle(oracle, tmp_path_factory.mktemp("small"))


def score(bundle: Path, tokens: Ids, targets: Ids) -> npt.NDArray[np.float32]:
    """Return the log-probabilities (B, S) of targets at a document's beginning."""
    model = xlruntime.load(bundle, threads=1)
    memory = model.new_memory(model.bundle.settings, len(tokens))
    return model.step("score", memory, tokens, targets)["log_prob"]


# Two rows of targets: all clusters in turn; some clusters, the last first; the shortlist only; one tail only.
TARGETS = {
    "in turn": [[0, 100, 300, 620, 99, 299, 619, 999, 50, 200, 400, 800]] * 2,
    "falling": [[999, 900, 800, 350, 301, 300, 7, 6, 5, 4, 3, 2], [250, 240, 230, 5, 620, 4, 3, 2, 1, 0, 620, 620]],
    "shortlist": [[*range(12)], [*range(88, 100)]],
    "one tail": [[*range(300, 312)], [*range(608, 620)]],
}
every_kind = pytest.mark.parametrize("targets", [np.array(rows) for rows in TARGETS.values()], ids=TARGETS.keys())


@every_kind
@pytest.mark.release
def test_log_probs_come_back_in_the_order_of_the_tokens(targets: Ids, bundle: Path, oracle: Oracle) -> None:
    """Check alternating clusters: code that works by cluster may return scores in that order by mistake."""
    tokens = np.roll(targets, 1, axis=1)
    (wanted,) = oracle.walk([(torch.from_numpy(tokens), torch.from_numpy(targets))])
    found = score(bundle, tokens, targets)
    assert np.abs(found - wanted.target_log_probs.numpy()).max() <= LOG_PROB_TOLERANCE
    for column in range(0, 12, 5):  # the score of a target does not depend on the others
        alone = np.zeros_like(targets)
        alone[:, column] = targets[:, column]
        assert np.abs(score(bundle, tokens, alone)[:, column] - found[:, column]).max() <= LOG_PROB_TOLERANCE


def shapes(bundle: Path, tokens: Ids, targets: Ids, folder: Path) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all intermediate results of the score graph, by name."""
    model = onnx.load(bundle / "score.onnx")
    names = [name for node in model.graph.node for name in node.output if name]
    del model.graph.output[:]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    onnx.save(model, folder / "everything.onnx")
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(str(folder / "everything.onnx"), options, providers=["CPUExecutionProvider"])
    opened = xlruntime.load(bundle, threads=1)
    memory = opened.new_memory(opened.bundle.settings, len(tokens))
    feeds: dict[str, Any] = {**memory.feeds(opened.bundle.graphs["score"], {"tokens": tokens, "targets": targets})}
    feeds |= {entry.input: memory.array(entry) for entry in memory.entries}
    feeds |= {name: value.numpy() for name, value in memory.constants.items()}
    taken = {value.name: feeds[value.name] for value in session.get_inputs()}
    return {name: array.shape for name, array in zip(names, session.run(names, taken), strict=True)}


@every_kind
def test_a_tail_is_computed_for_its_own_targets_alone(targets: Ids, bundle: Path, tmp_path: Path) -> None:
    found = shapes(bundle, np.roll(targets, 1, axis=1), targets, tmp_path)
    for cluster, size in SIZES.items():
        first, end = SMALL.cluster_bounds[cluster]
        own = int(((targets >= first) & (targets < end)).sum())
        wide = {name: shape for name, shape in found.items() if size in shape}
        assert len(wide) >= 2  # its scores, and their softmax
        assert set(wide.values()) == {(own, size)}
    assert (24, 103) in found.values()
    assert not [name for name, shape in found.items() if SMALL.n_token in shape]


PEAK_OF_A_GRAPH = """
import json, re, sys
from pathlib import Path
import numpy as np
import xlruntime

def peak():
    return 1024 * int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])

purpose, bundle, file = sys.argv[1:]
ids = np.load(file)
model = xlruntime.load(bundle, threads=1)
memory = model.new_memory(model.bundle.settings)
model.step(purpose, memory, ids[:, :1], ids[:, 1:2])
before = peak()
for start in range(1, ids.shape[1] - 128, 128):
    segment = slice(start, start + 128)
    model.step(purpose, memory, ids[:, segment], ids[:, start + 1 : start + 129])
print(peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the peak of a process' memory is read from /proc")
@pytest.mark.release
def test_memory_for_a_large_vocabulary(tmp_path: Path) -> None:
    """Check for tokens with Zipf frequencies that memory never holds the full logits or a tensor of similar size."""
    bundle = convert_oracle(Oracle(LARGE), tmp_path)
    weights = 1 / np.arange(1, LARGE.n_token + 1)
    ids = np.random.default_rng(0).choice(LARGE.n_token, (1, 1 + 3 * 128 + 1), p=weights / weights.sum())
    assert all((ids >= first).any() for first in LARGE.cutoffs)
    np.save(tmp_path / "ids.npy", ids)

    def growth(purpose: str) -> int:
        command = [sys.executable, "-c", PEAK_OF_A_GRAPH, purpose, str(bundle), str(tmp_path / "ids.npy")]
        return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    assert growth("score") < FULL_LOGITS / 3
    assert growth("detail") > FULL_LOGITS / 2  # it needs every token, so the measurement would show it
