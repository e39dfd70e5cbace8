"""What people read about a Reformer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from xlexport.bundles import stored_parity
from xlexport.families.describe import Config, ModelDescription, Row, stream_memory
from xlruntime.bundle import Bundle

__all__ = ["ReformerDescription"]


class ReformerDescription(ModelDescription):
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
                stream_memory(bundle),
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
