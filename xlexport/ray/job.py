"""Score files or datasets on a Ray cluster.

Every part of a file becomes a file of its own, so a run goes on after the parts that are there. The program that starts
the run holds the names of files and of finished parts, never documents or records.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import socket
import sys
import sysconfig
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from xlexport.bundles import open_bundle
from xlexport.children import environment_of_children
from xlexport.errors import OutputExistsError, ResumeError, WorkerError
from xlexport.extras import require
from xlexport.ray.actor import ERROR, PartActor, RowActor, Work
from xlexport.ray.places import File, Place, files_at, is_address, parts_of
from xlexport.scoring.documents import CarriedColumns
from xlexport.scoring.inputs import ROWS, Reading, find_inputs, nothing_in
from xlexport.scoring.records import kinds_of_columns, own_columns
from xlexport.scoring.resume import changes, describe_run
from xlexport.scoring.run_options import RunOptions, make_scorer
from xlexport.scoring.totals import Totals
from xlruntime import ArgumentError, Device, LoadOptions, Model
from xlruntime.messages import counted, first_line

__all__ = ["Cluster", "columns_of", "most_actors", "reach", "score_dataset", "score_files"]

PART_BYTES = 1 << 20  # of rows
BATCH_ROWS = 256  # of a dataset: many batches are formed of them, by length
READERS = 4  # tasks that read files at the same time
MOST_RESTARTS = 3  # of an actor that is killed; a document that kills each of them must not do so for ever
CONNECT_SECONDS = 20
CORE_LOG = "RAY_BACKEND_LOG_LEVEL"
RUN, DONE = "_run.json", "_done.json"
PART_NAME = re.compile(r"part-(\d+)-(\d+)\.(?:parquet|jsonl)")


@dataclass(frozen=True)
class Cluster:
    """The cluster and the processes of a run.

    Attributes:
        address: of a cluster, as `ray.init` takes it; None: this machine.
        actors: number of processes that score; None: as many as the CPUs, or the GPUs, allow.
        runtime: arguments of `open_bundle`; `threads` are the CPUs of each process. With a device that has its own
            memory, each process gets one GPU.
    """

    address: str | None = None
    actors: int | None = None
    runtime: Mapping[str, Any] = field(default_factory=dict)

    @property
    def threads(self) -> int:
        """The CPUs of each process."""
        return self.runtime.get("threads") or 1

    @property
    def device(self) -> Device:
        """The device of each process."""
        names = {"device", "provider", "provider_options"}
        return LoadOptions(**{name: self.runtime[name] for name in names & self.runtime.keys()}).place

    @property
    def gpus(self) -> int:
        """The GPUs of each process."""
        return 0 if self.device.on_host else 1

    def open(self, bundle: str) -> Model:
        """Open the bundle on this machine, which may have no GPU."""
        own = {"device": "cpu", "strict_device": False, "cuda_graphs": False} if self.gpus else {}
        return open_bundle(bundle, **{**self.runtime, **own})


def score_files(
    bundle: str | Path,
    files: Sequence[str],
    output: str,
    options: RunOptions,
    settings: Mapping[str, Any],
    cluster: Cluster,
    *,
    include: Sequence[str] = (),
    kind: Literal["parquet", "jsonl"] = "parquet",
    resume: bool = False,
    force: bool = False,
    tell: Callable[[str], None] = print,
    part_bytes: int = PART_BYTES,
) -> Totals:
    """Score files or folders, and write a folder with a file of records for each part; return the sums of this process.

    Args:
        bundle, files, output: paths that all machines see; files and output may also be URIs of an object store.
        include: patterns of file names; other files in folders are left out.
        resume: leave out the parts that an earlier run has written; force: remove them.
        tell: called with lines for people.
        part_bytes: about how many bytes of rows a part has.

    Raises:
        MissingDependencyError: Ray or pyarrow is not installed.
        OutputExistsError: the folder holds something, and neither `resume` nor `force` is given.
        ResumeError: it is the folder of another run. TextError: no files are found, or one does not exist.
        OptionError: pyarrow does not reach an object store.
        WorkerError: the cluster does not answer, or could not complete the run.
    """
    require("ray")
    reach(cluster.address)
    reading = options.reading
    output = _anywhere(output)
    inputs = _inputs(files, include, reading, output, tell)
    bundle = os.path.abspath(bundle)
    ops = cluster.runtime.get("ops", "auto")
    ops = ops if ops in ("auto", "none") else os.path.abspath(ops)
    runtime = {**cluster.runtime, "threads": cluster.threads, "ops": ops}
    model = replace(cluster, runtime=runtime).open(bundle)
    evaluation = model.evaluation(**settings)
    if reading.field is not None and reading.keep is None:
        reading = replace(reading, keep=_columns(inputs[0], reading, options, evaluation.values))
    options = replace(options, kind="jsonl", reading=reading, by_chunks=True)
    make_scorer(model, evaluation, options)  # an error about the options comes before any work
    run = {**describe_run(model, evaluation, options, []), "part bytes": part_bytes, "format": kind}
    run["options"]["--device"] = str(cluster.device)
    run["inputs"] = [file.identity() for file in inputs]
    columns = columns_of(options, evaluation.values)
    model.release()
    done = _begun(Place(output), json.loads(json.dumps(run)), resume, force, tell)
    items = [{"file": file, "done": done[file.number]} for file in inputs]
    work = Work(bundle, runtime, settings, options, columns, output, kind)
    totals = Totals()
    for counts in _counts(items, work, cluster, part_bytes):
        for name, value in counts.items():
            setattr(totals, name, getattr(totals, name) + (float(value) if name == "bits" else int(value)))
    Place(output).at(DONE).write(json.dumps({"files": len(inputs)}).encode())
    return totals


def _anywhere(place: str) -> str:
    """Return an address, or a path that does not depend on the folder in which a process runs."""
    return place if is_address(place) else os.path.abspath(place)


def _inputs(
    files: Sequence[str], include: Sequence[str], reading: Reading, output: str, tell: Callable[[str], None]
) -> list[File]:
    """Return the files to score, in the order of a run on one machine; files in the output's folder are left out.

    Raises:
        TextError: there are none.
    """
    names: list[str] = []
    for place in files:
        if is_address(place):
            names += files_at(place, include or (ROWS if reading.field is not None else ()))
        else:
            names += [file.name for file in find_inputs([Path(place)], include, reading, (), tell)]
    names = [name for name in names if not _anywhere(name).startswith(f"{output.rstrip('/')}/")]
    if not names:
        raise nothing_in(list(files), "files with rows" if reading.field is not None else "files")
    return [File(name, _anywhere(name), number) for number, name in enumerate(names)]


def columns_of(options: RunOptions, settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the columns of all records, each with the kind that it has without values."""
    return {**kinds_of_columns(options, settings), ERROR: "text"}


def _columns(file: File, reading: Reading, options: RunOptions, settings: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the columns that records repeat: all others of the first row, as in a run on one machine."""
    first = next(file.rows(reading), None)
    if first is None or isinstance(first.values, Exception):
        return ()
    columns = CarriedColumns(reading, own_columns(options.per, settings) | {ERROR}, lambda line: None, with_id=True)
    columns.check(first.values, first.name)
    return tuple(columns.of(first.values, first.name, file.name))


def _begun(
    output: Place, run: Mapping[str, Any], resume: bool, force: bool, tell: Callable[[str], None]
) -> Mapping[int, list[int]]:
    """Check the folder and write what identifies the run; return the numbers of the parts that are there, by file.

    Raises:
        OutputExistsError, ResumeError: as `score_files`.
    """
    if output.kind == "file":
        raise OutputExistsError(f"{output.uri}: a file, expected a folder.", hint="Give another path.")
    names = output.names()
    if names and RUN not in names:
        raise OutputExistsError(f"{output.uri}: a folder that no run has written.", hint="Give another path.")
    if names and not (resume or force):
        raise OutputExistsError(
            f"{output.uri}: of another run.", hint="Continue with --resume, or start again with --force."
        )
    done: dict[int, list[int]] = defaultdict(list)
    parts = {name: match for name in names if (match := PART_NAME.fullmatch(name))}
    if names and resume:
        try:
            before = json.loads(output.at(RUN).read())
        except ValueError as error:
            raise ResumeError(
                f"{output.uri}/{RUN}: damaged ({first_line(error)}).", hint="Start again with --force."
            ) from error
        inputs = {"inputs": before.pop("inputs", None)}
        differences = changes(before, {name: value for name, value in run.items() if name != "inputs"})
        if inputs["inputs"] != run["inputs"]:
            differences.append("an input has changed")
        if differences:
            raise ResumeError(
                f"{output.uri}: of another run: {'; '.join(differences)}.",
                hint="Give the files and options of that run, or start again with --force.",
            )
        for match in parts.values():
            done[int(match[1])].append(int(match[2]))
        tell(f"{output.uri}: going on after {counted(len(parts), 'part')}")
        return done
    for name in [*parts, *({DONE} & set(names))]:
        output.at(name).remove()
    output.make_folder()
    output.at(RUN).write(json.dumps(run).encode())
    return done


def _counts(items: list[dict[str, Any]], work: Work, cluster: Cluster, part_bytes: int) -> Iterator[dict[str, float]]:
    """Run the work on the cluster, and yield the counts of parts as they are done."""
    import ray
    from ray.data import ActorPoolStrategy, DataContext, TaskPoolStrategy

    started = not ray.is_initialized()
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    if started:
        _start(cluster)
    context = DataContext.get_current()
    before = context.target_max_block_size, context.enable_progress_bars
    # A block for each part, so that parts reach the actors as soon as they are read.
    context.target_max_block_size, context.enable_progress_bars = part_bytes, False
    try:
        actors = cluster.actors or most_actors(ray.nodes(), cluster.threads, cluster.gpus)
        reading = work.options.reading

        def read(batch: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
            for item in batch["item"]:
                finished = set(item["done"])
                for part in parts_of(item["file"], reading, part_bytes):
                    if part.number not in finished:
                        yield {"part": [part]}

        items_of_files = ray.data.from_items(
            [{"item": item} for item in items], override_num_blocks=min(len(items), 1000)
        )
        readers = TaskPoolStrategy(size=min(READERS, len(items)))
        parts = items_of_files.map_batches(read, batch_size=1, compute=readers, num_cpus=0)
        with warnings.catch_warnings():
            # Ray 2.60 has no other name for the last two, and removes them in 2.64. It also warns of idle actors.
            warnings.simplefilter("ignore")
            scored = parts.map_batches(
                PartActor,
                fn_constructor_args=(work,),
                batch_size=1,
                compute=ActorPoolStrategy(size=actors),
                num_cpus=cluster.threads,
                num_gpus=cluster.gpus,
                max_restarts=MOST_RESTARTS,
                max_task_retries=MOST_RESTARTS,
            )
            for row in scored.iter_rows():
                yield dict(row)
    except ray.exceptions.RayError as error:
        raise WorkerError(
            f"{work.output}: the cluster ended the run ({first_line(error)[:300]}).", hint="Continue with --resume."
        ) from error
    finally:
        context.target_max_block_size, context.enable_progress_bars = before
        if started:
            ray.shutdown()


def reach(address: str | None) -> None:
    """Connect to the address of a cluster, because Ray itself tries for minutes.

    Raises:
        WorkerError: nothing answers there.
    """
    host, mark, port = (address or "").removeprefix("ray://").rpartition(":")
    if not mark or not port.isdigit():  # such as `auto`
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise WorkerError(
            f"{address}: no Ray cluster answers ({first_line(error)}).",
            hint="Check the address, and `ray status` there; or leave out the address.",
        ) from error


def _start(cluster: Cluster) -> None:
    """Connect to a cluster, or start one here; without the log of Ray's core, since errors come as exceptions.

    Raises:
        WorkerError: the cluster cannot be reached or started.
    """
    import ray

    try:
        # Ray adds the current folder to the path of its workers, which has that of Python's modules anyway. Its core
        # writes to standard error that it has read the level of its log.
        with (
            contextlib.chdir(sysconfig.get_path("stdlib")),
            environment_of_children(**{CORE_LOG: "fatal"}),
            _no_standard_error(),
        ):
            ray.init(**_initial(cluster))
    except Exception as error:  # Ray raises ConnectionError, ValueError, RuntimeError, and also Exception itself
        raise WorkerError(
            f"{cluster.address or 'this machine'}: Ray did not start ({first_line(error)[:300]}).",
            hint="Check the address, and `ray status` there; or leave out the address.",
        ) from error


@contextlib.contextmanager
def _no_standard_error() -> Iterator[None]:
    """Let nothing of this process, not even libraries in C++, write to standard error."""
    sys.stderr.flush()
    standard_error = os.dup(2)
    try:
        with open(os.devnull, "wb") as nothing:
            os.dup2(nothing.fileno(), 2)
        yield
    finally:
        os.dup2(standard_error, 2)
        os.close(standard_error)


def most_actors(nodes: Sequence[Mapping[str, Any]], threads: int, gpus: int) -> int:
    """Return the number of actors for which the machines of a cluster have CPUs and GPUs.

    Raises:
        WorkerError: no machine has enough for one.
    """
    total = 0
    for node in nodes:
        resources = node["Resources"] if node["Alive"] else {}
        fitting = int(resources.get("CPU", 0)) // threads
        total += min(fitting, int(resources.get("GPU", 0))) if gpus else fitting
    if not total:
        needs = f"{counted(threads, 'CPU')}{' and a GPU' if gpus else ''}"
        raise WorkerError(f"no machine of the cluster has {needs}.", hint="Give fewer --threads, or another device.")
    return total


def _initial(cluster: Cluster) -> dict[str, Any]:
    """Return the arguments of `ray.init`."""
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    if cluster.address is not None:
        return {"address": cluster.address, **quiet}
    cpus = max((cluster.actors or 1) * cluster.threads, 0 if cluster.actors else os.cpu_count() or 1)
    return {"include_dashboard": False, "num_cpus": cpus, **quiet}


def score_dataset(
    dataset: Any,
    bundle: str | Path,
    *,
    field: str = "text",
    id_field: str | None = None,
    keep: tuple[str, ...] = (),
    options: RunOptions | None = None,
    actors: int = 1,
    threads: int = 1,
    runtime: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Any:
    """Return a dataset with the records of a dataset's documents, in any order.

    Each row of `dataset` has a document. Records are those of `xlexport score`, with a further column `error`: a
    document that cannot be scored is one row that says why. The bundle is opened here, too, to check the options.

    Args:
        dataset: a `ray.data.Dataset`.
        bundle: the folder of a bundle, which all machines can read.
        field: the column with the text; id_field: the column with the document's name. Without it, documents are named
            by their row, which begins again after some hundred rows.
        keep: columns that records repeat.
        options: how to score, such as the unit of a record; None: a record for each document. Its `reading` says the
            rest about the rows, such as `context_field` and `ids`.
        actors: number of processes with the bundle; threads: of each, which Ray counts as its CPUs.
        runtime: further options of `xlruntime.load`, such as `device`; with a GPU each process gets one.
        settings: evaluation settings, as for `Model.evaluation`.

    Raises:
        MissingDependencyError: Ray or pyarrow is not installed.
        ArgumentError: the documents would depend on each other.
        OptionError: an option or a setting does not fit the bundle.
    """
    require("ray")
    from ray.data import ActorPoolStrategy

    requested = options or RunOptions(batch_size="auto")
    if requested.continuous or requested.strict:
        raise ArgumentError("continuous and strict need documents in order, but a dataset has no order.")
    cut = "marks" if requested.per == "region" else requested.reading.cut
    reading = replace(requested.reading, field=field, id_field=id_field, keep=keep, cut=cut)
    run_options = replace(requested, kind="jsonl", reading=reading, by_chunks=True)
    cluster = Cluster(runtime={**(runtime or {}), "threads": threads})
    model = cluster.open(os.path.abspath(bundle))
    evaluation = model.evaluation(**settings)
    make_scorer(model, evaluation, run_options)
    columns = columns_of(run_options, evaluation.values)
    model.release()
    work = Work(os.path.abspath(bundle), cluster.runtime, settings, run_options, columns)
    return dataset.map_batches(
        RowActor,
        fn_constructor_args=(work,),
        batch_size=BATCH_ROWS,
        batch_format="pyarrow",
        compute=ActorPoolStrategy(size=actors),
        num_cpus=threads,
        num_gpus=cluster.gpus,
    )
