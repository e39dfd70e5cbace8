import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.helpers.tiers import thinned
from tests.training.runs import REFORMER, quiet, read_log, run
from xltraining.architectures import new_model
from xltraining.checkpoint import build_model, load_checkpoint
from xltraining.errors import RunFileError
from xltraining.evaluation import evaluate
from xltraining.loop.saved_run import saved_run
from xltraining.loop.train import TrainingConfig, train
from xltraining.reformer import Reformer, ReformerMemory
from xltraining.transformer_xl import TransformerXLConfig

TRAINING = TrainingConfig(
    steps=14, batch_size=3, learning_rate=1e-2, warmup_steps=3, log_every=1, eval_every=7, checkpoint_every=5, threads=1
)


@pytest.fixture
def model() -> Reformer:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made = new_model(replace(REFORMER, dropout=0.0))
    assert isinstance(made, Reformer)
    return made.eval()


@pytest.mark.parametrize("optimizer", thinned(["adam", "adafactor"], ["adafactor"]))
@pytest.mark.full
def test_training_learns_a_text_that_repeats(tmp_path: Path, text: Path, optimizer: Any) -> None:
    training = replace(TRAINING, steps=60, optimizer=optimizer, learning_rate=0.01 if optimizer == "adam" else 0.1)
    result = run(REFORMER, training, tmp_path / "run", [text])
    log = read_log(tmp_path / "run")
    assert log[0]["bits_per_byte"] == pytest.approx(8, abs=0.5)  # 256 bytes, nothing learned yet
    assert log[-1]["bits_per_byte"] < 2  # the text's bytes, each by itself, have 3.6 bits
    content = torch.frombuffer(bytearray(text.read_bytes()), dtype=torch.uint8)
    assert evaluate(build_model(load_checkpoint(result.checkpoint)), content, 16, 8) == result.valid_bits


def test_a_document_restarts_at_the_last_position(tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    positions = []
    forward = Reformer.forward

    def watched(self: Reformer, tokens: torch.Tensor, memory: ReformerMemory | None = None) -> Any:
        positions.append(0 if memory is None else memory.position)
        return forward(self, tokens, memory)

    monkeypatch.setattr(Reformer, "forward", watched)
    train(REFORMER, replace(TRAINING, steps=6), [text], [], tmp_path / "run", report=quiet)
    assert positions == [0, 16, 32, 48, 0, 16]
    training = load_checkpoint(tmp_path / "run" / "checkpoint.pt").training
    assert training is not None
    assert training["memory"]["position"] == 32
    rows = [rows.shape[1] for rows, _ in training["memory"]["layers"]]
    assert rows == [REFORMER.local_rows, 24, 24]


def test_evaluate_is_the_mean_surprisal_of_documents_between_restarts(model: Reformer) -> None:
    text = torch.randint(0, 256, (2 * 64 + 21,), generator=torch.Generator().manual_seed(1)).byte()
    tokens = text.long()[None]
    nats = 0.0
    with torch.no_grad():
        for start in (0, 64, 128):  # positions end after 64
            part = tokens[:, start : start + 65]
            hidden, _ = model(part[:, :-1])
            nats -= model.log_probs(hidden, part[:, 1:]).sum().item()
    expected = nats / math.log(2) / (len(text) - 1)
    for segment_len in (7, 16, 100):
        assert evaluate(model, text, segment_len) == pytest.approx(expected, abs=1e-5)  # float32's rounding


def test_rule_chunk_resets_memory_at_every_segment(model: Reformer) -> None:
    memory = model.first_memory(2)
    assert model.memory_before(memory, 64) is memory
    assert model.memory_before(memory, 65) is None
    assert model.memory_before(None, 1) is None
    assert new_model(replace(REFORMER, rule="chunk")).memory_before(memory, 4) is None
    assert new_model(replace(REFORMER, position="rotary", max_positions=0)).memory_before(memory, 10**9) is memory
    rows = [torch.zeros(1, 2, 3)]
    assert new_model(TransformerXLConfig(n_layer=1)).memory_before(rows, 10**9) is rows


def test_a_resume_of_another_architecture_says_so(tmp_path: Path, text: Path) -> None:
    run(REFORMER, replace(TRAINING, steps=1), tmp_path / "run", [text])
    with pytest.raises(RunFileError, match="architecture was reformer, is now transformer_xl; optimizer") as caught:
        other = replace(TRAINING, steps=1, optimizer="adafactor")
        train(TransformerXLConfig(), other, [text], [], tmp_path / "run", resume=True, report=quiet)
    assert "n_layer" not in str(caught.value)


def test_a_run_from_before_a_setting_existed_resumes(tmp_path: Path, text: Path) -> None:
    run(REFORMER, replace(TRAINING, steps=2), tmp_path / "run", [text])
    file = tmp_path / "run" / "checkpoint.pt"
    content = torch.load(file, weights_only=True)
    for name in ("optimizer", "reversible"):
        del content["training"]["config"][name]
    content["training"]["config"] |= {"task": "bytes", "word_length": 255, "image_size": 64}  # of earlier versions
    torch.save(content, file)
    assert saved_run(tmp_path / "run").training_config == replace(TRAINING, steps=2)
    assert run(REFORMER, replace(TRAINING, steps=2), tmp_path / "run", [text], resume=True).step == 2
