"""`verify` refuses to compare a bundle with the checkpoint of another model."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy.typing as npt
import pytest

from xlexport.architectures import architecture
from xlexport.errors import ExportError, ParityError
from xlexport.verification import verify
from xlexport.verification.tolerances import TOLERANCES
from xlruntime import Model
from xlruntime import load as load_bundle
from xltraining.reformer import Reformer, ReformerConfig

if TYPE_CHECKING:
    from tests.helpers.bundles import Converted
    from xltraining.transformer_xl import TransformerXL

    Arrays = dict[str, npt.NDArray[Any]]
    MakeModel = Callable[..., TransformerXL]
from tests.verification.test_verify import IDS


@pytest.fixture
def bundle(bytes_bundle: Converted) -> Model:
    return load_bundle(bytes_bundle.folder, threads=1)


def test_checkpoint_of_another_model_is_found(bundle: Model, make_model: MakeModel) -> None:
    report = verify(bundle, lambda: make_model(seed=1, n_token=256), IDS, segments=3)
    assert report.first_segment_over_tolerance == 0
    assert report.top1_agreement < 1
    with pytest.raises(ParityError) as caught:
        report.require_passed()
    assert "\n" not in str(caught.value)


def test_checkpoint_of_other_sizes_is_refused(bundle: Model, make_model: MakeModel) -> None:
    """Expect all differences in one line, before any error about shapes."""
    config = bundle.bundle.config
    other = make_model(n_token=257, n_layer=config["n_layer"] + 1, d_head=config["d_head"] + 2)
    with pytest.raises(ParityError) as caught:
        verify(bundle, lambda: other, IDS, segments=3)
    assert str(caught.value) == (
        f"n_token is 256 in the bundle, 257 in the trained model; n_layer is {config['n_layer']} in the bundle, "
        f"{config['n_layer'] + 1} in the trained model; d_head is {config['d_head']} in the bundle, "
        f"{config['d_head'] + 2} in the trained model. Give the checkpoint that the bundle was converted from."
    )


def test_checkpoint_of_another_architecture_is_refused(bundle: Model) -> None:
    other = Reformer(ReformerConfig(attn_layers=("full",), d_model=16, d_inner=16, n_head=1, position="rotary"))
    with pytest.raises(ParityError, match="the bundle holds a transformer_xl model, the checkpoint a reformer model"):
        verify(bundle, lambda: other, IDS, segments=3)


def test_tolerances_are_those_of_the_design() -> None:
    assert dataclasses.astuple(TOLERANCES["float32"]) == (1e-4, 1e-3, 1e-6, 1e-4, 1.5, 4)
    lower = [tolerance for name, tolerance in TOLERANCES.items() if name != "float32"]
    # Twice the limit of `quantize` on its own text; single tokens differ by more than the mean.
    assert {tolerance.delta_bits_per_token for tolerance in lower} == {0.02}
    assert {(tolerance.rms_ratio, tolerance.largest_ratio) for tolerance in lower} == {(math.inf, math.inf)}


def test_unknown_architecture_is_refused() -> None:
    with pytest.raises(ExportError, match="architecture 'rnn' is unknown, expected one of transformer_xl, encoder"):
        architecture("rnn")
