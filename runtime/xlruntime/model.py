"""An open bundle as applications use it: streams, scores of documents, and continuations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from .bundle import check_digests, read_bundle
from .bundle_files import BundleFiles
from .deadline import Deadline
from .devices import parse_device
from .documents import Document, Source
from .engine import Engine
from .errors import OptionError
from .evaluation import SettingValue
from .generation import Sampling, generate_whole
from .scorer import Scorer
from .scores import DocumentScore, TokenScores
from .stream import Stream, restore_stream

__all__ = ["Model", "load"]


def load(
    folder: str | Path,
    *,
    device: str = "cpu",
    threads: int | None = None,
    check_files: bool = True,
    strict_device: bool = False,
    cuda_graphs: bool = False,
    step_timeout: float | None = None,
) -> Model:
    """Open a bundle.

    Args:
        folder: what `xlexport convert` wrote.
        device: `cpu`, `cuda` or `cuda:1`. One that is missing is an error, never another one in its place.
        threads: threads of one step; None leaves the choice to ONNX Runtime.
        check_files: compare every file with its digest; turn it off only if something else guards them.
        strict_device: insist that the device computes everything but the sizes of tensors, graph by graph as they are
            opened. Otherwise the CPU serves nodes for which the device has no kernel; `Model.placement` shows which.
        cuda_graphs: capture steps of a shape that comes again and again as CUDA graphs, and replay them. The bundle
            must have the graphs for it (`xlexport convert --cuda-graphs`); each shape has its own copy of the weights.
        step_timeout: seconds after which a step is ended, up to a quarter more; None: it may take any time. A single
            operator is never ended.

    Raises:
        BundleNotFoundError, BundleError: there is no bundle, or it is broken.
        ProviderError: ONNX Runtime or the device is missing, or with `strict_device` a node runs elsewhere.
        OptionError: the device, the number of threads or `step_timeout` is malformed, or there is nothing to capture
            CUDA graphs of.
    """
    if threads is not None and threads < 1:
        raise OptionError(f"threads is {threads}, at least 1 is needed.")
    path, where = Path(folder), parse_device(device)
    if cuda_graphs and where.kind != "cuda":
        raise OptionError(
            f"cuda_graphs needs a CUDA device, but the device is {where}.", repair="Leave it out, or choose cuda."
        )
    deadline = None if step_timeout is None else Deadline(step_timeout)
    bundle = read_bundle(path, check_files=False)
    files = BundleFiles(path, bundle)  # before digests are compared: what is replaced meanwhile is noticed
    if check_files:
        check_digests(path, bundle.files)
    if cuda_graphs and not any(purpose.endswith("_fixed") for purpose in bundle.graphs):
        raise OptionError(
            f"{path}: no graphs for cuda_graphs.", repair="Convert the checkpoint again with --cuda-graphs."
        )
    model = Model(path, bundle, where, threads, strict_device, files=files, deadline=deadline)
    if cuda_graphs:
        model.use_fixed()
    return model


class Model(Engine):
    """A bundle that is open for scoring and generating. Safe to share between threads.

    Its methods take the evaluation settings of `evaluation` as keywords.
    """

    def stream(self, *, capacity: int | None = None, **settings: SettingValue | None) -> Stream:
        """Return a walk through one document.

        Args:
            capacity: slots of the largest ring; None is just enough.
            settings: see `evaluation`.

        Raises:
            OptionError: a setting is out of range, or this bundle reads each document in one step.
        """
        return Stream(self, self.evaluation(**settings), capacity)

    def restore(self, file: str | Path, *, capacity: int | None = None) -> Stream:
        """Go on with a stream that `Stream.save` wrote.

        Args:
            capacity: ring slots; None keeps the saved ones and is bit-equal to not having stopped. Another number
                lays the memory out again, which is equal up to rounding.

        Raises:
            StateError: not a stream's state, a broken one, or one of another bundle.
            FileNotFoundError: there is no such file.
        """
        return restore_stream(self, Path(file), capacity)

    def score(
        self, documents: Iterable[Document | Source], *, batch_size: int = 1, **settings: SettingValue | None
    ) -> Iterator[DocumentScore]:
        """Score whole documents, `batch_size` at a time, each with a memory of its own; results in input order.

        Args:
            documents: texts, bytes, paths, open binary files, token ids, or `Document`s that name them.
            batch_size: if a document is one step, it is alone in its batch all the same.
            settings: see `evaluation`.

        Raises:
            OptionError, TokenError, TextError, OSError: a setting or a document is not usable.
        """
        return Scorer(self, self.evaluation(**settings), batch_size).documents(documents)

    def score_tokens(
        self,
        documents: Iterable[Document | Source],
        *,
        batch_size: int = 1,
        detail: int | None = None,
        **settings: SettingValue | None,
    ) -> Iterator[TokenScores]:
        """Score documents as `score` does, but give every token's score as soon as it is known; nothing is kept.

        Args:
            detail: with a number, parts also say each target's rank, the entropy of each prediction and that many top-k
                tokens (0 to 10): the `detail` graph runs in place of `score`, and gives the same scores.

        Raises:
            OptionError: also if the bundle lists fewer top-k tokens.
        """
        return Scorer(self, self.evaluation(**settings), batch_size, detail).tokens(documents)

    def generate(
        self,
        prompt: str | bytes | npt.NDArray[np.int64] | list[int],
        *,
        max_tokens: int,
        sampling: Sampling | None = None,
        **settings: SettingValue | None,
    ) -> Iterator[int]:
        """Continue `prompt`: yields up to `max_tokens` token ids as they are drawn.

        Raises:
            OptionError: a setting is out of range. TextError: the prompt is empty, or with what is asked for too long.
        """
        evaluation = self.evaluation(**settings)
        if evaluation.whole:
            return generate_whole(self, evaluation, prompt, max_tokens, sampling or Sampling())
        return Stream(self, evaluation).generate(prompt, max_tokens=max_tokens, sampling=sampling)
