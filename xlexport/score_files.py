"""Score files as one run: what it reads and writes, who scores, and what it leaves if it is interrupted."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, overload

from xlexport.bundles import open_bundle
from xlexport.callbacks import Tell, silent
from xlexport.extras import require
from xlexport.scoring.chunks import Job
from xlexport.scoring.input_search import find_inputs
from xlexport.scoring.inputs import Input, nothing_in
from xlexport.scoring.partial_file import PartialFile
from xlexport.scoring.run import Output, Reporter, score_documents
from xlexport.scoring.score_options import HERE, ScoreOptions
from xlexport.scoring.totals import Totals
from xlruntime import Model, OptionError
from xlruntime.load_options import LoadOptions

if TYPE_CHECKING:
    from xlexport.scoring.backends import Backend

__all__ = ["ScoreRun", "score"]

Files = str | Path | Sequence[str | Path]


@overload
def score(bundle: str | Path, files: Files, output: None = None, **options: Any) -> list[dict[str, Any]]: ...


@overload
def score(bundle: str | Path, files: Files, output: str | Path, **options: Any) -> Totals | None: ...


def score(
    bundle: str | Path,
    files: Files,
    output: str | Path | None = None,
    *,
    tell: Tell = silent,
    trust: bool = False,
    **options: Any,
) -> Totals | list[dict[str, Any]] | None:
    """Score files as `xlexport score` does, each as one document of any length, or each row of a table.

    Args:
        bundle: its folder.
        files: files, folders and patterns, or one of them.
        output: file to write; None: return the records, which must fit into memory.
        tell: called with lines for people.
        trust: whether code in the bundle may run.
        options: fields of `ScoreOptions`, such as `per`, `top`, `field` and `processes`; options of `xlruntime.load`;
            and evaluation settings, such as `segment_len`. With `strict=False`, documents that cannot be scored are
            told and left out.

    Returns:
        The sums over all documents, in nats and counts, or the records; None if `resume` found a complete output.

    Raises:
        OptionError: options do not go together.
        TextError: no input is found, or a document cannot be scored.
        ResumeError, OutputExistsError: the output belongs to another run.
        XlruntimeError, OSError: the bundle or a file is wrong.
    """
    ours, loading = ({entry.name for entry in fields(kind)} for kind in (ScoreOptions, LoadOptions))
    chosen: dict[str, Any] = {name: value for name, value in options.items() if name in ours}
    runtime = {name: value for name, value in options.items() if name in loading} | ({"trust": True} if trust else {})
    evaluation = {name: value for name, value in options.items() if name not in ours | loading}
    chosen = {"strict": True, "as_json": output is None, **chosen}
    inputs = [files] if isinstance(files, str | Path) else files
    run = ScoreRun(
        Path(bundle),
        [name if "://" in str(name) else Path(name) for name in inputs],
        ScoreOptions(output=output if output is None or "://" in str(output) else Path(output), **chosen),
        runtime,
        tell,
    )
    if run.is_complete:
        return None
    records = io.BytesIO()
    totals = run.score(evaluation, _Lines(tell), records, io.BytesIO())
    return totals if output is not None else [json.loads(line) for line in records.getvalue().splitlines()]


class ScoreRun:
    """A run of `score`, whose inputs are found and whose output is free.

    Attributes:
        output: the name of the output file; None: the caller takes the records.
        inputs: what it reads; empty if the output is complete.
        is_complete: whether a run that this one would continue has written the whole output.

    Raises:
        OptionError: options do not fit the inputs.
        TextError: no input is found.
        OutputExistsError, ResumeError: the output belongs to another run.
    """

    def __init__(
        self,
        bundle: Path,
        files: Sequence[Path | str],
        options: ScoreOptions,
        runtime: Mapping[str, Any],
        tell: Tell,
    ) -> None:
        self.bundle, self.options, self.runtime = bundle, options, dict(runtime)
        if self.runtime.get("threads") is None and (options.processes is not None or options.ray is not None):
            self.runtime["threads"] = 1  # of each process
        self._file = _output_file(options)
        self.output = None if self._file is None else self._file.name
        self.is_complete, self.inputs, written = False, list[Input](), list[Path]()
        if (file := self._file) is not None:
            file.check(options.force, options.resume)
            self.is_complete = options.resume and file.is_complete
            written = [file.path, file.partial, file.state_path]
            if self.is_complete:
                file.forget_state()  # left by a run that was killed after its last step
                return
        self.inputs = find_inputs(files, options.include, options.reading, written, tell)
        _check_inputs(self.inputs, options)
        if options.ray is not None and str(self.runtime.get("device")).startswith("cuda:"):
            raise OptionError(
                f"--device {self.runtime['device']}: Ray chooses the GPU of each process.", hint="Give --device cuda."
            )

    def score(self, evaluation: Mapping[str, Any], reporter: Reporter, records: Output, stdin: BinaryIO) -> Totals:
        """Score the inputs, and publish the output when it is complete.

        Args:
            evaluation: evaluation settings by name; None: the bundle's own.
            records: receives the records if there is no output file.

        Raises:
            KeyboardInterrupt: Ctrl-C; its text says what is left.
            TextError: there is nothing to score. Others as in `score_documents`.
        """
        file = self._file
        backend, model, device = self._opened()
        settings = model.evaluation(**evaluation)
        job = Job(self.bundle, self.runtime, settings, self.options, self.inputs, file is None, device)
        try:
            totals = score_documents(model, job, stdin, file or records, reporter, backend)
            if file is not None:
                file.publish() if totals.documents else file.discard()
            if not totals.documents and not totals.failed:
                raise nothing_in([entry.name for entry in self.inputs], "lines that are not blank")
            return totals
        except KeyboardInterrupt:
            if file is None:
                raise KeyboardInterrupt("interrupted; standard output has what was scored until then.") from None
            if not file.partial.exists():
                raise
            again = all(entry.repeatable for entry in self.inputs)
            hint = "Continue with --resume." if again else "Its input cannot be read again: start again with --force."
            raise KeyboardInterrupt(f"interrupted; {file.partial} has what was scored. {hint}") from None
        finally:
            if file is not None:
                file.close()

    def _opened(self) -> tuple[Backend | None, Model, str | None]:
        """Return the workers that score, the open bundle, and the device of workers if this process has another."""
        options = self.options
        if options.ray is not None:
            from xlexport.ray.cluster import Cluster, device_of, open_here

            cluster = Cluster(None if options.ray == HERE else options.ray, options.processes)
            return cluster, open_here(self.bundle, self.runtime), str(device_of(self.runtime))
        from xlexport.scoring.processes import WorkerProcesses

        count = options.processes or 1
        return WorkerProcesses(count) if count > 1 else None, open_bundle(self.bundle, **self.runtime), None


def _output_file(options: ScoreOptions) -> PartialFile | None:
    """Return the output file, which becomes a table if its format is one; None: the caller takes the records."""
    if options.path is None:
        return None
    finish = None
    if options.format == "parquet":
        require("tables")
        from xlexport.scoring.output_formats import write_parquet

        finish = write_parquet
    if isinstance(options.path, Path):
        return PartialFile(options.path, finish)
    require(None, "pyarrow")
    from xlexport.scoring.stores import StoredFile

    return StoredFile(options.path, finish)


def _check_inputs(inputs: Sequence[Input], options: ScoreOptions) -> None:
    """Refuse inputs that the output would replace, or that cannot be read again."""
    output, paths = options.path, [entry.path for entry in inputs if entry.path is not None]
    names = {os.path.realpath(path) for path in paths} | {entry.name for entry in inputs}
    if output is not None and not names.isdisjoint((str(output), os.path.realpath(output))):
        raise OptionError(f"{output} is also an input, which the output would replace. Name another file with -o.")
    if all(entry.repeatable for entry in inputs):
        return
    if options.resume:
        raise OptionError("--resume reads its inputs again, which standard input and pipes do not allow. Give files.")
    if (options.processes or 1) > 1 or options.ray is not None:
        option = "--processes" if options.ray is None else "--ray"
        raise OptionError(f"{option} shares files. Give files, not standard input or a pipe.")


class _Lines:
    """Reports what concerns a person, as lines."""

    def __init__(self, tell: Tell) -> None:
        self.tell = tell
        nothing: Callable[..., None] = lambda *_: None  # noqa: E731
        self.total = self.resumed = self.take = self.clear = nothing

    def fail(self, document: str, error: Exception) -> None:
        self.tell(f"{document}: {error}")
