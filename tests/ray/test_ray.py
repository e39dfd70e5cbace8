"""Scoring on a Ray cluster of local processes: rows, resuming, killed actors and drivers."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.helpers.paths import GOLDEN
from xlexport.commands import run
from xlexport.ray.parts import parts_of
from xlexport.ray.places import Place, files_at
from xlexport.scoring.inputs import Reading

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
    parts = list(parts_of(str(rows), 3, reading, 1000))
    assert [part.name for part in parts] == [f"part-0000003-{number:07}" for number in range(len(parts))]
    assert len(parts) > 3
    assert sum(len(part.rows or ()) for part in parts) == 40
    assert parts == list(parts_of(str(rows), 3, reading, 1000))


def test_places_are_read_and_written_whole(tmp_path: Path) -> None:
    folder = Place(str(tmp_path / "out"))
    assert (folder.kind, folder.names()) == ("nothing", [])
    folder.make_folder()
    folder.at("one").write(b"text")
    assert (folder.kind, folder.names(), folder.at("one").read()) == ("folder", ["one"], b"text")
    (tmp_path / "out" / "_run.json").write_text("{}")
    assert files_at(str(tmp_path / "out"), rows=False) == [str(tmp_path / "out" / "one")]
    assert files_at(f"file://{tmp_path}/out", rows=True) == []


@pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="ray is installed")
def test_without_ray_the_command_says_what_to_install(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = write_rows(tmp_path / "in", 1, 20)
    status = run(["score", str(BUNDLE), str(rows), "--field", "text", "-o", str(tmp_path / "out"), "--ray"])
    assert (status, "pip install ray" in capsys.readouterr().err) == (1, True)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--ray",), "--ray writes a folder"),
        (("-o", "out", "--strict", "--ray"), "--strict does not go together with --ray"),
        (("-o", "out", "--format", "csv", "--ray"), "--ray writes parquet or jsonl"),
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
    assert "Go on with --resume" in refused.stderr
    other = subprocess.run(command(*options, "--resume", "--mem-len", "5"), capture_output=True, text=True, check=False)
    assert "of another run: mem_len was 12, now 5" in other.stderr
    resumed = subprocess.run(command(*options, "--resume"), capture_output=True, text=True, check=False)
    assert resumed.returncode == 1  # some documents have no score
    assert "Traceback" not in resumed.stderr
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
