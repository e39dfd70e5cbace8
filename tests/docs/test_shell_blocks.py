"""Run the shell blocks of README.md and docs/, and compare what they print with what the pages show.

Every fenced block is run, unless `NOT_RUN` gives the reason why it cannot be. A new block is therefore run, and fails
if its page does not show what it prints. Commands of a page run in order in one folder (`conftest.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable

import click
import pytest

from tests.helpers.command_table import all_commands
from tests.helpers.pages import PAGES, Block, blocks_of
from tests.helpers.paths import SHARED_DATA

INSTALLS = "installs packages: .ci/run does it"
SYNOPSIS = "an outline of options with names to replace: its options are checked below"
OTHER_FILES = "needs checkpoints that are not in the repository: tests/checkpoints converts such"
OTHER_TEXTS = "output for texts or models that are not in the repository"
MINUTES = "takes many minutes"
DRAWING = "a drawing or a list, no command"

NOT_RUN = {
    ("README.md", "python -m venv .venv && . .venv/bin/activate"): INSTALLS,
    ("README.md", "converted           checkpoint.pt in 8 s"): "output of demo: tests/commands/test_train_and_demo.py",
    ("README.md", "pip install -e '.[cpu,convert,train,dev]' -c constraints.txt && pytest"): INSTALLS,
    ("docs/bench.md", "xlexport bench BUNDLE [--against CHECKPOINT] [--purpose score|generate] [--profile] [--json]"): (
        SYNOPSIS
    ),
    ("docs/bench.md", "tokens/s      7,643"): "output of bench on a busy machine: tests/commands/test_bench.py",
    ("docs/bench.md", "step         score, segment 80, memory 2,100, batch 1"): OTHER_TEXTS,
    ("docs/bench.md", "$ xlexport bench BUNDLE --segment-len 1,16,80,512 --mem-len 2100 --threads 1"): OTHER_TEXTS,
    ("docs/c_interface.md", "cmake -S runtime/c -B build && cmake --build build --parallel 4"): (
        "tests/native/test_c_programs.py builds it"
    ),
    ("docs/platforms.md", "pip install -r requirements/native.txt     # zig, in the environment of the tests"): (
        "it downloads gigabytes: tests/test_platforms.py"
    ),
    (
        "docs/platforms.md",
        "cmake -S runtime/c -B build -DCMAKE_SYSTEM_NAME=Windows -DCMAKE_SYSTEM_PROCESSOR=AMD64 \\",
    ): "scripts/platforms compiles with MinGW",
    ("docs/checkpoints.md", "xlexport inspect model.pt                       # what is it, and what is missing?"): (
        SYNOPSIS
    ),
    ("docs/checkpoints.md", "$ xlexport inspect model.pt"): OTHER_FILES,
    (
        "docs/corpus.md",
        "xlexport score bundle corpus/ --field text -o scores --ray  # this machine",
    ): "needs Ray, and a cluster: tests/ray runs it on local processes",
    ("docs/corpus.md", 'dataset = ray.data.read_parquet("s3://texts/corpus")'): "needs Ray: tests/ray runs it",
    ("docs/checkpoints.md", "$ cat settings.json"): OTHER_FILES,
    (
        "docs/checkpoints.md",
        "xlexport convert reformer_folder -o bundle                                       # Hugging Face",
    ): OTHER_FILES,
    (
        "docs/context.md",
        "xlexport context BUNDLE FILES… [--beside BUNDLE]… [--lengths N,M…] [--plot FILE.png|svg] [--json]",
    ): SYNOPSIS,
    ("docs/context.md", "$ xlexport context transformer_xl.bundle alice29.txt --plot context.png"): MINUTES,
    (
        "docs/context.md",
        "$ head -c 30000 alice29.txt | xlexport context transformer_xl.bundle - --beside reformer.bundle \\",
    ): (MINUTES),
    ("docs/context.md", "xlexport plot bits BUNDLE FILES… -o bits.png [--window N]"): SYNOPSIS,
    ("docs/context.md", "xlexport plot attention BUNDLE CHECKPOINT [FILE] -o attention.png [--tokens N]"): SYNOPSIS,
    (
        "docs/context.md",
        "$ xlexport plot attention transformer_xl.bundle checkpoint.pt alice29.txt -o attention.png",
    ): MINUTES,
    ("docs/cuda.md", "pip install '.[gpu]'    # in a clone of the repository"): "needs a GPU",
    ("docs/cuda.md", "xlexport inspect BUNDLE --device cuda"): "needs a GPU",
    ("docs/cuda.md", "xlexport convert checkpoint.pt -o bundle --set cuda_graphs=true"): "needs a GPU",
    ("docs/cuda.md", "pip install '.[gpu,convert,train,dev]'"): "needs a GPU",
    (
        "docs/api.md",
        "pip install '.[cpu]'    # in a clone: numpy, ONNX Runtime, safetensors, tqdm; no PyTorch, no ONNX",
    ): (INSTALLS),
    ("docs/duplication.md", "python -m experiments reformer_table2 --out RUNS"): "trains for hours",
    (
        "docs/duplication.md",
        "python -m experiments reformer_table2 --out RUNS --word-length 511 --steps 150000 --seconds 1e9 --until 2 "
        "--device cuda",
    ): "trains for hours",
    ("docs/images.md", "pip download --no-deps scikit-image==0.26.0 scikit-learn==1.9.1 -d wheels"): (
        "downloads packages"
    ),
    (
        "docs/images.md",
        "cd photos",
    ): "needs photographs and trains for an hour: tests/commands/test_picture.py trains on one",
    ("docs/images.md", "xlexport picture images.bundle chelsea.png coffee.png -o images.png --seed 0"): (
        "needs the trained model: tests/commands/test_picture.py draws with a small one"
    ),
    ("docs/javascript.md", "npm ci && npm run build                               # in runtime/js"): (
        "tests/web/test_javascript.py builds the package and installs it"
    ),
    ("docs/native.md", "pip install ./runtime/c"): INSTALLS,
    ("docs/native.md", "ok     kernels            xlexport-ops 0.1.0 (avx512): …/xlexport_ops/libxlexport_ops.so"): (
        "output of doctor: tests/native/test_choosing_kernels.py"
    ),
    ("docs/native.md", "python runtime/c/build_wheels.py -o dist"): "tests/native/test_packaging.py",
    ("docs/native.md", "python runtime/c/build_library.py -o libxlexport_ops.so --compiler g++"): (
        "needs a C++ compiler: tests/native builds the library"
    ),
    (
        "docs/protocols.md",
        "xlexport evaluate BUNDLE test.txt --segment-len 80 --mem-len 2100 --set clamp_len=820 --set same_length=true",
    ): SYNOPSIS,
    (
        "docs/quantization.md",
        "xlexport quantize BUNDLE -o OUT --dtype int8|weight-int8|weight-int4|float16 [--text FILE…]",
    ): (SYNOPSIS),
    ("docs/quantization.md", "$ xlexport quantize bundle -o small --dtype weight-int4"): MINUTES,
    ("docs/reformer.md", "xlexport convert CHECKPOINT -o bundle && xlexport inspect bundle"): SYNOPSIS,
    ("docs/reformer.md", "one round, chunk_length 4; tokens sorted by bucket, then by position"): DRAWING,
    ("docs/reformer.md", "xlexport train FILES… --valid HELD_OUT --architecture reformer -o run"): SYNOPSIS,
    (
        "docs/reformer.md",
        "xlexport train --architecture reformer --task duplication --set training.word_length=255 -o run \\",
    ): "trains for hours",
    (
        "docs/report.md",
        "xlexport report BUNDLE FILES… [-o PAGE.html] [--bos TOKEN] [--with BUNDLE2] [--field NAME [--keep NAME,NAME] "
        "[--context-field NAME]…]",
    ): SYNOPSIS,
    ("docs/report.md", "xlexport report BUNDLE items.jsonl --field sentence --with BUNDLE2"): SYNOPSIS,
    (
        "docs/scoring.md",
        "3 documents, 28,000 tokens: 2.1304 bits per byte together, 2.1460 ± 0.0137 a document (mean and standard "
        "error), 2,705 tokens/s",
    ): OTHER_TEXTS,
    ("docs/start_without_python.md", "$ npm install --ignore-scripts onnxruntime-node"): (
        "needs Node: tried by hand with Node 20 and onnxruntime-node"
    ),
    ("docs/serving.md", "pip install '.[cpu,serve]' -c constraints.txt"): INSTALLS,
    (
        "docs/serving.md",
        "$ post() { curl -s http://127.0.0.1:8000/v1/$1 -H 'content-type: application/json' -d \"$2\"; }",
    ): "needs a server: tests/serve/test_http.py calls all routes",
    ("docs/evaluating.md", "pip install '.[cpu,lm-eval]' -c constraints.txt"): INSTALLS,
    ("docs/evaluating.md", "pip install '.[cpu,serve,lm-eval]' -c constraints.txt"): INSTALLS,
    ("docs/signing.md", "pip install '.[release]' -c constraints.txt"): INSTALLS,
    ("docs/torch_formats.md", "xlexport convert checkpoint.pt --to torchscript -o model.bundle"): (
        "tests/export/test_torch_formats.py converts to both"
    ),
    ("docs/torch_formats.md", "xlexport verify model.bundle checkpoint.pt --trust"): (
        "tests/export/test_torch_formats.py verifies and scores both"
    ),
    (
        "docs/web.md",
        "xlexport web BUNDLE -o SITE [--serve] [--port PORT] [--title TITLE] [--runtime FOLDER] [--force]",
    ): (SYNOPSIS),
    ("docs/web.md", "pip install ./runtime/js"): INSTALLS,
    (
        "docs/training_words.md",
        "torchrun --nproc-per-node 2 -m xlexport train data -o run --set training.micro_batches=4",
    ): "tests/training/test_processes.py trains in two processes",
    ("docs/translating.md", "python -m experiments.numbers pairs --out pairs"): MINUTES,
    ("docs/vocabularies.md", "xlexport convert model.pt -o bundle --tokenizer cache.pt"): OTHER_FILES,
    (
        "docs/vocabularies.md",
        "Vocabulary of 267,735 words, between white space, in text that is tokenized already, <eos> after every "
        "line, <unk> for what is unknown.",
    ): OTHER_FILES,
    (
        "docs/vocabularies.md",
        '{"format": "xlexport vocabulary", "kind": "words", "lower_case": false, "unk": "<unk>", "line_start": null,',
    ): DRAWING,
}
OTHER_LANGUAGES = {
    "console": "tests/test_signing.py",
    "python": "tests/docs/test_python_blocks.py",
    "json": "tests/runtime/test_bundle_format_page.py",
    "c": "tests/native/test_c_programs.py",
    "cpp": "tests/native/test_c_programs.py",
    "cmake": "tests/native/test_c_programs.py",
    "js": "tests/web/test_javascript.py",
    "r": "tried by hand with R 4.2 and lme4 1.1",
    "toml": "tests/prepare/test_prepare.py",
    "yaml": "tests/harness/test_harness.py",  # the same task
    "{eval-rst}": "scripts/docs",
    "{toctree}": "scripts/docs",
}

# Output that depends on the machine and is not compared.
MASKS = (
    (r"[\d,.]+ tokens/s", "<speed>"),
    (r"(?m)^((?:eager )?tokens/s +).*", r"\1<speed>"),
    (r"[-+]?\b\d(?:\.\d+)?e[-+]\d\d\b", "<difference by rounding>"),
    (r"(growth of the difference along the text +|error against float64 .*, ratio )[\d.]+", r"\1<ratio by rounding>"),
    (r"(?m)^(kernels +).*", r"\1<what is installed>"),
)
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
CLOSE = 1e-4  # another processor sums float32 in another order: 4 digits of a score agree


def masked(text: str) -> list[str]:
    """Return the lines with single spaces, and without output that depends on the machine."""
    for pattern, instead in MASKS:
        text = re.sub(pattern, instead, text)
    return [re.sub(r" +", " ", line.rstrip()) for line in text.splitlines()]


def close(shown: str, printed: str) -> bool:
    """Return whether two numbers agree: integers exactly, others to the digits shown."""
    if "." not in shown or "." not in printed:
        return shown == printed
    value, other = (float(number.replace(",", "")) for number in (shown, printed))
    unit = 10.0 ** -len(shown.partition(".")[2])
    return abs(value - other) <= max(unit, CLOSE * abs(value)) * (1 + 1e-9)


def same_line(shown: str, printed: str) -> bool:
    """Return whether a line was printed as it is shown, in which `…` replaces any text."""
    if "…" in shown:
        start, _, end = shown.partition("…")
        return printed.startswith(start) and printed.endswith(end) and len(printed) >= len(shown) - 1
    if NUMBER.sub("#", shown) != NUMBER.sub("#", printed):
        return False
    return all(map(close, NUMBER.findall(shown), NUMBER.findall(printed)))


def same_output(shown: list[str], printed: list[str]) -> bool:
    """Return whether these lines were printed; a line `…` replaces any number of lines."""
    if not shown:
        return not printed
    if shown[0] == "…":
        return any(same_output(shown[1:], printed[skipped:]) for skipped in range(len(printed) + 1))
    return bool(printed) and same_line(shown[0], printed[0]) and same_output(shown[1:], printed[1:])


def shell_blocks(page: str) -> list[Block]:
    """Return the blocks of a page that are neither of another language nor in the table."""
    return [block for block in blocks_of(page) if not block.language and block.key not in NOT_RUN]


@pytest.mark.full
@pytest.mark.parametrize("page", [page for page in PAGES if shell_blocks(page)])
def test_commands_print_what_the_page_shows(page: str, run_command: Callable[[str], str]) -> None:
    commands = [command for block in shell_blocks(page) for command in block.commands()]
    if any("alice29.txt" in command.line for command in commands) and not (SHARED_DATA / "alice29.txt").is_file():
        pytest.skip("the texts of ../shared/data are not here")
    for command in commands:
        printed = run_command(command.line)
        if command.shown:
            assert same_output(masked(command.shown), masked(printed)), f"{page}: {command.line}\n{printed}"


def test_table_has_only_blocks_that_exist() -> None:
    blocks = [block for page in PAGES for block in blocks_of(page)]
    assert NOT_RUN.keys() - {block.key for block in blocks} == set()
    assert {block.language for block in blocks} <= {"", *OTHER_LANGUAGES}


def test_blocks_that_are_not_run_name_commands_and_options_that_exist() -> None:
    lines = [
        line for page in PAGES for block in blocks_of(page) if not block.language for line in block.text.splitlines()
    ]
    found = [
        (command, option)
        for line in lines
        for command, rest in re.findall(r"^(?:\$ )?xlexport (plot \w+|\w+)(.*?)(?:  #|$)", line)
        for option in re.findall(r"(?<![\w-])--?[a-z][\w-]*", rest)
    ]
    assert len(found) > 50
    commands = all_commands()
    plot = commands["plot"]
    assert isinstance(plot, click.Group)
    commands |= {f"plot {name}": command for name, command in plot.commands.items()}
    for command, option in found:
        known = [
            name for parameter in commands[command].params for name in (*parameter.opts, *parameter.secondary_opts)
        ]
        assert option in known, (command, option)


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("a 2.5193 bits, 260 tokens/s", "a 2.5194 bits, 13,674 tokens/s", True),
        ("a 2.5193 bits", "a 2.5293 bits", False),
        ("45 tokens", "46 tokens", False),
        ("45 tokens", "45 tokens\nand more", False),
        ("…\nequal   yes", "some lines\nof text\nequal yes", True),
        ("…\nequal   yes", "equal no", False),
        ("config  n_layer 2, …", "config n_layer 2, n_head 3", True),
        ("config  n_layer 2, …", "config n_layer 3, n_head 3", False),
        ("difference 2.24e-05 nats", "difference 1.1e-07 nats", True),
    ],
)
def test_comparison_can_fail(shown: str, printed: str, same: bool) -> None:
    assert same_output(masked(shown), masked(printed)) is same
