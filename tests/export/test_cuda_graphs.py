"""The graphs for CUDA graphs: no shape depends on `offset`, and the results equal those of ordinary graphs."""

from __future__ import annotations

import functools
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.helpers import ids
from tests.helpers.bundles import Converted, convert_tiny
from tests.helpers.pretended_cuda import pretend
from tests.helpers.tiny import BAND, tiny_model, tiny_reformer
from xlexport.architectures.transformer_xl.step import TransformerXLStep
from xlexport.checkpoints import load as load_checkpoint
from xlexport.convert import ConversionOptions, convert
from xlexport.errors import ExportError
from xlexport.verification import verify
from xlruntime import Model, OptionError, ProviderError, load
from xlruntime.devices import Device, parse_device
from xlruntime.placement import placed_nodes
from xlruntime.providers import open_session
from xltraining.checkpoint import save_checkpoint

FIXED = ("score_fixed", "generate_fixed")
DATA = ["weights.data"]
SIZES = {"batch": 3, "segment": 8, "capacity": 28, "near + 1": 29}


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Converted:
    options = ConversionOptions.of(tokenizer="none", threads=1, cuda_graphs=True)
    return convert_tiny(tmp_path_factory, "fixed", options, same_length=True)


@pytest.fixture
def model(converted: Converted) -> Model:
    """Return the model without kernels, which run a part of the ordinary graphs and sum in another order."""
    return load(converted.folder, threads=1, ops="none")


random_ids = functools.partial(ids.random_ids, vocab_size=20)


def test_ordinary_conversions_have_no_such_graphs(ids_bundle: Converted) -> None:
    assert not set(FIXED) & load(ids_bundle.folder, threads=1).bundle.graphs.keys()
    assert not TransformerXLStep(tiny_model()).forms


@pytest.mark.full
def test_both_are_written_and_verified(converted: Converted, model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(model.bundle.graphs) == ["score", "generate", "detail", "positions", *FIXED]
    assert converted.report.passed
    walked, step = [], Model.step

    def watched(self: Model, purpose: str, *given: Any) -> dict[str, npt.NDArray[Any]]:
        walked.append(purpose)
        return step(self, purpose, *given)

    monkeypatch.setattr(Model, "step", watched)
    verify(model, converted.source.build_model, random_ids(90), segments=6)
    assert Counter(walked) == {"score": 6, "detail": 6, "generate": 6, **dict.fromkeys(FIXED, 6)}


def test_clusters_have_no_graph_that_scores() -> None:
    """Check that the graph is missing, because the number of targets in each cluster depends on data."""
    model = tiny_model(cutoffs=(5, 9))
    assert set(TransformerXLStep(model, cuda_graphs=True).forms) == {"generate_fixed"}


@pytest.mark.full
@pytest.mark.parametrize("purpose", FIXED)
def test_no_shape_is_computed_once_the_axes_are_fixed(purpose: str, converted: Converted) -> None:
    """Check that no node computes a shape or takes its size from a number, so that none would run on the CPU."""
    session = open_session(converted.folder / f"{purpose}.onnx", Device("cpu"), 1, sizes=SIZES, data_files=DATA)
    operators = {node.operator for node in placed_nodes(session)}
    assert "ScatterND" in operators
    assert not operators & {"Shape", "Size", "Range", "ConstantOfShape", "NonZero", "Slice", "Loop", "If", "TopK"}
    for value in session.get_outputs():
        assert all(isinstance(axis, int) for axis in value.shape), value.name  # inferred from the inputs alone
    ordinary = open_session(converted.folder / "score.onnx", Device("cpu"), 1, sizes=SIZES, data_files=DATA)
    assert "Slice" in {node.operator for node in placed_nodes(ordinary)}


@pytest.mark.full
@pytest.mark.parametrize(
    ("batch_size", "segment_len", "capacity", "clamp_len"),
    [(1, 8, 28, -1), (3, 8, 28, 6), (2, 1, 21, -1), (2, 1, 21, 6), (1, 5, 40, 3), (3, 20, 40, 3)],
)
def test_same_numbers_at_every_offset(
    batch_size: int, segment_len: int, capacity: int, clamp_len: int, model: Model
) -> None:
    """Compare bit for bit: only the reordering of columns differs, not the order of sums."""
    memory = model.new_memory(model.evaluation(segment_len, clamp_len=clamp_len), batch_size, capacity)
    constants = {name: value.numpy() for name, value in memory.constants.items()}
    near = next(iter(constants.values())).shape[-1] - 1
    assert (near < capacity) == (clamp_len > 0)  # there are rows without positional keys
    random = np.random.default_rng(0)
    rings = {
        entry.input: random.standard_normal(memory.array(entry).shape).astype(np.float32) for entry in memory.entries
    }
    tokens, targets = random_ids(2, batch_size, segment_len)
    feeds = memory.feeds(model.bundle.graphs["score"], tokens, targets) | constants | rings
    for offset in (0, 1, 7, capacity - segment_len, capacity - 1, capacity, 123, 2**40, -5):
        feeds["offset"] = np.array([offset])
        feeds["memory_length"] = random.integers(0, 21, batch_size)
        for purpose in ("score", "generate"):
            taken = {name: feeds[name] for name in model.bundle.graphs[purpose].inputs}
            ordinary, found = (model.session(name).run(taken) for name in (purpose, f"{purpose}_fixed"))
            for name, array in ordinary.items():
                np.testing.assert_array_equal(found[name], array, err_msg=f"{purpose} {name} at {offset}")


def walk(model: Model, ids: npt.NDArray[np.int64], segment_len: int, clamp_len: int = -1) -> list[npt.NDArray[Any]]:
    """Return the log-probabilities of each segment of ids (B, T); the second row restarts in between."""
    memory = model.new_memory(model.evaluation(segment_len, clamp_len=clamp_len), len(ids))
    found = []
    for number, start in enumerate(range(0, ids.shape[1] - segment_len, segment_len)):
        if number == 9 and len(ids) > 1:
            memory.restart(1)
        tokens, targets = (ids[:, start + shift : start + shift + segment_len] for shift in (0, 1))
        found.append(model.step("score", memory, tokens, targets)["log_prob"])
    return found


@pytest.mark.full
def test_results_are_copies(model: Model) -> None:
    """Check that results stay valid although the next step writes to the same buffer."""
    model.use_fixed()
    ids = random_ids(1, 20 * 8 + 1)
    segments = walk(model, ids, 8)
    assert len({segment.tobytes() for segment in segments}) == len(segments)


@pytest.mark.full
def test_cuda_graphs_need_cuda_and_fixed_graphs(converted: Converted, ids_bundle: Converted) -> None:
    with pytest.raises(OptionError, match="cuda_graphs needs a CUDA device, but the device is cpu"):
        load(converted.folder, cuda_graphs=True)
    with pytest.raises(OptionError, match=r"no graphs for cuda_graphs. Convert .* --set cuda_graphs=true"):
        load(ids_bundle.folder, device="cuda", cuda_graphs=True)


@pytest.mark.full
def test_cuda_is_asked_to_capture_and_nothing_may_run_elsewhere(
    converted: Converted, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = pretend(monkeypatch, on_cpu=None)
    path = converted.folder / "score_fixed.onnx"
    with pytest.raises(ProviderError, match=r"(\d+) of \1 nodes run on CPUExecutionProvider"):  # Add and Gather, too
        open_session(path, parse_device("cuda"), sizes=SIZES, data_files=DATA)
    runtime.on_cpu = ()
    open_session(path, parse_device("cuda"), data_files=DATA)
    assert [settings.get("enable_cuda_graph") for settings in runtime.asked] == ["1", None]


def test_reformers_have_none(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "model.pt", BAND, tiny_reformer(BAND).state_dict(), tokenizer=None)
    with pytest.raises(ExportError, match=r"--set cuda_graphs applies to Transformer-XL models only; .* a Reformer"):
        convert(load_checkpoint(tmp_path / "model.pt"), tmp_path / "out", ConversionOptions.of(cuda_graphs=True))
