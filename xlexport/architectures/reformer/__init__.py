"""Reformer: LSH and local attention in reversible layers (Kitaev et al. 2020)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from xlexport.architectures.base import Architecture, Row, stream_memory
from xlexport.architectures.step import Step
from xlexport.errors import ExportError
from xltraining.config_fields import Option

if TYPE_CHECKING:
    import numpy.typing as npt
    from torch import Tensor

    from xlruntime.bundle import Bundle
    from xlruntime.evaluation import EvaluationRules, EvaluationSettings
    from xlruntime.memory import Memory
    from xltraining.reformer import LSHTrace, Reformer, ReformerMemory

__all__ = ["ARCHITECTURE", "ReformerArchitecture"]

LONGEST_DOCUMENT = 65_536  # if it is read whole and positions have no end
LSH_SCOPE = "Reformers with LSH attention"
SIZES = (
    *("n_token", "attn_layers", "n_head", "d_head", "d_model", "d_inner", "rule", "n_hashes", "n_buckets"),
    *("chunk_length", "local_chunk_length", "local_chunks_before", "streams"),
)


class ReformerArchitecture(Architecture):
    """All code and constants that depend on the Reformer."""

    name = "reformer"
    title = "Reformer"
    supports = frozenset({"torchscript"})
    unsupported: ClassVar[Mapping[str, tuple[str, str]]] = {
        "attention-plot": (
            "its LSH attention has weights only for the keys of one bucket, and every round has other buckets",
            "Use a Transformer-XL.",
        ),
    }
    gives_buckets = True
    # In a vocabulary of 258 tokens, id 0 is padding and id 1 is unused (google/reformer-enwik8).
    first_bytes: ClassVar[Mapping[int, int]] = {256: 0, 258: 2}
    evaluation_options = (
        Option("n_hashes", "integer", "Rounds of hashing, at most as many as exported.", minimum=1, scope=LSH_SCOPE),
    )
    conversion_options = (
        Option(
            "rule",
            "choice",
            "Rule of LSH attention, even if the model was trained with another one.",
            choices=("band", "paper", "chunk"),
            scope=LSH_SCOPE,
            common=True,
        ),
        Option(
            "n_hashes",
            "integer",
            "Rounds of hashing to export; scoring may then choose fewer.",
            minimum=1,
            scope=LSH_SCOPE,
        ),
    )
    converted_fields = ("rule", "n_hashes", "reads_last")  # older checkpoints lack the last one
    evaluation_fields: ClassVar[Mapping[str, str]] = {"segment_len": "tgt_len", "mem_len": "mem_len"}

    def evaluation(self, config: Mapping[str, Any]) -> EvaluationRules:
        """Declare the rounds of hashing, and under rule `band` the memory length.

        Under other rules a document is one step, so no memory is kept.
        """
        from xlruntime.evaluation import EvaluationRules, Ring, Setting

        whole = _is_whole(config, {})
        settings = {}
        if not whole:
            meaning = "rows of memory that a layer keeps"
            settings["mem_len"] = Setting(config["mem_len"], meaning, minimum=1)
        if "lsh" in config["attn_layers"]:
            rounds = config["n_hashes"]
            settings["n_hashes"] = Setting(
                rounds,
                "rounds of hashing, at most those that were exported (convert --n-hashes)",
                minimum=rounds if whole else 1,
                maximum=rounds,
            )
        longest = config["max_positions"] or LONGEST_DOCUMENT
        return EvaluationRules(
            segment_len=longest if whole else config["tgt_len"],
            settings=settings,
            rings={} if whole else {"capacity": Ring(rows=(1, 0, 0), slots=(1, 1, 0), window=(1, 0, 1))},
            max_positions=config["max_positions"] or None,
            full_document=whole,
            bidirectional=whole and config.get("reads_last", False),  # older checkpoints lack it
        )

    def build_step(self, model: Reformer, choices: Mapping[str, Any]) -> Step:
        """Return the step module."""
        from xlexport.architectures.reformer.step import ReformerStep

        return ReformerStep(model)

    def available(self, config: Mapping[str, Any], choices: Mapping[str, Any]) -> Collection[str]:
        """Return the names of the options that this model has; models without LSH layers have none for hashing."""
        names = {"segment_len"}
        if not _is_whole(config, choices):
            names.add("mem_len")
        return names | {"rule", "n_hashes"} if "lsh" in config["attn_layers"] else names

    def kind(self, config: Mapping[str, Any], choices: Mapping[str, Any]) -> str:
        """Return the kind of a model: "a Reformer" with the properties that decide which options it has."""
        whole = f" of rule {choices.get('rule') or config['rule']}" if config and _is_whole(config, choices) else ""
        return f"a Reformer{whole}{' without LSH attention' if config and 'lsh' not in config['attn_layers'] else ''}"

    def choose(
        self, config: Mapping[str, Any], choices: Mapping[str, Any]
    ) -> tuple[Mapping[str, Any], tuple[str, ...]]:
        """Return the configuration under the chosen rule and rounds of hashing, and notes for the user.

        Raises:
            ConfigError: the sizes do not fit the rule.
            ExportError: step graphs of this model do not exist.
        """
        from xltraining.reformer import ReformerConfig

        _require_step_graphs(config)
        chosen = dict(config) | {
            name: value for name in self.converted_fields if (value := choices.get(name)) not in (None, config[name])
        }
        if chosen == config:
            return config, ()
        ReformerConfig.from_dict(chosen)  # raises ConfigError if the values do not fit
        notes: tuple[str, ...] = ()
        if chosen["rule"] != config["rule"]:
            notes += (
                f"--rule {chosen['rule']} replaces the model's own rule of LSH attention, {config['rule']}, so the "
                "scores differ from the original model's.",
            )
        if chosen["n_hashes"] > config["n_hashes"]:
            notes += (f"{chosen['n_hashes']} rounds of hashing; the model was trained with {config['n_hashes']}.",)
        return chosen, notes

    def as_converted(self, model: Reformer, config: Mapping[str, Any]) -> Reformer:
        """Return a trained model under a configuration's rule and rounds of hashing; weights are shared.

        Raises:
            ConfigError: the model cannot have that many rounds, or its sizes do not fit the rule.
        """
        import torch

        from xltraining.reformer import Reformer

        if "lsh" in model.config.attn_layers and model.config.n_hashes != config["n_hashes"]:
            model = model.with_evaluation(n_hashes=config["n_hashes"])
        if model.config.rule == config["rule"]:
            return model
        with torch.device("meta"):
            other = Reformer(replace(model.config, rule=config["rule"]))
        other.load_state_dict(model.state_dict(), assign=True)
        return other.eval()

    def under_evaluation(self, model: Reformer, evaluation: EvaluationSettings) -> Reformer:
        """Return a trained model under a bundle's settings; weights are shared."""
        return model.with_evaluation(mem_len=evaluation.most_rows or None, n_hashes=evaluation.get("n_hashes"))

    def in_float64(self, model: Reformer) -> Reformer | None:
        """Return a copy in float64, or None under rule `chunk`, which is defined in float32.

        There a query that sees only its own key has a score of -1e5, whose steps of 1/128 are part of the result.
        """
        chunked = model.config.rule == "chunk" and "lsh" in model.config.attn_layers
        return None if chunked else super().in_float64(model)

    def evaluated_config(self, config: Mapping[str, Any], evaluation: EvaluationSettings) -> Mapping[str, Any]:
        """Return the configuration with the number of rounds of hashing that the evaluation uses."""
        return config if evaluation.get("n_hashes") is None else {**config, "n_hashes": evaluation.get("n_hashes")}

    def register_operators(self) -> None:
        """Register the PyTorch operators of sorting and LSH attention."""
        import xlexport.ops  # noqa: F401  # the import registers them

    def comparable_sizes(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the sizes that must be equal."""
        return {name: config.get(name) for name in SIZES}

    def expected(
        self, model: Reformer, tokens: Tensor, memory: ReformerMemory | None, buckets: Sequence[Tensor | None] = ()
    ) -> tuple[Tensor, ReformerMemory, Sequence[LSHTrace]]:
        """Run a trained model on a segment, with the buckets that a graph chose, if any."""
        if not buckets:
            return *model(tokens, memory), ()
        trace: list[LSHTrace] = []
        hidden, after = model(tokens, memory, buckets=list(buckets), trace=trace)
        return hidden, after, trace

    def buckets(
        self, model: Reformer, memory: Memory, outputs: Mapping[str, npt.NDArray[Any]], S: int
    ) -> Sequence[Tensor | None]:
        """Return the bucket ids of the last S tokens, in the rounds that count."""
        import torch

        entries = {entry.input: entry for entry in memory.entries}
        slots = [(memory.offset - S + step) % memory.capacity for step in range(S)]
        buckets: list[Tensor | None] = []
        for layer, kind in enumerate(model.config.attn_layers):
            if kind != "lsh":
                buckets.append(None)
                continue
            if model.config.whole:
                ids = outputs[f"bucket_{layer}"]
            else:
                ids = memory.array(entries[f"memory_bucket_{layer}"])[..., slots]
            buckets.append(torch.from_numpy(ids[:, :, : model.config.n_hashes].astype("int64")))
        return buckets

    def project_memory(
        self, model: Reformer, memory: ReformerMemory, newest: int | None = None
    ) -> Iterable[tuple[str, Tensor]]:
        """Return the keys and values of normalised hidden states, and the bucket ids."""
        from xlexport.architectures.reformer.step import project_memory

        if newest is not None:
            layers = [
                (
                    rows[:, max(0, rows.shape[1] - newest) :],
                    None if ids is None else ids[..., max(0, ids.shape[3] - newest) :],
                )
                for rows, ids in memory.layers
            ]
            memory = replace(memory, layers=layers)
        return project_memory(model, memory)

    def summary(self, config: Mapping[str, Any]) -> str:
        """Return the sizes of a model in words."""
        sizes = f"d_model {config['d_model']}, {config['n_head']} heads of {config['d_head']}"
        hashing = ""
        if "lsh" in config["attn_layers"]:
            hashing = (
                f", LSH attention by rule {config['rule']}, {config['n_hashes']} rounds of {_buckets(config)} buckets, "
                f"chunks of {config['chunk_length']}"
            )
        return f"{_layer_kinds(config)}, {sizes}{hashing}"

    def describe(self, config: Mapping[str, Any]) -> list[Row]:
        """Return rows about the kinds of layers and their hashing."""
        rows = [("layers", f"{_layer_kinds(config)}: {', '.join(config['attn_layers'])}")]
        if "lsh" in config["attn_layers"]:
            rows.append(("LSH", f"rule {config['rule']}, {config['n_hashes']} rounds of {_buckets(config)} buckets"))
            rows.append(("LSH chunks", f"{config['chunk_length']} tokens, {config['chunks_before']} before"))
        if "local" in config["attn_layers"]:
            chunks = f"{config['local_chunk_length']} tokens, {config['local_chunks_before']} before"
            rows.append(("local chunks", chunks))
        return rows

    def bundle_rows(self, bundle: Bundle, folder: Path) -> list[Row]:
        """Return rows of `inspect` about a bundle, with the overflow that `parity.json` holds."""
        evaluation, rows = bundle.settings, self.describe(bundle.config)
        if evaluation.full_document:
            rows.append(("documents", f"whole, {_longest(evaluation)}"))
        else:
            rows += [
                ("segment, memory", f"{evaluation.segment_len:,}, {evaluation.most_rows:,}"),
                ("documents", _longest(evaluation)),
                ("memory of a stream", stream_memory(bundle)),
            ]
        if overflow := _overflow(folder):
            rows.append(("overflow, by LSH layer", ", ".join(f"{fraction:.2%}" for fraction in overflow)))
        return rows


def _require_step_graphs(config: Mapping[str, Any]) -> None:
    """Raise an error for a model that only serves as a comparison in training."""
    found = "residual connections of one stream" if config.get("residual", "reversible") != "reversible" else ""
    if "separate" in config["attn_layers"]:
        found = "layers with separate queries and keys"
    if found:
        raise ExportError(
            f"the Reformer has {found}, which are for comparisons in training and have no step graphs.",
            hint="Train with residual reversible and with layers of local, lsh and full.",
        )


def _is_whole(config: Mapping[str, Any], choices: Mapping[str, Any]) -> bool:
    """Return whether each document is one step, so that no memory is carried."""
    return bool((choices.get("rule") or config["rule"]) != "band")


def _layer_kinds(config: Mapping[str, Any]) -> str:
    kinds = Counter(config["attn_layers"])
    return f"{len(config['attn_layers'])} layers ({', '.join(f'{count} {kind}' for kind, count in kinds.items())})"


def _buckets(config: Mapping[str, Any]) -> str:
    return "×".join(map(str, config["n_buckets"]))


def _longest(evaluation: EvaluationSettings) -> str:
    """Return the longest document that the model can read, in words."""
    if evaluation.longest_part is None:
        return "of any length"
    most = f"of at most {evaluation.longest_part:,} tokens"
    return f"{most}; longer ones begin again there" if evaluation.restart else most


def _overflow(folder: Path) -> list[float]:
    """Return the overflow of each LSH layer on the text that verified a bundle; empty if unknown."""
    from xlexport.bundles import stored_parity

    found = (stored_parity(folder) or {}).get("overflow_fraction_per_layer")
    return [float(fraction) for fraction in found or []]


ARCHITECTURE = ReformerArchitecture()
