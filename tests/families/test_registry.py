"""The table of architectures, and the options that each of them has."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.helpers.paths import GOLDEN, ZEROS
from tests.helpers.tiny import tiny_model
from xlexport.commands.inspect import bundle_rows
from xlexport.errors import ExportError
from xlexport.families import architecture, architectures, find, title_of
from xlexport.families.options import check_choices, collected
from xlexport.families.recurrent import TITLES
from xlexport.families.recurrent.huggingface import FAMILIES
from xlruntime.bundle_files import read_bundle

NAMES = ["transformer_xl", "encoder_decoder", "reformer", "recurrent", "step_model"]


def test_architectures_are_found_by_name() -> None:
    assert [one.name for one in architectures()] == NAMES
    assert [title_of(name) for name in ("reformer", "rnn")] == ["Reformer", "rnn"]
    assert architecture("reformer") is find("reformer")
    assert find("base") is None
    with pytest.raises(ExportError, match=rf"'rnn' is unknown, expected one of {', '.join(NAMES)}\. Add it to"):
        architecture("rnn")


def test_options_name_the_architectures_that_have_them() -> None:
    titles_of = {option.name: titles for option, titles in collected("conversion_options").items()}
    assert titles_of == {"rule": ("Reformer",), "n_hashes": ("Reformer",)}
    plotted = {option.name for option in collected("evaluation_options", only=["transformer_xl"])}
    assert plotted == {"clamp_len", "same_length"}


LSH = "Reformers with LSH attention only; this model is a"


@pytest.mark.parametrize(
    ("name", "choices", "message"),
    [
        (
            "transformer_xl",
            {"rule": "band", "n_hashes": 2, "mem_len": 3},
            f"--rule and --set n_hashes apply to {LSH} Transformer-XL. Remove them.",
        ),
        ("recurrent", {"rule": "band"}, f"--rule applies to {LSH} recurrent model. Remove it."),
        ("encoder_decoder", {"rule": "band"}, f"--rule applies to {LSH}n encoder-decoder. Remove it."),
        (
            "recurrent",
            {"mem_len": 1, "typo": True},
            "--mem-len applies to models that carry rows of memory only, --set typo belongs to no architecture; this "
            "model is a recurrent model. Remove them.",
        ),
    ],
)
def test_choices_that_a_model_does_not_have(name: str, choices: dict[str, Any], message: str) -> None:
    config = tiny_model().config.to_dict()
    with pytest.raises(ExportError) as error:
        check_choices(name, config, choices)
    assert str(error.value) == message
    check_choices(name, config, dict.fromkeys(choices))


def test_recurrent_models_have_the_names_of_their_families() -> None:
    names = {kind: title_of("recurrent", {"model": kind}) for kind in ("mamba", "falcon_mamba", "rwkv7", "Mine")}
    assert [*names.values()] == ["Mamba", "Falcon-Mamba", "RWKV-7", "recurrent model Mine"]
    assert title_of("recurrent") == "recurrent model" and title_of("reformer", {"model": "mamba"}) == "Reformer"
    assert {*FAMILIES, "lstm"} <= TITLES.keys()


def test_manifest_of_an_unknown_architecture() -> None:
    """Check that `inspect` works, because the bundle holds everything that it needs."""
    folder = GOLDEN / ZEROS / "bundle"
    rows = bundle_rows(replace(read_bundle(folder), architecture="rnn"), folder)
    assert ("architecture", "rnn") in rows
    assert "memory of a stream" in dict(rows)
