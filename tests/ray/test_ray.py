"""Scoring on a Ray cluster of local processes: rows, resuming, killed actors and drivers."""

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
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet
import pytest

from tests.helpers.paths import GOLDEN
from xlexport.choices import LEVELS
from xlexport.commands import run
from xlexport.errors import WorkerError
from xlexport.ray.job import columns_of, most_actors, reach
from xlexport.ray.places import File, Place, files_at, parts_of
from xlexport.scoring.inputs import Reading
from xlexport.scoring.output_formats import records_table
from xlexport.scoring.run_options import RunOptions
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


def rows_in(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the rows of a folder of JSON lines by document."""
    rows = [json.loads(line) for file in folder.glob("part-*.jsonl") for line in file.read_text().splitlines()]
    found = {row["document"]: row for row in rows}
    assert len(found) == len(rows)
    return found


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "xlexport", "score", str(BUNDLE), *map(str, arguments), "--threads", "1"]


def test_a_part_depends_on_its_file_alone(tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "in", 1, 40) / "0.jsonl"
    reading = Reading(field="text")
    file = File("rows", str(rows), 3)
    parts = list(parts_of(file, reading, 1000))
    assert [part.name for part in parts] == [f"part-0000003-{number:07}" for number in range(len(parts))]
    assert len(parts) > 3
    assert sum(len(part.rows or ()) for part in parts) == 40
    assert parts == list(parts_of(file, reading, 1000))


def test_a_file_that_does_not_exist_is_an_error_before_any_work(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("{}")
    file = File("rows", str(path), 0)
    before = file.identity()
    path.write_text("{ }")
    assert file.identity() != before
    path.unlink()
    with pytest.raises(TextError, match="rows: no such file"):
        file.identity()


def test_places_are_read_and_written_whole(tmp_path: Path) -> None:
    folder = Place(str(tmp_path / "out"))
    assert (folder.kind, folder.names()) == ("nothing", [])
    folder.make_folder()
    folder.at("one").write(b"text")
    assert (folder.kind, folder.names(), folder.at("one").read()) == ("folder", ["one"], b"text")
    (tmp_path / "out" / "_run.json").write_text("{}")
    assert files_at(f"file://{tmp_path}/out") == [f"file://{tmp_path}/out/one"]
    assert files_at(f"file://{tmp_path}/out", ["*.jsonl"]) == []


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
    assert files_at(f"file://{tmp_path}{pattern}") == [f"file://{tmp_path}/{name}" for name in expected]


def test_the_query_of_an_address_stays_at_its_end(tmp_path: Path) -> None:
    place = Place("s3://bucket/texts?endpoint_override=localhost:1&scheme=http")
    assert (place.path, place.at("a.txt").path) == ("bucket/texts", "bucket/texts/a.txt")
    assert place.at("a.txt").uri == "s3://bucket/texts/a.txt?endpoint_override=localhost:1&scheme=http"
    assert place.at("a.txt").system is place.system
    with pytest.raises(OptionError, match="nothing://bucket/: cannot be reached"):
        Place("nothing://bucket/texts")


def test_a_file_on_a_place_is_opened_as_on_one_machine(tmp_path: Path) -> None:
    (tmp_path / "packed").write_bytes(gzip.compress(b"one\n"))
    (tmp_path / "zero").write_bytes(b"a\0b")
    with Place(str(tmp_path / "packed")).open("packed", binary=False) as file:
        assert file.read() == b"one\n"
    with pytest.raises(TextError, match="zero: not a text: byte 1 is zero"):
        Place(str(tmp_path / "zero")).open("zero", binary=False)
    with Place(str(tmp_path / "zero")).open("zero", binary=True) as file:
        assert file.read() == b"a\0b"


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("detail", [False, True])
def test_the_columns_of_a_run_are_those_of_its_records(tmp_path: Path, level: Any, detail: bool) -> None:
    text = tmp_path / "text.txt"
    text.write_text("It was | the best\nof times.\n")
    alone = tmp_path / "alone.parquet"
    wanted = ("--top", "0") if detail and level != "document" else ()
    assert run(["score", str(BUNDLE), str(text), "--per", level, *wanted, "-o", str(alone), "--threads", "1"]) == 0
    schema = pyarrow.parquet.read_schema(alone)
    options = RunOptions(per=level, detail=0 if wanted else None)
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
    status = run(["score", str(BUNDLE), str(rows), "--field", "text", "-o", str(tmp_path / "out"), "--ray"])
    assert (status, "pip install ray" in capsys.readouterr().err) == (1, True)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--ray",), "--ray writes a folder"),
        (("-o", "out", "--strict", "--ray"), "--strict cannot be combined with --ray"),
        (("-o", "out", "--format", "csv", "--ray"), "--ray writes parquet or jsonl"),
        (("-o", "out.csv", "--ray"), "--ray writes parquet or jsonl, not csv"),
        (("-o", "out", "--set", "save_every=10", "--ray"), "--set save_every cannot be combined with --ray"),
        (("-o", "out", "--device", "cuda:1", "--ray"), "Ray chooses the GPU of each process"),
        (("-", "-o", "out", "--ray"), "not standard input"),
        (("-o", "out/"), "Only --ray writes folders"),
        (("-o", "s3://bucket/out"), "only --ray reads and writes object stores"),
    ],
)
def test_options_that_do_not_go_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], said: str
) -> None:
    assert run(["score", str(BUNDLE), str(tmp_path), "--field", "text", *options]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.native
@needs_ray
def test_rows_are_those_of_one_machine_after_kills(tmp_path: Path) -> None:
    rows, alone, output = write_rows(tmp_path / "in", 12, 40), tmp_path / "alone.jsonl", tmp_path / "out"
    shared = (rows, "--field", "text", "--id-field", "id", "--json")
    subprocess.run(command(*shared, "--batch-size", "auto", "-o", alone), check=False, stderr=subprocess.DEVNULL)
    expected = {row["document"]: row for row in map(json.loads, alone.read_text().splitlines())}

    options = (*shared, "-o", output, "--processes", "1", "--ray")
    first = subprocess.Popen(command(*options), stderr=subprocess.PIPE, start_new_session=True)
    kill_an_actor_after(output, 1)
    wait_for_parts(output, 3)
    os.killpg(first.pid, signal.SIGKILL)  # the driver, and all of its cluster
    first.communicate()
    done = {path: path.stat().st_mtime_ns for path in output.glob("part-*.jsonl")}
    assert not (output / "_done.json").exists()

    refused = subprocess.run(command(*options), capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert "Continue with --resume" in refused.stderr
    other = subprocess.run(command(*options, "--resume", "--mem-len", "5"), capture_output=True, text=True, check=False)
    assert "of another run: mem_len was 12, now 5" in other.stderr
    resumed = subprocess.run(command(*options, "--resume"), capture_output=True, text=True, check=False)
    assert resumed.returncode == 1  # some documents have no score
    assert "Traceback" not in resumed.stderr
    assert "the column `error` has the reasons" in resumed.stderr
    assert {path: path.stat().st_mtime_ns for path in done} == done
    found = rows_in(output)
    poisoned = {name: row for name, row in found.items() if row["error"] is not None}
    assert all("text" in row["error"] or "to score" in row["error"] for row in poisoned.values())
    good = {name: row for name, row in found.items() if name not in poisoned}
    assert good.keys() == expected.keys()
    assert len(poisoned) == 12 * 40 - len(good)
    for name, row in good.items():
        assert row.pop("error") is None
        assert row.pop("nats") == pytest.approx(expected[name]["nats"], abs=1e-3)
        assert {key: row[key] for key in ("document", "tokens", "lang")} == {
            key: expected[name][key] for key in ("document", "tokens", "lang")
        }


def wait_for_parts(output: Path, count: int) -> None:
    """Wait until so many parts are written, and no run of all parts."""
    while len(list(output.glob("part-*.jsonl"))) < count:
        assert not (output / "_done.json").exists()
        time.sleep(0.05)


def kill_an_actor_after(output: Path, count: int) -> None:
    """Kill the process of an actor, after it has written so many parts."""
    wait_for_parts(output, count)
    actors = [
        process
        for process in psutil.process_iter(["cmdline", "status"])
        if "MapWorker(MapBatches(PartActor))" in " ".join(process.info["cmdline"] or [])
    ]
    for process in actors:
        process.kill()
    assert actors


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
