"""Scoring on a Ray cluster of local processes: outputs, resuming, killed actors and drivers; object stores."""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import psutil
import pyarrow.parquet
import pytest

from tests.helpers.paths import GOLDEN
from xlexport.commands import execute
from xlexport.errors import WorkerError
from xlexport.ray.cluster import most_actors, reach
from xlexport.ray.dataset import columns_of
from xlexport.scoring.inputs import open_input
from xlexport.scoring.output_formats import records_table
from xlexport.scoring.score_options import Level, ScoreOptions
from xlexport.scoring.stores import Location, StoredInput, inputs_at
from xlruntime import OptionError, TextError, load

BUNDLE = GOLDEN / "post_lnorm_same_length_empty" / "bundle"
LENGTHS = (1, 30, 2, 7, 300, 90, 64, 65, 0, 128, 5)
needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed")


def write_rows(folder: Path, files: int, rows: int) -> Path:
    """Write files of documents; one of each is broken, and some have nothing to score."""
    folder.mkdir()
    text = "It was the best of times. " * 12
    for file in range(files):
        lines = [
            json.dumps({"id": f"{file}-{row}", "text": text[: LENGTHS[row % len(LENGTHS)]], "lang": "en"})
            for row in range(rows)
        ]
        lines[13] = '{"text": 5}'
        (folder / f"{file}.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-P", "-m", "xlexport", "score", str(BUNDLE), *map(str, arguments), "--threads", "1"]


def stored(path: Path) -> StoredInput:
    """Return an input at the address of a file on this disk."""
    (entry,) = inputs_at(f"file://{path}")
    assert isinstance(entry, StoredInput)
    return entry


def test_a_stored_input_is_recognized_by_size_and_time(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("{}")
    before = stored(path).digest()
    assert (stored(path).size, stored(path).repeatable, stored(path).digest()) == (2, True, before)
    path.write_text("{ }")
    assert stored(path).digest() != before
    missing = stored(tmp_path / "none.txt")
    assert missing.size is None
    with pytest.raises(FileNotFoundError):
        missing.open(None)


def test_files_in_a_store_appear_whole(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    source = tmp_path / "source"
    source.write_bytes(b"text" * 1000)
    location = Location(f"file://{tmp_path}/out").at("one")
    assert location.kind == "NotFound"
    location.write(source)
    assert (location.kind, (tmp_path / "out" / "one").read_bytes()) == ("File", b"text" * 1000)
    assert [entry.name for entry in inputs_at(f"file://{tmp_path}/out")] == [location.uri]
    assert inputs_at(f"file://{tmp_path}/out", ["*.jsonl"]) == []


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("", ["a/b/two.txt", "a/one.txt", "three.txt"]),
        ("/*.txt", ["three.txt"]),
        ("/**/t*.txt", ["a/b/two.txt", "three.txt"]),
        ("/a/*", ["a/b/two.txt", "a/one.txt"]),
        ("/?", ["a/b/two.txt", "a/one.txt"]),
        ("/three.txt", ["three.txt"]),
        ("/[!t]*.md", []),
    ],
)
def test_patterns_of_addresses_are_those_of_paths(tmp_path: Path, pattern: str, expected: list[str]) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    for name in ("a/one.txt", "a/b/two.txt", "three.txt", ".hidden", "_done.json"):
        (tmp_path / name).touch()
    found = [entry.name for entry in inputs_at(f"file://{tmp_path}{pattern}")]
    assert found == [f"file://{tmp_path}/{name}" for name in expected]


def test_the_query_of_an_address_stays_at_its_end(tmp_path: Path) -> None:
    place = Location("s3://bucket/texts?endpoint_override=localhost:1&scheme=http")
    assert (place.path, place.at("a.txt").path) == ("bucket/texts", "bucket/texts/a.txt")
    assert place.at("a.txt").uri == "s3://bucket/texts/a.txt?endpoint_override=localhost:1&scheme=http"
    assert place.at("a.txt").system is place.system
    with pytest.raises(OptionError, match="nothing://bucket/: cannot be reached"):
        Location("nothing://bucket/texts")


def test_a_stored_file_is_opened_as_on_this_machine(tmp_path: Path) -> None:
    (tmp_path / "packed").write_bytes(gzip.compress(b"one\n"))
    (tmp_path / "zero").write_bytes(b"a\0b")
    with open_input(stored(tmp_path / "packed"), None) as file:
        assert file.read() == b"one\n"
    with pytest.raises(TextError, match="zero: not a text: byte 1 is zero"):
        open_input(stored(tmp_path / "zero"), None)
    with open_input(stored(tmp_path / "zero"), None, binary=True) as file:
        assert file.read() == b"a\0b"


@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.full
def test_inputs_and_output_in_a_store_are_as_on_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], ending: str
) -> None:
    rows = write_rows(tmp_path / "in", 2, 20)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    Path(f"stored.{ending}").write_text("another file")
    options = ("--field", "text", "--id-field", "id", "--per", "word", "--threads", "1")
    alone, output = tmp_path / f"alone.{ending}", tmp_path / f"stored.{ending}"
    at = f"file://{output}"
    assert execute(["score", str(BUNDLE), str(rows), *options, "-o", str(alone)]) == 1  # some documents have no score
    assert execute(["score", str(BUNDLE), f"file://{rows}", *options, "-o", at]) == 1
    assert output.read_bytes() == alone.read_bytes()
    assert [(path.name, path.read_text()) for path in Path().iterdir()] == [(f"stored.{ending}", "another file")]
    capsys.readouterr()
    assert execute(["score", str(BUNDLE), f"file://{rows}", *options, "-o", at]) == 1
    assert "exists already. Replace it with --force" in capsys.readouterr().err
    assert execute(["score", str(BUNDLE), f"file://{rows}", *options, "-o", at, "--resume"]) == 0
    assert f"{at}: already complete" in capsys.readouterr().err


@pytest.mark.parametrize("level", get_args(Level))
@pytest.mark.parametrize("detail", [False, True])
def test_the_columns_of_a_run_are_those_of_its_records(tmp_path: Path, level: Any, detail: bool) -> None:
    text = tmp_path / "text.txt"
    text.write_text("It was | the best\nof times.\n")
    alone = tmp_path / "alone.parquet"
    wanted = ("--top", "0") if detail and level != "document" else ()
    assert execute(["score", str(BUNDLE), str(text), "--per", level, *wanted, "-o", str(alone), "--threads", "1"]) == 0
    schema = pyarrow.parquet.read_schema(alone)
    options = ScoreOptions(per=level, top=0 if wanted else None)
    found = columns_of(options, load(BUNDLE, threads=1).evaluation().values)
    kinds = {"int64": "int", "double": "float", "bool": "bool", "string": "text"}
    assert list(found.items()) == [*((field.name, kinds[str(field.type)]) for field in schema), ("error", "text")]


def test_a_cluster_that_does_not_answer_is_one_error() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))  # and does not listen
        address = f"ray://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(WorkerError, match="no Ray cluster answers"):
            reach(address)
    reach("auto")
    reach(None)


def test_actors_are_as_many_as_fit_the_machines() -> None:
    nodes = [
        {"Alive": True, "Resources": {"CPU": 5.0, "GPU": 1.0}},
        {"Alive": True, "Resources": {"CPU": 1.0}},
        {"Alive": False, "Resources": {"CPU": 64.0}},
    ]
    assert [most_actors(nodes, threads, 0) for threads in (1, 2, 5)] == [6, 2, 1]
    assert most_actors(nodes, 1, 1) == 1
    with pytest.raises(WorkerError, match="no machine of the cluster has 2 CPUs and a GPU"):
        most_actors(nodes[1:], 2, 1)


def test_a_part_without_scores_has_the_columns_of_the_others() -> None:
    table = records_table([{"document": "a", "error": "no"}], {"document": "text", "nats": "float", "error": "text"})
    assert [(field.name, str(field.type)) for field in table.schema] == [
        ("document", "string"),
        ("nats", "double"),
        ("error", "string"),
    ]


@pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="ray is installed")
def test_without_ray_the_command_says_what_to_install(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = write_rows(tmp_path / "in", 1, 20)
    status = execute(["score", str(BUNDLE), str(rows), "--field", "text", "-o", str(tmp_path / "out.csv"), "--ray"])
    assert (status, "pip install ray" in capsys.readouterr().err) == (1, True)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("-o", "out.csv", "--continuous", "--ray"), "--continuous cannot be combined with --ray"),
        (("-o", "out", "--ray"), "--ray writes a file, not a folder. Name one, such as out.parquet"),
        (("-o", "out/", "--ray"), "'out/' is the name of a folder. Give that of a file"),
        (("-o", "out.csv", "--device", "cuda:1", "--ray"), "Ray chooses the GPU of each process"),
        (("-", "-o", "out.csv", "--ray"), "--ray shares files"),
    ],
)
def test_options_that_do_not_go_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], said: str
) -> None:
    write_rows(tmp_path / "in", 1, 20)
    files = () if "-" in options else (str(tmp_path),)
    assert execute(["score", str(BUNDLE), *files, "--field", "text", *options]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.native
@needs_ray
@pytest.mark.parametrize("victim", ["actor", "driver"])
def test_the_output_is_that_of_one_machine_after_a_kill(tmp_path: Path, victim: str) -> None:
    rows, alone, output = write_rows(tmp_path / "in", 12, 80), tmp_path / "alone.csv", tmp_path / "out.csv"
    shared = (rows, "--field", "text", "--id-field", "id", "--per", "word")
    subprocess.run(command(*shared, "--processes", "1", "-o", alone), check=False, stderr=subprocess.DEVNULL)
    options = (*shared, "-o", output, "--processes", "2", "--set", "save_every=0", "--ray")
    first = subprocess.Popen(command(*options), stderr=subprocess.PIPE, text=True, start_new_session=True)
    partial, state = tmp_path / "out.csv.partial", tmp_path / "out.csv.partial.state"
    wait_for(first, state.exists)
    if victim == "actor":
        kill_an_actor()
        _, errors = first.communicate()
        assert first.returncode == 1, errors  # some documents have no score
    else:
        os.killpg(first.pid, signal.SIGKILL)  # the driver, and all of its cluster
        first.communicate()
        assert partial.exists()
        refused = subprocess.run(command(*options), capture_output=True, text=True, check=False)
        assert (refused.returncode, "Continue with --resume" in refused.stderr) == (1, True)
        other = subprocess.run(
            command(*options, "--resume", "--mem-len", "5"), capture_output=True, text=True, check=False
        )
        assert "of another run: mem_len was 12, now 5" in other.stderr
        resumed = subprocess.run(command(*options, "--resume"), capture_output=True, text=True, check=False)
        assert resumed.returncode == 1
        assert "going on after" in resumed.stderr
        assert "Traceback" not in resumed.stderr
    assert output.read_bytes() == alone.read_bytes()


def wait_for(process: subprocess.Popen[str], condition: Callable[[], bool]) -> None:
    """Wait until a condition is true, while a process runs."""
    while not condition():
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.05)


def kill_an_actor() -> None:
    """Kill the process of an actor."""
    actors = [
        process
        for process in psutil.process_iter(["cmdline"])
        if "ray::_Actor" in " ".join(process.info["cmdline"] or [])
    ]
    actors[0].kill()


@pytest.mark.native
@needs_ray
def test_whole_files_have_names_relative_to_the_folder_of_the_program(tmp_path: Path) -> None:
    (tmp_path / "pickle.py").write_text("raise SystemExit('a file of the current folder ran')\n")
    for number in range(3):
        (tmp_path / f"{number}.txt").write_text("It was the best of times. " * 9)
    outputs = []
    for way in ("--batch-size=auto", "--ray"):
        done = subprocess.run(
            command("0.txt", "1.txt", "none.txt", "2.txt", "--json", "-o", f"out{way}.jsonl", way),
            cwd=tmp_path, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert (done.returncode, "none.txt" in done.stderr) == (1, True), done.stderr
        outputs.append((tmp_path / f"out{way}.jsonl").read_bytes())
    assert outputs[0] == outputs[1]


@pytest.mark.native
@needs_ray
def test_a_dataset_becomes_rows_of_scores(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import sys, ray, ray.data\n"
        "from xlexport.ray import score_dataset\n"
        "ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)\n"
        "given = ray.data.from_items([{'id': str(i), 'text': 'It was ' * (i % 5)} for i in range(50)])\n"
        "rows = score_dataset(given, sys.argv[1], id_field='id').take_all()\n"
        "good = [row for row in rows if row['error'] is None]\n"
        "print(len(rows), len(good), sorted(row['tokens'] for row in good)[-1])\n"
    )
    ran = subprocess.run([sys.executable, program, BUNDLE], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[-1].split() == ["50", "40", "28"]
