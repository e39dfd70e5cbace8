"""Encoder-decoders: reversible blocks, carried memory, padding, and the task of pairs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.helpers.tiny import ENCODER_DECODER, tiny_encoder_decoder
from tests.training.runs import saved_bytes
from xltraining.data.pairs import PairsTask, read_pairs
from xltraining.encoder_decoder import EncoderDecoder
from xltraining.encoder_decoder.config import END, FIRST_BYTE, PAD, START
from xltraining.errors import DataError

PAIRS = "ab\tba\nabc\tcba\n\tx\nlonger one!\tlonger!!\n"


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    file = tmp_path / "pairs.tsv"
    file.write_text(PAIRS)
    return file


def task_of(file: Path, batch_size: int = 4) -> PairsTask:
    return PairsTask(ENCODER_DECODER, [file], [file], batch_size, seed=0)


def gradients(model: EncoderDecoder, tokens: Tensor, targets: Tensor, reversible: bool) -> dict[str, Tensor]:
    model.zero_grad()
    model.reversible = reversible
    torch.manual_seed(5)
    model.loss(model(tokens)[0], targets).backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_gradients_equal_ordinary_backpropagation(pairs: Path, dropout: float) -> None:
    """Compare in float64, through three decoder layers: cross attention carries gradients to the encoder."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        config = replace(ENCODER_DECODER, n_encoder_layer=2, n_decoder_layer=3, dropout=dropout, dropatt=dropout)
        model = EncoderDecoder(config).double().train()
        batch = task_of(pairs).batch(0)
        ordinary, recomputed = gradients(model, *batch, False), gradients(model, *batch, True)
    assert recomputed.keys() == dict(model.named_parameters()).keys()
    for name, gradient in ordinary.items():
        assert (gradient - recomputed[name]).norm() <= 1e-12 * max(1.0, float(gradient.norm())), name
    assert ordinary["encoder.0.value.weight"].norm() > 1e-6


def test_reversible_run_keeps_only_the_last_streams(pairs: Path) -> None:
    """Compare what waits for the backward pass: with recomputation it does not grow with the layers."""
    kept: dict[tuple[bool, int], int] = {}
    for reversible in (False, True):
        for layers in (1, 4):
            model = EncoderDecoder(replace(ENCODER_DECODER, n_encoder_layer=layers, n_decoder_layer=layers)).train()
            model.reversible = reversible
            kept[reversible, layers] = saved_bytes(model, *task_of(pairs).batch(0))
    assert kept[True, 4] == kept[True, 1]
    assert kept[False, 4] > 2 * kept[False, 1]


def test_ordinary_layers_add_each_block_to_one_stream() -> None:
    model = tiny_encoder_decoder(residual="ordinary")
    source = torch.tensor([[5, 6, 7]])
    with torch.no_grad():
        memory = model.encode(source)
        hidden = model.embed(source)
        for block in model.encoder:
            hidden = hidden + block(hidden, hidden, memory.source_bias)
        torch.testing.assert_close(memory.source, model.encoder_norm(hidden))


def test_segmentation_of_a_target_does_not_matter() -> None:
    model = tiny_encoder_decoder()
    source, target = torch.tensor([[5, 6, 7, PAD]]), torch.tensor([[START, 9, 8, 7, 9, 30, 12, 9, 8]])
    with torch.inference_mode():
        whole, _ = model(target, model.encode(source))
        for cuts in ((1,) * 9, (4, 5), (2, 1, 6)):
            memory, parts = model.encode(source), []
            for part in target.split(list(cuts), dim=1):
                hidden, memory = model(part, memory)
                parts.append(hidden)
            assert memory.position == 9
            torch.testing.assert_close(torch.cat(parts, dim=1), whole, atol=2e-5, rtol=1e-5)
        with pytest.raises(DataError, match="reads at most 9 tokens of a target, found 10"):
            model(target[:, :1], memory)


def test_padding_changes_nothing(pairs: Path) -> None:
    """Compare rows of a batch with the same pairs alone; one of the sources is empty."""
    model, (tokens, targets) = tiny_encoder_decoder(), task_of(pairs).batch(0)
    with torch.inference_mode():
        together = model.log_probs(model(tokens)[0], targets.clamp(min=0))
        for row in range(len(tokens)):
            length = int((targets[row] >= 0).sum())
            one = tokens[row : row + 1, : ENCODER_DECODER.source_len + length]
            alone = model.log_probs(model(one)[0], targets[row : row + 1, :length])
            torch.testing.assert_close(together[row : row + 1, :length], alone, atol=2e-5, rtol=1e-5)


def test_batches_hold_each_pair_once_in_an_epoch(pairs: Path) -> None:
    task = task_of(pairs, batch_size=2)
    rows = []
    for step in range(2):
        tokens, targets = task.batch(step)
        assert torch.equal(tokens[1:], task.batch(step, slice(1, 2))[0])
        for row, wanted in zip(tokens.tolist(), targets.tolist(), strict=True):
            source = bytes(token - FIRST_BYTE for token in row[: ENCODER_DECODER.source_len] if token != PAD)
            target = [token for token in wanted if token >= 0]
            assert row[ENCODER_DECODER.source_len] == START and target[-1] == END
            rows.append(source + b"\t" + bytes(token - FIRST_BYTE for token in target[:-1]))
    assert sorted(rows) == sorted(PAIRS.encode().splitlines())


def test_files_that_are_not_pairs_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # a message with long paths would be shortened
    bad = Path("bad.tsv")
    bad.write_text("fine\tfine\nno tab\na\tb\tc\na source too long\tx\nx\ttoo long.\n")
    with pytest.raises(DataError, match=r"line 2: .*0 tabs; .*line 3: .*2 tabs; .*line 4: .*17 and 1; .*5: .*1 and 9"):
        read_pairs([bad], ENCODER_DECODER)
    with pytest.raises(DataError, match=r"absent\.tsv: No such file"):
        read_pairs([Path("absent.tsv")], ENCODER_DECODER)
    bad.write_text("a\tb\n")
    with pytest.raises(DataError, match="1 pairs to train on, but a batch has 4"):
        task_of(bad)
