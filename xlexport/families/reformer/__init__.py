"""Reformer: LSH and local attention in reversible layers (Kitaev et al. 2020)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from xlexport.errors import ExportError
from xlexport.families.base import Architecture
from xlexport.families.step import FixedSizes, Step
from xltraining.config_fields import Option

if TYPE_CHECKING:
    import numpy.typing as npt
    from torch import Tensor

    from xlexport.families.reformer.describe import ReformerDescription
    from xlexport.families.reformer.workload import ReformerWorkload
    from xlruntime.evaluation import EvaluationRules, EvaluationSettings
    from xlruntime.memory import Memory
    from xltraining.reformer import LSHTrace, Reformer, ReformerMemory

__all__ = ["ARCHITECTURE", "ReformerArchitecture"]

LONGEST_DOCUMENT = 65_536  # if it is read in one step and positions have no end
LSH_SCOPE = "Reformers with LSH attention"


class ReformerArchitecture(Architecture):
    """All code and constants that depend on the Reformer."""

    name = "reformer"
    title = "Reformer"
    sizes = (
        *("n_token", "attn_layers", "n_head", "d_head", "d_model", "d_inner", "rule", "n_hashes", "n_buckets"),
        *("chunk_length", "local_chunk_length", "local_chunks_before", "streams"),
    )
    gives_buckets = True
    evaluation_options = (
        Option(
            "n_hashes", "integer", "Rounds of hashing, at most as many as the bundle has.", minimum=1, scope=LSH_SCOPE
        ),
    )
    conversion_options = (
        Option(
            "rule",
            "choice",
            "Rule of LSH attention.",
            choices=("band", "paper", "chunk"),
            scope=LSH_SCOPE,
            common=True,
        ),
        Option(
            "n_hashes",
            "integer",
            "Rounds of hashing to export; scoring can choose fewer.",
            minimum=1,
            scope=LSH_SCOPE,
        ),
    )
    converted_fields = ("rule", "n_hashes", "reads_last")  # older checkpoints lack the last one

    def description(self) -> ReformerDescription:
        """Return what people read about a model."""
        from xlexport.families.reformer.describe import ReformerDescription

        return ReformerDescription()

    def workload(self) -> ReformerWorkload:
        """Return what a step computes and reads."""
        from xlexport.families.reformer.workload import ReformerWorkload

        return ReformerWorkload()

    def evaluation(self, config: Mapping[str, Any]) -> EvaluationRules:
        """Declare the rounds of hashing, and under rule `band` the memory length.

        Under other rules a document is one step, so no memory is kept.
        """
        from xlruntime.evaluation import EvaluationRules, Ring, Setting

        full_document = _reads_full_documents(config, {})
        settings = {}
        if not full_document:
            meaning = "rows of memory that a layer keeps"
            settings["mem_len"] = Setting(config["mem_len"], meaning, minimum=1)
        if "lsh" in config["attn_layers"]:
            rounds = config["n_hashes"]
            settings["n_hashes"] = Setting(
                rounds,
                "rounds of hashing, at most those that were exported (convert --set n_hashes)",
                minimum=rounds if full_document else 1,
                maximum=rounds,
            )
        longest = config["max_positions"] or LONGEST_DOCUMENT
        return EvaluationRules(
            segment_len=longest if full_document else config["tgt_len"],
            settings=settings,
            rings={} if full_document else {"capacity": Ring(rows=(1, 0, 0), slots=(1, 1, 0), window=(1, 0, 1))},
            max_positions=config["max_positions"] or None,
            full_document=full_document,
            bidirectional=full_document and config.get("reads_last", False),  # older checkpoints lack it
        )

    def build_step(self, model: Reformer) -> Step:
        """Return the step module."""
        from xlexport.families.reformer.step import ReformerStep

        return ReformerStep(model)

    def build_fixed_step(self, model: Reformer, fixed: FixedSizes) -> Step:
        """Return the step module on windows."""
        from xlexport.families.reformer.step import ReformerStep

        return ReformerStep(model, fixed)

    def available(self, config: Mapping[str, Any], choices: Mapping[str, Any]) -> Collection[str]:
        """Return the names of the options that this model has; models without LSH layers have none for hashing."""
        names = {"segment_len"}
        if not _reads_full_documents(config, choices):
            names.add("mem_len")
        return names | {"rule", "n_hashes"} if "lsh" in config["attn_layers"] else names

    def kind(self, config: Mapping[str, Any], choices: Mapping[str, Any]) -> str:
        """Return the kind of a model: "a Reformer" with the properties that decide which options it has."""
        rule = f" of rule {choices.get('rule') or config['rule']}" if _reads_full_documents(config, choices) else ""
        return f"a Reformer{rule}{'' if 'lsh' in config['attn_layers'] else ' without LSH attention'}"

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

    def configured(
        self, model: Reformer, config: Mapping[str, Any], evaluation: EvaluationSettings | None = None
    ) -> Reformer:
        """Return a trained model under a configuration's rule, rounds of hashing, and a bundle's settings.

        Raises:
            ConfigError: the model cannot have that many rounds, or its sizes do not fit the rule.
        """
        import torch

        from xltraining.reformer import Reformer

        if "lsh" in model.config.attn_layers and model.config.n_hashes != config["n_hashes"]:
            model = model.with_evaluation(n_hashes=config["n_hashes"])
        if model.config.rule != config["rule"]:
            with torch.device("meta"):
                other = Reformer(replace(model.config, rule=config["rule"]))
            other.load_state_dict(model.state_dict(), assign=True)
            model = other.eval()
        if evaluation is None:
            return model
        return model.with_evaluation(mem_len=evaluation.most_rows or None, n_hashes=evaluation.get("n_hashes"))

    def in_float64(self, model: Reformer) -> Reformer | None:
        """Return a copy in float64, or None under rule `chunk`, which is defined in float32.

        There a query that sees only its own key has a score of -1e5, whose steps of 1/128 are part of the result.
        """
        chunked = model.config.rule == "chunk" and "lsh" in model.config.attn_layers
        return None if chunked else super().in_float64(model)

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
        newest: tuple[Any, ...] = (slice(-S, None), 0)  # of windows
        slots = [(memory.offset - S + step) % memory.capacity for step in range(S)]
        buckets: list[Tensor | None] = []
        for layer, kind in enumerate(model.config.attn_layers):
            if kind != "lsh":
                buckets.append(None)
                continue
            if model.config.whole_document:
                ids = outputs[f"bucket_{layer}"]
            else:
                entry = entries[f"memory_bucket_{layer}"]
                ids = memory.array(entry)[(..., *newest) if entry.layout == "window" else (..., slots)]
            buckets.append(torch.from_numpy(ids[:, :, : model.config.n_hashes].astype("int64")))
        return buckets

    def project_memory(
        self, model: Reformer, memory: ReformerMemory, newest: int | None = None
    ) -> Iterable[tuple[str, Tensor]]:
        """Return the keys and values of normalised hidden states, and the bucket ids."""
        from xlexport.families.reformer.step import project_memory

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


def _require_step_graphs(config: Mapping[str, Any]) -> None:
    """Raise an error for a model that only serves as a comparison in training."""
    part = "residual connections of one stream" if config.get("residual", "reversible") != "reversible" else ""
    if "separate" in config["attn_layers"]:
        part = "layers with separate queries and keys"
    if part:
        raise ExportError(
            f"the Reformer has {part}, which are for comparisons in training and have no step graphs.",
            hint="Train with residual reversible and with layers of local, lsh and full.",
        )


def _reads_full_documents(config: Mapping[str, Any], choices: Mapping[str, Any]) -> bool:
    """Return whether each document is one step, so that no memory is carried."""
    return bool((choices.get("rule") or config["rule"]) != "band")


ARCHITECTURE = ReformerArchitecture()
