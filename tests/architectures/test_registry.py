"""The registry of architectures, and one added at run time, from its checkpoint to a verified bundle."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pytest

import xltraining.architectures
from tests.golden.make_golden import FOLDER, VARIANTS, random_model
from xlexport.architectures import (
    Architecture,
    Option,
    Step,
    architecture,
    architectures,
    find,
    register,
    require_support,
    title_of,
    unregister,
)
from xlexport.architectures.choices import check_choices, collected
from xlexport.bench import bench
from xlexport.bench.report import report_rows, table_line
from xlexport.checkpoints import load
from xlexport.commands.inspect import bundle_rows, checkpoint_rows
from xlexport.convert import ConversionOptions, convert
from xlexport.errors import ExportError, ParityError
from xlexport.verification import verify
from xlruntime import load as load_bundle
from xlruntime.bundle_files import read_bundle
from xlruntime.evaluation import EvaluationRules
from xltraining.checkpoint import save_checkpoint
from xltraining.transformer_xl import TransformerXL, TransformerXLConfig

if TYPE_CHECKING:
    from torch import Tensor

GOLDEN = "pre_lnorm_same_length_zeros"
IDS = np.random.default_rng(0).integers(0, VARIANTS[GOLDEN].config.n_token, 300)
LEAP = Option("leap", "integer", "How far to leap.", minimum=1)


@dataclass(frozen=True)
class TwinConfig(TransformerXLConfig):
    """The configuration of the same model under another name."""

    NAME: ClassVar[str] = "Twin"


class Twin(TransformerXL):
    """A model that no file of xlexport knows; as a Transformer-XL it needs no graph of its own."""


class TwinArchitecture(Architecture):
    """Only the required parts of an architecture, so that tests use the defaults of all others."""

    name = "twin"
    title = "Twin"
    conversion_options = (LEAP,)
    evaluation_fields: ClassVar[Mapping[str, str]] = {"segment_len": "tgt_len", "mem_len": "mem_len"}

    def evaluation(self, config: Mapping[str, Any]) -> EvaluationRules:
        return architecture("transformer_xl").evaluation(config)

    def build_step(self, model: Any, choices: Mapping[str, Any]) -> Step:
        return architecture("transformer_xl").build_step(model, {})

    def project_memory(self, model: Any, memory: Any, newest: int | None = None) -> Iterable[tuple[str, Tensor]]:
        return architecture("transformer_xl").project_memory(model, memory, newest)


@pytest.fixture
def twin() -> Iterator[str]:
    """Register the architecture in both packages for one test."""
    register(TwinArchitecture())
    xltraining.architectures.register("twin", TwinConfig, Twin)
    yield "twin"
    unregister("twin")
    xltraining.architectures.unregister("twin")


@pytest.fixture
def checkpoint(twin: str, tmp_path: Path) -> Path:
    """Return the golden bundle's model as a checkpoint of the registered architecture."""
    model = random_model(VARIANTS[GOLDEN])
    config = TwinConfig(**vars(model.config))
    save_checkpoint(tmp_path / "twin.pt", config, model.state_dict(), tokenizer=None)
    return tmp_path / "twin.pt"


def test_folders_are_found_by_name() -> None:
    assert [one.name for one in architectures()] == ["transformer_xl", "encoder_decoder", "reformer"]
    assert [title_of(name) for name in ("reformer", "rnn")] == ["Reformer", "rnn"]
    assert architecture("reformer") is find("reformer")
    assert find("base") is None  # a module, but not the folder of an architecture
    known = "transformer_xl, encoder_decoder, reformer"
    with pytest.raises(ExportError, match=rf"'rnn' is unknown, expected one of {known}\. Register it"):
        architecture("rnn")


def test_a_name_is_registered_once(twin: str) -> None:
    assert [one.name for one in architectures()] == ["transformer_xl", "encoder_decoder", "reformer", "twin"]
    assert LEAP in collected("conversion_options")
    again = TwinArchitecture()
    for name in ("twin", "reformer"):
        again.name = name  # type: ignore[misc]  # of this object alone
        with pytest.raises(ExportError, match=f"architecture '{name}' is already registered"):
            register(again)


def test_options_of_all_name_their_architectures(twin: str) -> None:
    found = {option.name: titles for option, titles in collected("conversion_options").items()}
    assert found == {
        "cuda_graphs": ("Transformer-XL",),
        "rule": ("Reformer",),
        "n_hashes": ("Reformer",),
        "leap": ("Twin",),
    }
    plotted = {option.name for option in collected("evaluation_options", feature="attention-plot")}
    assert plotted == {"clamp_len", "same_length"}


@pytest.mark.parametrize(
    ("name", "choices", "message"),
    [
        (
            "transformer_xl",
            {"rule": "band", "n_hashes": 2, "mem_len": 3},
            "--rule and --set n_hashes apply to Reformers with LSH attention only; this model is a Transformer-XL. "
            "Remove them.",
        ),
        (
            "twin",
            {"clamp_len": 3},
            "--set clamp_len applies to Transformer-XL models only; this model is a Twin. Remove it.",
        ),
        (
            "transformer_xl",
            {"leap": 1, "typo": True},
            "--set leap applies to Twin models only, --set typo belongs to no registered architecture; "
            "this model is a Transformer-XL. Remove them.",
        ),
    ],
)
def test_choices_that_a_model_does_not_have(twin: str, name: str, choices: dict[str, Any], message: str) -> None:
    with pytest.raises(ExportError) as error:
        check_choices(name, {}, choices)
    assert str(error.value) == message
    check_choices(name, {}, dict.fromkeys(choices))


def test_unsupported_feature_is_refused(twin: str) -> None:
    for name in ("attention-plot", "torchscript"):
        require_support("transformer_xl", name)
    with pytest.raises(ExportError) as error:
        require_support("twin", "torchscript", "model.pt")
    assert str(error.value) == (
        "model.pt: TorchScript is not possible for a Twin: the architecture does not support it. "
        "Use a Transformer-XL or a Reformer."
    )
    with pytest.raises(ExportError, match="not possible for a Reformer: its LSH attention has weights"):
        require_support("reformer", "attention-plot")


def test_registered_architecture_becomes_a_verified_bundle(
    checkpoint: Path, reuse_graphs: Callable[[Path], None], tmp_path: Path
) -> None:
    reuse_graphs(FOLDER / GOLDEN / "bundle")
    source = load(checkpoint)
    assert dict(checkpoint_rows(source))["checkpoint"] == "xltraining, twin"
    options = ConversionOptions.of(tokenizer="none", threads=1, verify_segments=6, leap=2)
    report = convert(source, tmp_path / "bundle", options)
    assert (report.passed, report.segments, report.detail_segments) == (True, 6, 6)
    bundle = read_bundle(tmp_path / "bundle")
    assert bundle.architecture == "twin"
    assert "memory of a stream" in dict(bundle_rows(bundle, tmp_path / "bundle"))
    with pytest.raises(ExportError, match="TorchScript is not possible for a Twin"):
        convert(source, tmp_path / "other", replace(options, to="torchscript"))


def test_sizes_of_another_model_are_refused(
    checkpoint: Path, reuse_graphs: Callable[[Path], None], tmp_path: Path
) -> None:
    reuse_graphs(FOLDER / GOLDEN / "bundle")
    convert(load(checkpoint), tmp_path / "bundle", ConversionOptions(tokenizer="none", threads=1, verify_segments=2))
    model = load_bundle(tmp_path / "bundle", threads=1)
    other = random_model(VARIANTS[GOLDEN])
    with pytest.raises(ParityError, match="the bundle holds a twin model, the checkpoint a transformer_xl model"):
        verify(model, lambda: other, IDS, segments=2)
    wider = Twin(replace(TwinConfig(**vars(other.config)), d_inner=7))
    with pytest.raises(ParityError, match=r"d_inner is .* in the bundle, 7 in the trained model"):
        verify(model, lambda: wider, IDS, segments=2)


def test_bench_without_a_roofline(checkpoint: Path, reuse_graphs: Callable[[Path], None], tmp_path: Path) -> None:
    reuse_graphs(FOLDER / GOLDEN / "bundle")
    convert(load(checkpoint), tmp_path / "bundle", ConversionOptions(tokenizer="none", threads=1, verify_segments=2))
    report = bench(tmp_path / "bundle", against=checkpoint, threads=1, repeats=1, rounds=1)
    assert (report.flops_per_segment, report.floor_ms, report.floor, report.fraction_of_floor) == (None,) * 4
    assert report.bytes_per_segment > 0
    rows = dict(report_rows(report))
    assert rows["arithmetic"].startswith("not counted")
    assert "floor" not in rows
    assert table_line(report).split()[6:9] == ["-", "-", "-"]


def test_manifest_of_an_architecture_that_is_not_registered(tmp_path: Path) -> None:
    """Check that `inspect` and `score` work, because the bundle holds everything that they need."""
    manifest = read_bundle(FOLDER / GOLDEN / "bundle")
    rows = bundle_rows(replace(manifest, architecture="rnn"), FOLDER / GOLDEN / "bundle")
    assert ("architecture", "rnn") in rows
    assert "memory of a stream" not in dict(rows)
