"""What people read about a model: the sizes in a bundle's README, and the rows of `inspect`.

An architecture without a class here gets the defaults of `ModelDescription`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from xlexport.bundles import stored_parity
from xlexport.families.transformer_xl import is_absolute
from xlruntime.bundle import Bundle

__all__ = ["ModelDescription", "Row", "model_description"]

Config = Mapping[str, Any]
Row = tuple[str, str]  # name and value, in a table


class ModelDescription:
    """The description of a model, with defaults that suit a plain recurrent model.

    Attributes:
        evaluation_fields: settings of an evaluation, and the fields of the configuration that hold them.
        fixed_fields: fields that decide how the model is evaluated, but that users cannot choose.
    """

    evaluation_fields: ClassVar[Mapping[str, str]] = {"segment_len": "tgt_len"}
    fixed_fields: ClassVar[Sequence[str]] = ()

    def summary(self, config: Config) -> str:
        """Return the sizes of a model in words."""
        hidden = {*self.evaluation_fields.values(), "n_token", "dropout", "dropatt"}
        return ", ".join(f"{name} {value}" for name, value in config.items() if name not in hidden)

    def layers(self, config: Config) -> list[Row]:
        """Return rows about the layers, in addition to the configuration."""
        return []

    def bundle(self, bundle: Bundle, folder: Path) -> list[Row]:
        """Return rows about a bundle: its layers, its evaluation and its memory."""
        return [*self.layers(bundle.config), ("segment", f"{bundle.evaluation.segment_len:,}"), _stream_memory(bundle)]

    def checkpoint_settings(self, config: Config, needs: Collection[str]) -> dict[str, Any]:
        """Return the evaluation settings that a checkpoint holds; None for a setting that the user must give."""
        fields = self.evaluation_fields.items()
        held = {name: None if name in needs else config[field] for name, field in fields}
        return {**held, **{name: config[name] for name in self.fixed_fields}}

    def checkpoint(self, config: Config, settings: Mapping[str, Any]) -> list[Row]:
        """Return further rows about a checkpoint, after its configuration and `checkpoint_settings`."""
        return self.layers(config)


class _TransformerXL(ModelDescription):
    """The description of a Transformer-XL."""

    evaluation_fields: ClassVar[Mapping[str, str]] = {
        "segment_len": "tgt_len",
        "mem_len": "mem_len",
        "clamp_len": "clamp_len",
        "same_length": "same_length",
    }
    fixed_fields = ("first_memory", "window_extra")

    def summary(self, config: Config) -> str:
        """Return the sizes of a model in words."""
        encoding = f", encoding {config['encoding']}" if "encoding" in config else ""
        return f"{config['n_layer']} layers, d_model {config['d_model']}, {config['n_head']} heads{encoding}"

    def bundle(self, bundle: Bundle, folder: Path) -> list[Row]:
        """Return rows about a bundle."""
        settings = bundle.settings
        if is_absolute(bundle.config):
            return [
                ("segment", str(settings.segment_len)),
                ("documents", f"in parts of {settings.max_positions} tokens, each without the parts before it"),
                _stream_memory(bundle),
            ]
        return [
            ("segment, memory, clamp", f"{settings.segment_len}, {settings.most_rows}, {settings['clamp_len']}"),
            ("same_length", str(not settings.segmentation_matters).lower()),
            ("first memory", settings.fresh_memory),
            _stream_memory(bundle),
        ]

    def checkpoint(self, config: Config, settings: Mapping[str, Any]) -> list[Row]:
        """Return rows about a checkpoint: the keys that a token sees, and the first memory."""
        if is_absolute(config):
            return [("keys that a token sees", f"those of its part of {config['tgt_len']} tokens before it")]
        wider = "mem_len + 1" if settings["window_extra"] else "mem_len"
        otherwise = "all of memory and of its segment before it"
        window = wider if settings["same_length"] else otherwise
        if settings["same_length"] is None:
            window = f"{wider} with same_length, else {otherwise}"
        return [("keys that a token sees", window), ("first memory", settings["first_memory"])]


class _Reformer(ModelDescription):
    """The description of a Reformer."""

    evaluation_fields: ClassVar[Mapping[str, str]] = {"segment_len": "tgt_len", "mem_len": "mem_len"}

    def summary(self, config: Config) -> str:
        """Return the sizes of a model in words."""
        sizes = f"d_model {config['d_model']}, {config['n_head']} heads of {config['d_head']}"
        hashing = ""
        if "lsh" in config["attn_layers"]:
            hashing = (
                f", LSH attention by rule {config['rule']}, {self._hashing(config)}, chunks of {config['chunk_length']}"
            )
        return f"{self._kinds(config)}, {sizes}{hashing}"

    def layers(self, config: Config) -> list[Row]:
        """Return rows about the kinds of layers and their hashing."""
        rows = [("layers", f"{self._kinds(config)}: {', '.join(config['attn_layers'])}")]
        if "lsh" in config["attn_layers"]:
            rows.append(("LSH", f"rule {config['rule']}, {self._hashing(config)}"))
            rows.append(("LSH chunks", f"{config['chunk_length']} tokens, {config['chunks_before']} before"))
        if "local" in config["attn_layers"]:
            chunks = f"{config['local_chunk_length']} tokens, {config['local_chunks_before']} before"
            rows.append(("local chunks", chunks))
        return rows

    def bundle(self, bundle: Bundle, folder: Path) -> list[Row]:
        """Return rows about a bundle, with the overflow that `parity.json` holds."""
        settings, rows = bundle.settings, self.layers(bundle.config)
        longest = "of any length"
        if settings.longest_part is not None:
            restart = "; longer ones begin again there" if settings.restart else ""
            longest = f"of at most {settings.longest_part:,} tokens{restart}"
        if settings.full_document:
            rows.append(("documents", f"whole, {longest}"))
        else:
            rows += [
                ("segment, memory", f"{settings.segment_len:,}, {settings.most_rows:,}"),
                ("documents", longest),
                _stream_memory(bundle),
            ]
        if overflow := (stored_parity(folder) or {}).get("overflow_fraction_per_layer"):
            rows.append(("overflow, by LSH layer", ", ".join(f"{float(fraction):.2%}" for fraction in overflow)))
        return rows

    @staticmethod
    def _kinds(config: Config) -> str:
        kinds: Counter[str] = Counter(config["attn_layers"])
        counts = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
        return f"{len(config['attn_layers'])} layers ({counts})"

    @staticmethod
    def _hashing(config: Config) -> str:
        return f"{config['n_hashes']} rounds of {'×'.join(map(str, config['n_buckets']))} buckets"


class _EncoderDecoder(ModelDescription):
    """The description of an encoder-decoder."""

    def summary(self, config: Config) -> str:
        """Return the sizes of a model in words."""
        return (
            f"{self._layers(config)}, reversible, d_model {config['d_model']}, {config['n_head']} heads of "
            f"{config['d_head']}, sources of at most {config['source_len']} tokens, targets of {config['tgt_len']}"
        )

    def layers(self, config: Config) -> list[Row]:
        """Return rows about the layers and the longest texts."""
        longest = f"{config['source_len']:,} and {config['tgt_len']:,} tokens"
        return [("layers", self._layers(config)), ("longest source and target", longest)]

    @staticmethod
    def _layers(config: Config) -> str:
        return f"{config['n_encoder_layer']} layers of encoder, {config['n_decoder_layer']} of decoder"


_DESCRIPTIONS = {"transformer_xl": _TransformerXL(), "reformer": _Reformer(), "encoder_decoder": _EncoderDecoder()}


def model_description(architecture: str) -> ModelDescription:
    """Return the description of models of an architecture."""
    return _DESCRIPTIONS.get(architecture, ModelDescription())


def _stream_memory(bundle: Bundle) -> Row:
    """Return the row about the size of one stream's memory."""
    free = {"batch": 1, **{symbol: bundle.settings.slots(symbol) for symbol in bundle.evaluation.rings}}
    total = sum(
        np.dtype(entry.dtype).itemsize
        * math.prod(axis if isinstance(axis, int) else free[axis] for axis in entry.shape)
        for entry in bundle.memory
    )
    return "memory of a stream", f"{total / 1e6:,.1f} MB in {len(bundle.memory)} tensors"
