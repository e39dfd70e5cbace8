"""The interface for applications: an open bundle with streams, scores of documents, and continuations."""

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
        folder: the bundle, a folder that `xlexport convert` wrote.
        device: `cpu`, `cuda` or `cuda:1`. A missing device is an error; no other device replaces it.
        threads: threads of one step; None leaves the choice to ONNX Runtime.
        check_files: compare every file with its digest. Turn this off only if something else protects the files.
        strict_device: require that the device computes everything except sizes of tensors; each graph is checked when
            it opens. Otherwise the CPU runs nodes without a kernel on the device; `Model.placement` lists them.
        cuda_graphs: capture steps of repeated shapes as CUDA graphs, and replay them. The bundle must have graphs for
            this (`xlexport convert --cuda-graphs`). Each shape needs its own copy of the weights.
        step_timeout: seconds after which a step is ended, up to a quarter late; None: no limit. A single operator is
            never interrupted.

    Raises:
        BundleNotFoundError, BundleError: the bundle is missing or broken.
        ProviderError: ONNX Runtime or the device is missing, or with `strict_device` a node runs on another device.
        OptionError: the device, the number of threads or `step_timeout` is malformed, or `cuda_graphs` is not possible
            with this device or bundle.
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
    files = BundleFiles(path, bundle)  # before digests are compared, to notice files replaced meanwhile
    if check_files:
        check_digests(path, bundle.guarded_files)
    if cuda_graphs and not any(purpose.endswith("_fixed") for purpose in bundle.graphs):
        raise OptionError(
            f"{path}: no graphs for cuda_graphs.", repair="Convert the checkpoint again with --cuda-graphs."
        )
    model = Model(path, bundle, where, threads, strict_device, files=files, deadline=deadline)
    if cuda_graphs:
        model.use_fixed()
    return model


class Model(Engine):
    """An open bundle, for scoring and generating. Safe to share between threads.

    Its methods take evaluation settings as keywords; see `evaluation`.
    """

    def stream(self, *, capacity: int | None = None, **settings: SettingValue | None) -> Stream:
        """Return a stream: a walk through one document.

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
            StateError: the file is not a stream's state, is damaged, or belongs to another bundle.
            FileNotFoundError: the file does not exist.
        """
        return restore_stream(self, Path(file), capacity)

    def score(
        self, documents: Iterable[Document | Source], *, batch_size: int = 1, **settings: SettingValue | None
    ) -> Iterator[DocumentScore]:
        """Score whole documents, `batch_size` at a time, each with its own memory; yield results in input order.

        Args:
            documents: texts, bytes, paths, open binary files, token ids, or `Document`s, which have names.
            batch_size: documents in a batch. A document that the model reads in one step is always alone in its batch.
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
        """Score documents as `score` does, but yield every token's score as soon as it is known; keep none of them.

        Args:
            detail: number of top-k tokens (0 to 10). If given, parts also have each target's rank and each
            prediction's entropy. The `detail` graph then runs in place of `score`, with the same scores.

        Raises:
            OptionError: as `score`, or the bundle lists fewer top-k tokens.
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
        """Continue `prompt`: yield up to `max_tokens` token ids as they are drawn.

        Raises:
            OptionError: a setting is out of range.
            TextError: the prompt is empty, or prompt and continuation are too long.
        """
        evaluation = self.evaluation(**settings)
        if evaluation.whole:
            return generate_whole(self, evaluation, prompt, max_tokens, sampling or Sampling())
        return Stream(self, evaluation).generate(prompt, max_tokens=max_tokens, sampling=sampling)
