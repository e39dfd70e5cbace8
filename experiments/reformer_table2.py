"""Table 2 of the Reformer paper: train on the duplication task with full attention and with LSH, evaluate with others.

RUNS/results.json holds the results: for each run its steps, processor seconds, bits per symbol and accuracy in training
form, and its accuracy with each attention.
"""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import torch

from experiments.running import print_rows
from xltraining.checkpoint import Checkpoint, build_model, load_checkpoint
from xltraining.data.duplication import N_TOKEN, DuplicationTask, duplication_scores, sequence_length
from xltraining.loop.train import TrainingRun
from xltraining.reformer import Reformer, ReformerConfig
from xltraining.training_config import TrainingConfig

__all__ = ["main"]

RUNS = ("full", "lsh-4", "lsh-2", "lsh-1", "lsh-4-redrawn", "lsh-2-redrawn", "lsh-1-redrawn")
COLUMNS = ("full", "lsh-8", "lsh-4", "lsh-2", "lsh-1")
PAPER = {  # per cent, by COLUMNS
    "full": (100.0, 94.8, 92.5, 76.9, 52.5),
    "lsh-4": (0.8, 100.0, 99.9, 99.4, 91.9),
    "lsh-2": (0.8, 100.0, 99.9, 98.1, 86.8),
    "lsh-1": (0.8, 99.9, 99.6, 94.8, 77.9),
}
RESULTS = "results.json"
CHUNK_LENGTH, BATCH_SIZE = 64, 8
EXAMPLES = 64  # on which accuracies are measured


def config_of(name: str, word_length: int) -> ReformerConfig:
    """Return the paper's configuration: one layer, d_model = d_ff = 256, 4 heads, and 2 buckets for each chunk."""
    length = sequence_length(word_length)
    kind, _, rest = name.partition("-")
    buckets = (max(2, 2 * length // CHUNK_LENGTH // 2 * 2),)
    return ReformerConfig(
        n_token=N_TOKEN, d_model=256, n_head=4, d_head=64, d_inner=256, attn_layers=(kind,), n_buckets=buckets,
        n_hashes=int(rest[0]) if rest else 1, chunk_length=CHUNK_LENGTH, tgt_len=length, mem_len=length,
        position="absolute", max_positions=length, dropout=0.0, redraw_hashes=name.endswith("-redrawn"),
    )  # fmt: skip


def train(name: str, config: ReformerConfig, training: TrainingConfig, out: Path, until: float, seconds: float) -> Any:
    """Train until the held-out accuracy reaches `until` or the processor time `seconds`; return the results to keep."""
    torch.manual_seed(training.seed)
    task = DuplicationTask(training.word_length, training.batch_size, training.seed)
    run = TrainingRun(config, training, task, out / name, files={})
    if run.checkpoint.exists():
        run.restore()
    learned, started = threading.Event(), time.process_time()

    def stop_when_learned(step: int) -> None:
        if run.log.last.get("valid_accuracy", 0.0) >= until or time.process_time() - started > seconds:
            learned.set()

    stop_when_learned(run.step)
    run.go(learned, report=lambda line: click.echo(f"{name}: {line}", err=True), on_step=stop_when_learned)
    valid = {key: run.log.last[key] for key in ("valid_bits_per_symbol", "valid_accuracy") if key in run.log.last}
    return {"steps": run.step, "processor_seconds": time.process_time() - started, **valid}


def evaluated_with(checkpoint: Checkpoint, column: str) -> Reformer:
    """Return the trained model with another attention; full and LSH attention share all weights, except rotations."""
    config = checkpoint.config
    assert isinstance(config, ReformerConfig)
    kind, _, rounds = column.partition("-")
    if kind == config.attn_layers[0] == "lsh":
        model = build_model(checkpoint)
        assert isinstance(model, Reformer)
        return model.with_evaluation(n_hashes=int(rounds))
    other = Reformer(replace(config, attn_layers=(kind,), n_hashes=int(rounds or 1)))
    shared = {name: tensor for name, tensor in checkpoint.state_dict.items() if not name.endswith("rotations")}
    missing, unexpected = other.load_state_dict(shared, strict=False)
    assert not unexpected and all(name.endswith("rotations") for name in missing)
    return other.eval()


def evaluate(checkpoint: Checkpoint, task: DuplicationTask) -> dict[str, float]:
    """Measure accuracy with each attention, in per cent, on examples that no run trains on."""
    tokens, targets = task.held_out_examples(EXAMPLES)
    return {
        column: 100 * duplication_scores(evaluated_with(checkpoint, column), tokens, targets)[1] for column in COLUMNS
    }


def print_table(results: dict[str, Any]) -> None:
    """Print accuracies in per cent, by training and evaluation attention, with the paper's figures in brackets."""
    rows = []
    for name in (name for name in RUNS if name in results):
        paper, accuracies = PAPER[name.removesuffix("-redrawn")], results[name]["evaluated"]
        cells = (f"{accuracies[column]:.1f} ({theirs:.1f})" for column, theirs in zip(COLUMNS, paper, strict=True))
        rows.append((name, *cells, f"{results[name]['steps']:,}"))
    print_rows(("trained", *COLUMNS, "steps"), rows)


@click.command()
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder for runs and results.")
@click.option("--word-length", default=255, show_default=True, help="Symbols of a word; the paper's task has 511.")
@click.option("--steps", default=1500, show_default=True, help="Most updates of a run.")
@click.option("--seconds", default=300.0, show_default=True, help="Most processor seconds of a run.")
@click.option("--until", default=0.999, show_default=True, help="Held-out accuracy at which a run ends.")
@click.option("--threads", default=1, show_default=True)
@click.option("--device", default="cpu", show_default=True)
@click.option("--only", multiple=True, type=click.Choice(RUNS), help="Only this run; may be repeated.")
@click.option("--table", "table_only", is_flag=True, help="Print the results so far; do not train.")
def main(
    out: Path,
    word_length: int,
    steps: int,
    seconds: float,
    until: float,
    threads: int,
    device: str,
    only: tuple[str, ...],
    table_only: bool,
) -> None:
    """Table 2: accuracy on the duplication task, by the attention of training and of evaluation.

    Each run stops when it has learned the task, or at its limit of time or steps; the same command resumes it. The
    paper's own size needs a GPU: --word-length 511 --steps 150000 --seconds 1e9 --until 2 --device cuda.
    """
    torch.set_num_threads(threads)
    training = TrainingConfig(
        task="duplication", word_length=word_length, steps=steps, batch_size=BATCH_SIZE, learning_rate=2e-3,
        min_lr_ratio=1.0,  # a run may end at any step
        warmup_steps=50, seed=1, eval_every=25, checkpoint_every=50, device=device,
    )  # fmt: skip
    out.mkdir(parents=True, exist_ok=True)
    file = out / RESULTS
    results = json.loads(file.read_text("utf-8")) if file.exists() else {}
    for name in () if table_only else (only or RUNS):
        result = train(name, config_of(name, word_length), training, out, until, seconds)
        result["processor_seconds"] += results.get(name, {}).get("processor_seconds", 0.0)
        task = DuplicationTask(word_length, BATCH_SIZE, training.seed)
        results[name] = {**result, "evaluated": evaluate(load_checkpoint(out / name / "checkpoint.pt"), task)}
        file.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
        click.echo(f"{name} is done: {file}", err=True)
    print_table(results)
