import math
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.runs import quiet, read_log
from xltraining.checkpoint import build_model, load_checkpoint
from xltraining.errors import CheckpointWriteError, ConfigError, DataError, RunFileError, TrainingDivergedError
from xltraining.evaluation import evaluate
from xltraining.loop.train import TrainingConfig, TrainingResult, train
from xltraining.transformer_xl import TransformerXL, TransformerXLConfig

MODEL = TransformerXLConfig(
    n_layer=2, n_head=2, d_model=16, d_head=8, d_inner=32, tgt_len=16, mem_len=16, dropout=0.1, pre_lnorm=True
)
TRAINING = TrainingConfig(
    steps=40,
    batch_size=3,
    learning_rate=1e-2,
    warmup_steps=5,
    log_every=1,
    eval_every=15,
    checkpoint_every=10,
    threads=1,
)


def run(text: Path, out: Path, training: TrainingConfig = TRAINING, **options: Any) -> TrainingResult:
    return train(MODEL, training, [text], [text], out, report=quiet, **options)


def stop_at(step: int) -> Callable[[int], None]:
    """Press Ctrl-C after an update."""

    def press(done: int) -> None:
        if done == step:
            os.kill(os.getpid(), signal.SIGINT)

    return press


def test_training_learns_a_text_that_repeats(tmp_path: Path, text: Path) -> None:
    result = run(text, tmp_path / "run")
    log = read_log(tmp_path / "run")
    assert [line["step"] for line in log] == list(range(1, 41))
    assert [line["step"] for line in log if "valid_bits_per_byte" in line] == [15, 30, 40]
    assert log[0]["bits_per_byte"] == pytest.approx(8, abs=0.3)  # 256 bytes, nothing learned yet
    assert log[-1]["bits_per_byte"] < 4
    assert result == TrainingResult(
        40, log[-1]["bits_per_byte"], log[-1]["valid_bits_per_byte"], False, tmp_path / "run" / "checkpoint.pt"
    )
    assert sorted(os.listdir(tmp_path / "run")) == ["checkpoint.pt", "log.jsonl"]

    model = build_model(load_checkpoint(result.checkpoint))
    content = torch.frombuffer(bytearray(text.read_bytes()), dtype=torch.uint8)
    assert evaluate(model, content, 16, 8) == pytest.approx(result.valid_bits, abs=1e-4)


@pytest.mark.parametrize("log_every", [1, 6])
@pytest.mark.full
def test_a_run_that_ctrl_c_stops_twice_resumes_bit_identically(tmp_path: Path, text: Path, log_every: int) -> None:
    training = replace(TRAINING, log_every=log_every)  # with 6, the loss is kept between two lines
    whole = run(text, tmp_path / "whole", training)
    for step in (7, 33):
        part = run(text, tmp_path / "parts", training, resume=step != 7, on_step=stop_at(step))
        assert (part.step, part.interrupted) == (step, True)
    last = run(text, tmp_path / "parts", training, resume=True)
    assert (last.step, last.interrupted) == (40, False)
    assert read_log(tmp_path / "parts") == read_log(tmp_path / "whole")
    expected, found = (load_checkpoint(result.checkpoint) for result in (whole, last))
    assert all(torch.equal(tensor, expected.state_dict[name]) for name, tensor in found.state_dict.items())


@pytest.mark.full
def test_ctrl_c_ends_an_evaluation_which_a_resume_repeats(tmp_path: Path, text: Path) -> None:
    scored: list[tuple[int, int]] = []

    def press(done: int, total: int) -> None:
        scored.append((done, total))
        os.kill(os.getpid(), signal.SIGINT)

    training = replace(TRAINING, steps=32, best=True, log_every=10)
    for name, options in (("whole", {}), ("parts", {"on_evaluation": press})):
        result = run(text, tmp_path / name, training, **options)
    assert (result.step, result.interrupted, result.valid_bits) == (15, True, None)
    assert scored == [(128, 1912)]  # one segment of each of 8 streams
    last = run(text, tmp_path / "parts", training, resume=True)
    assert (last.step, last.interrupted) == (32, False)
    assert read_log(tmp_path / "parts") == read_log(tmp_path / "whole")
    whole, parts = (load_checkpoint(tmp_path / name / "best.pt").state_dict for name in ("whole", "parts"))
    assert all(torch.equal(tensor, whole[name]) for name, tensor in parts.items())


def test_a_finished_run_resumes_to_its_end_and_starts_anew_without_its_checkpoint(tmp_path: Path, text: Path) -> None:
    training = replace(TRAINING, steps=3)
    first = run(text, tmp_path / "run", training)
    assert run(text, tmp_path / "run", training, resume=True) == first
    assert len(read_log(tmp_path / "run")) == 3
    first.checkpoint.unlink()
    assert run(text, tmp_path / "run", training) == first
    assert len(read_log(tmp_path / "run")) == 3


def test_a_second_ctrl_c_stops_at_once(tmp_path: Path, text: Path) -> None:
    def press_twice(step: int) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        run(text, tmp_path / "run", on_step=press_twice)
    assert signal.getsignal(signal.SIGINT) is before


def test_training_works_outside_the_main_thread(tmp_path: Path, text: Path) -> None:
    thread = threading.Thread(target=lambda: run(text, tmp_path / "run", replace(TRAINING, steps=2)))
    thread.start()
    thread.join()
    assert len(read_log(tmp_path / "run")) == 2


@pytest.mark.full
def test_training_leaves_random_state_and_threads_alone(tmp_path: Path, text: Path) -> None:
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    run(text, tmp_path / "run", replace(TRAINING, steps=2, threads=threads + 1))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads


def test_no_steps_write_fresh_weights_without_text(tmp_path: Path) -> None:
    results = [
        train(MODEL, replace(TRAINING, steps=0, seed=seed), [], [], tmp_path / name, report=quiet)
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    ]
    weights = [load_checkpoint(result.checkpoint).state_dict["word_emb.clusters.0.table"] for result in results]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert os.listdir(tmp_path / "a") == ["checkpoint.pt"]


def test_a_resume_with_other_settings_lists_them(tmp_path: Path, text: Path) -> None:
    run(text, tmp_path / "run", replace(TRAINING, steps=2))
    (tmp_path / "other.txt").write_bytes(text.read_bytes() + b"!")
    changed = replace(TRAINING, steps=2, seed=9, clip=0.25, log_every=3)
    with pytest.raises(RunFileError, match=r"seed was 0, is now 9; training text was .*") as caught:
        train(MODEL, changed, [tmp_path / "other.txt"], [], tmp_path / "run", resume=True, report=quiet)
    assert "clip was 1.0, is now 0.25" in str(caught.value)
    assert "log_every" not in str(caught.value)


def test_a_flipped_bit_of_a_weight_is_not_trained_on(tmp_path: Path, text: Path) -> None:
    path = run(text, tmp_path / "run", replace(TRAINING, steps=2)).checkpoint
    weight = load_checkpoint(path).state_dict["word_emb.clusters.0.table"].numpy().tobytes()
    content = bytearray(path.read_bytes())
    content[content.index(weight) + 1] ^= 1  # in the mantissa of a float32
    path.write_bytes(content)
    with pytest.raises(RunFileError, match=r"'archive/data/\d+' in it is damaged \(wrong checksum\)\. Copy or"):
        run(text, tmp_path / "run", replace(TRAINING, steps=3), resume=True)
    assert path.read_bytes() == content


def test_bad_input_writes_nothing(tmp_path: Path, text: Path) -> None:
    with pytest.raises(DataError, match="too short"):
        run(text, tmp_path / "run", replace(TRAINING, batch_size=500))
    (tmp_path / "byte").write_bytes(b"x")
    with pytest.raises(DataError, match="one byte long"):
        train(MODEL, TRAINING, [text], [tmp_path / "byte"], tmp_path / "run", report=quiet)
    with pytest.raises(DataError, match="No such file"):
        run(tmp_path / "missing", tmp_path / "run")
    with pytest.raises(DataError, match="no text was given to train on"):
        train(MODEL, TRAINING, [], [], tmp_path / "run", report=quiet)
    with pytest.raises(ConfigError, match="best needs held-out text"):
        train(MODEL, replace(TRAINING, best=True), [text], [], tmp_path / "run", report=quiet)
    assert not (tmp_path / "run").exists()
    with pytest.raises(CheckpointWriteError, match=r"\. Choose another place\.$"):
        run(text, text / "run")


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path: Path, text: Path) -> None:
    with pytest.raises(TrainingDivergedError, match=r"\. Lower the learning rate"):
        run(text, tmp_path / "run", replace(TRAINING, learning_rate=1e30, warmup_steps=0))
    assert not (tmp_path / "run" / "checkpoint.pt").exists()


def test_weights_that_are_not_finite_are_not_saved(tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    update = torch.optim.Adam.step

    def break_weights(optimizer: torch.optim.Adam) -> None:
        update(optimizer)
        if steps == [1, 2, 3, 4]:
            with torch.no_grad():
                optimizer.param_groups[0]["params"][0][0, 0] = math.nan

    steps: list[int] = []
    monkeypatch.setattr(torch.optim.Adam, "step", break_weights)
    with pytest.raises(TrainingDivergedError, match="weights are not finite at step 5"):
        run(text, tmp_path / "run", replace(TRAINING, checkpoint_every=1), on_step=steps.append)
    training = load_checkpoint(tmp_path / "run" / "checkpoint.pt").training
    assert training is not None
    assert training["step"] == 4


@pytest.mark.skipif(torch.cuda.is_available(), reason="only a machine without CUDA can miss it")
def test_a_missing_device_is_an_error() -> None:
    with pytest.raises(ConfigError, match="cuda is not available: install a CUDA build"):
        TrainingConfig(device="cuda")


@pytest.mark.parametrize("segment_len", [1, 4, 64])
def test_evaluate_is_the_mean_surprisal_in_bits(segment_len: int) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = TransformerXL(replace(MODEL, mem_len=64))
    text = torch.arange(30, 60).to(torch.uint8)
    tokens = text.long()[None]
    model.eval()
    with torch.no_grad():
        hidden, _ = model(tokens[:, :-1])
        expected = -model.log_probs(hidden, tokens[:, 1:]).mean().item() / math.log(2)
    model.train()
    assert evaluate(model, text, segment_len) == pytest.approx(expected, abs=1e-5)
    assert model.training


def test_evaluate_needs_two_bytes_a_stream() -> None:
    with pytest.raises(DataError, match="at least 2 bytes each"):
        evaluate(TransformerXL(MODEL), torch.zeros(3, dtype=torch.uint8), 4, batch_size=2)


def test_bf16_autocast_trains(tmp_path: Path, text: Path) -> None:
    run(text, tmp_path / "run", replace(TRAINING, steps=3, bf16=True))
    state_dict = load_checkpoint(tmp_path / "run" / "checkpoint.pt").state_dict
    assert {tensor.dtype for tensor in state_dict.values()} == {torch.float32}
    assert all(tensor.isfinite().all() for tensor in state_dict.values())
