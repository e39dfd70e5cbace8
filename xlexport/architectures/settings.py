"""What an architecture's configuration says of how it is evaluated, and what a conversion may choose otherwise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from xlexport.errors import ExportError
from xlruntime.evaluation import EvaluationRules, Ring, Setting

if TYPE_CHECKING:
    from xltraining.reformer import Reformer

__all__ = ["as_converted", "check_choices", "layer_kinds", "own_evaluation", "same_model", "summary"]

LONGEST_DOCUMENT = 65_536  # under rule chunk, where positions have no end
REFORMER_ONLY = {"rule": "--rule", "n_hashes": "--n-hashes"}
TRANSFORMER_XL_ONLY = {"clamp_len": "--clamp-len", "same_length": "--same-length", "cuda_graphs": "--cuda-graphs"}


def own_evaluation(architecture: str, config: Mapping[str, Any]) -> EvaluationRules:
    """How a model is evaluated unless the user chooses otherwise."""
    if architecture == "reformer":
        whole = config["rule"] == "chunk"
        longest = config["max_positions"] or LONGEST_DOCUMENT
        settings = {} if whole else {"mem_len": _mem_len(config["mem_len"])}
        if "lsh" in config["attn_layers"]:
            rounds = config["n_hashes"]
            settings["n_hashes"] = Setting(
                "integer",
                rounds,
                "rounds of hashing, at most those that were exported (convert --n-hashes)",
                input=None if whole else "n_hashes",
                minimum=rounds if whole else 1,
                maximum=rounds,
            )
        return EvaluationRules(
            segment_len=longest if whole else config["tgt_len"],
            settings=settings,
            rings={} if whole else {"capacity": Ring("mem_len", window_extra=1, length=None)},
            max_positions=config["max_positions"] or None,
            whole=whole,
        )
    return EvaluationRules(
        segment_len=config["tgt_len"],
        settings={
            "mem_len": _mem_len(config["mem_len"]),
            "clamp_len": Setting(
                "integer",
                config["clamp_len"] if config["clamp_len"] > 0 else -1,
                "largest distinct distance, in tokens",
                input="clamp_len",
                minimum=1,
                off=-1,
            ),
            "same_length": Setting("boolean", config["same_length"], "whether every token sees equally many others"),
        },
        rings={"capacity": Ring("mem_len", same_length="same_length", window_extra=config["window_extra"])},
        first_memory=config["first_memory"],
    )


def _mem_len(default: int) -> Setting:
    return Setting("integer", default, "rows of memory that a layer keeps", input="mem_len", minimum=1)


def check_choices(architecture: str, config: Mapping[str, Any], choices: Mapping[str, Any]) -> None:
    """Refuse what an architecture does not have.

    Args:
        choices: what the user chose, by name; None is no choice.

    Raises:
        ExportError: names every such option.
    """
    reformer = architecture == "reformer"
    wrong = dict(TRANSFORMER_XL_ONLY if reformer else REFORMER_ONLY)
    if reformer and "lsh" not in config["attn_layers"]:
        wrong |= REFORMER_ONLY
    if reformer and (choices.get("rule") or config["rule"]) == "chunk":
        wrong["mem_len"] = "--mem-len"  # nothing is carried
    given = [option for name, option in wrong.items() if choices.get(name) is not None]
    if given:
        raise ExportError(f"{', '.join(given)}: nothing that this {architecture} model has. Leave it out.")


def as_converted(model: Reformer, config: Mapping[str, Any]) -> Reformer:
    """A trained Reformer under the rule and with the rounds of hashing of a bundle's configuration; weights are shared.

    Raises:
        ConfigError: it has no such rounds, or its sizes do not go with the rule.
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


def same_model(architecture: str, config: Mapping[str, Any], converted: Mapping[str, Any]) -> bool:
    """Whether a bundle's configuration is that of a checkpoint, but for what a conversion may choose."""
    choices = REFORMER_ONLY if architecture == "reformer" else {}
    return dict(config) == dict(converted) | {name: config.get(name) for name in choices}


def summary(architecture: str, config: Mapping[str, Any]) -> str:
    """The sizes of a model in words, for the README of its bundle."""
    if architecture != "reformer":
        return f"{config['n_layer']} layers, d_model {config['d_model']}, {config['n_head']} heads"
    sizes = f"d_model {config['d_model']}, {config['n_head']} heads of {config['d_head']}"
    hashing = ""
    if "lsh" in config["attn_layers"]:
        buckets = "×".join(map(str, config["n_buckets"]))
        hashing = (
            f", LSH attention by rule {config['rule']}, {config['n_hashes']} rounds of {buckets} buckets, "
            f"chunks of {config['chunk_length']}"
        )
    return f"{layer_kinds(config)}, {sizes}{hashing}"


def layer_kinds(config: Mapping[str, Any]) -> str:
    """How many layers of which kind a Reformer has."""
    kinds = Counter(config["attn_layers"])
    return f"{len(config['attn_layers'])} layers ({', '.join(f'{count} {kind}' for kind, count in kinds.items())})"
