"""One document's walk: it owns a memory, takes text or tokens in pieces of any size, and can be saved."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .documents import check_length, encode
from .engine import Engine
from .errors import OptionError, TextError
from .evaluation import EvaluationSettings
from .generation import Sampling, draw_tokens
from .stream_state import SavedStream, read_stream, write_stream

__all__ = ["NonFiniteScoreWarning", "Scores", "Stream", "restore_stream", "warn_not_finite"]


class NonFiniteScoreWarning(RuntimeWarning):
    """A score was not finite; the row's memory was refilled, so what follows starts afresh."""


@dataclass(frozen=True)
class Scores:
    """Tokens that got their score.

    Attributes:
        index: (n,) their places in the document, from 0.
        tokens: (n,) their ids.
        log_probs: (n,) natural logarithms of their probabilities.
        context: (n,) how many tokens of the document each one's prediction attended to.
    """

    index: npt.NDArray[np.int64]
    tokens: npt.NDArray[np.int64]
    log_probs: npt.NDArray[np.float32]
    context: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.tokens)


class Stream:
    """A walk through one document of any length at constant memory. Used by one thread at a time.

    A feed's last token has no target yet: the stream holds it, and runs it when the next one arrives. Without
    `same_length`, scores depend on where feeds end. A document that has no positions left is refused, or with `restart`
    goes on as one that begins (see `EvaluationSettings`).

    Attributes:
        engine: what runs the steps; shared with other streams.
        evaluation: how far a token sees, and how long a step is.
        memory: what is carried; `memory.nbytes` says how large it is.
        pending: id of the token that is held; None before the first one.
        position: tokens of the document taken so far, the held one included.
    """

    def __init__(self, engine: Engine, evaluation: EvaluationSettings, capacity: int | None = None) -> None:
        if evaluation.whole:
            raise OptionError(
                f"{engine.folder}: this model reads each document in one step and carries no memory, so it "
                "cannot stream.",
                repair="Use Model.score, Model.score_tokens or Model.generate on whole documents.",
            )
        self.engine = engine
        self.evaluation = evaluation
        self.memory = engine.new_memory(evaluation, 1, capacity)
        if evaluation.segmentation_matters and self.memory.max_segment < evaluation.segment_len:
            raise OptionError(
                f"a capacity of {capacity} slots would cut segments of {evaluation.segment_len} tokens, on which the "
                "scores depend without same_length.",
                repair=f"Give at least {evaluation.capacity()}.",
            )
        self.pending: int | None = None
        self.position = 0  # tokens fed so far

    def feed(self, source: str | bytes | npt.NDArray[np.int64] | list[int]) -> Scores:
        """Take the next piece of the document, of any length.

        Bytes may be cut anywhere, all other text between characters. Words of a vocabulary may be cut between words:
        "the cat " and "sat " give the same tokens as "the cat sat ", and a line is over when its newline has been fed.
        A tokenizer.json or SentencePiece model may give other tokens at a cut than the whole text has there.

        Returns:
            The scores that became known: of every token of the piece, but for the document's first token.

        Raises:
            TokenError: an id is outside the vocabulary.
            TextError: the text cannot be tokenized, or the document gets longer than the model can read. After either
                error nothing of the piece was taken.
        """
        return self._score(self._ids(source), refill=True)

    def score_continuation(self, source: str | bytes | npt.NDArray[np.int64] | list[int]) -> Scores:
        """What `feed` would return, while the stream stays where it is: to compare ways in which a document may go on.

        Costs the step over the continuation alone. Up to `memory.max_segment` tokens are written beside what the memory
        still needs, and hidden again; a longer continuation is fed to a `fork`.

        Raises:
            TokenError, TextError: as `feed`.
        """
        ids = self._ids(source)
        if len(ids) <= min(self.memory.max_segment, int(self.memory.room[0])):
            pending, position, mark = self.pending, self.position, self.memory.mark()
            finite = False
            try:
                scores = self._score(ids, refill=False)
                finite = bool(np.isfinite(scores.log_probs).all())
            finally:
                self.memory.rewind(mark, wipe=not finite)
                self.pending, self.position = pending, position
            if finite:
                return scores
        return self.fork().feed(ids)

    def fork(self) -> Stream:
        """Another stream at the same place of the same document: both go on by themselves, bit-equal if fed the same.

        Copies the memory (`memory.nbytes`), and reads nothing again.
        """
        twin = copy.copy(self)
        twin.memory = self.memory.take([0])
        return twin

    def generate(
        self,
        prompt: str | bytes | npt.NDArray[np.int64] | list[int] | None = None,
        *,
        max_tokens: int,
        sampling: Sampling | None = None,
    ) -> Iterator[int]:
        """Continue the document, after `prompt` if there is one: yields token ids as they are drawn.

        The prompt is run when the first token is asked for. What is drawn becomes part of the document: a later feed
        or generate goes on from there.

        Raises:
            OptionError: max_tokens is negative. TextError: there is nothing to continue, or the document could get
                longer than the model can read.
        """
        if max_tokens < 0:
            raise OptionError(f"max_tokens is {max_tokens}, at least 0 is needed.")
        ids = self._ids([] if prompt is None else prompt)
        if self.pending is None and not len(ids):
            raise TextError(
                "nothing to continue: the prompt is empty and the stream has read nothing.", repair="Give a prompt."
            )
        self._check_length(len(ids) + max_tokens, f"the document with {max_tokens:,} tokens more")
        return self._generate(ids, max_tokens, sampling or Sampling())

    def reset(self) -> None:
        """Forget the document; the next feed starts another."""
        self.memory.restart(0)
        self.pending, self.position = None, 0

    def save(self, file: str | Path) -> None:
        """Write all that `Model.restore` needs to go on, bit-equal to not having stopped (safetensors).

        The file appears whole or not at all.

        Raises:
            OSError: it cannot be written; an older one stays as it was.
        """
        memory = self.memory
        saved = SavedStream(
            fingerprint=self.engine.bundle.fingerprint,
            evaluation=self.evaluation.to_dict(),
            capacity=memory.capacity,
            offset=memory.offset,
            memory_length=int(memory.memory_length[0]),
            history=int(memory.position[0]),
            pending=self.pending,
            position=self.position,
        )
        write_stream(Path(file), saved, {entry.input: memory.array(entry) for entry in memory.entries})

    def _ids(self, source: str | bytes | npt.NDArray[np.int64] | list[int]) -> npt.NDArray[np.int64]:
        engine = self.engine
        return encode(source, engine.tokenizer, engine.bundle.vocab_size, "the stream", self.pending, self.position)

    def _check_length(self, more: int, name: str) -> None:
        held = 0 if self.pending is None else 1
        check_length(int(self.memory.position[0]) + held + more, self.evaluation, name)

    def _take(self, ids: npt.NDArray[np.int64], name: str) -> npt.NDArray[np.int64]:
        """Hold the first token of a document; what is left of ids (n,) are targets."""
        self._check_length(len(ids), name)
        if self.pending is None and len(ids):
            self.pending, ids = int(ids[0]), ids[1:]
            self.position = 1
        return ids

    def _segments(self, targets: npt.NDArray[np.int64]) -> Iterator[npt.NDArray[np.int64]]:
        """Cut targets (n,) into segments, each no longer than a step can be; asked for one by one, as they are run."""
        longest = min(self.memory.max_segment, self.engine.longest_step("score", self.evaluation.segment_len))
        while len(targets):
            S = min(longest, self._room())
            yield targets[:S]
            targets = targets[S:]

    def _room(self) -> int:
        """Tokens that can be read before the document must restart, after it has done so if there were none."""
        if not self.memory.room[0]:
            self._check_length(1, "the document")
            self.memory.restart(0)
        return int(self.memory.room[0])

    def _score(self, ids: npt.NDArray[np.int64], refill: bool) -> Scores:
        """Run ids (n,), the document's next ones; `refill` the memory after scores that are not finite."""
        targets = self._take(ids, "the document")
        first = self.position
        parts = [self._step(segment, refill) for segment in self._segments(targets)]
        if not parts:
            return _no_scores()
        log_probs = np.concatenate([log_prob for log_prob, _ in parts])
        context = np.concatenate([seen for _, seen in parts])
        return Scores(np.arange(first, first + len(targets), dtype=np.int64), targets, log_probs, context)

    def _step(
        self, targets: npt.NDArray[np.int64], refill: bool
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
        """Score one segment of targets (S,); the held token comes before them."""
        context = self.memory.context(len(targets))[0]
        log_prob = self._run("score", targets)["log_prob"][0]
        if refill and not np.isfinite(log_prob).all():
            self.memory.restart(0, refill=True)
            warn_not_finite("the stream", self.position)
        return log_prob, context

    def _run(self, purpose: str, targets: npt.NDArray[np.int64]) -> dict[str, npt.NDArray[Any]]:
        """Run the held token and all of `targets` but the last, which is held in its place."""
        tokens = np.concatenate([[self.pending], targets[:-1]]).astype(np.int64)
        outputs = self.engine.step(purpose, self.memory, tokens[None], targets[None])
        self.pending = int(targets[-1])
        self.position += len(targets)
        return outputs

    def _generate(self, ids: npt.NDArray[np.int64], max_tokens: int, sampling: Sampling) -> Iterator[int]:
        for segment in self._segments(self._take(ids, "the prompt")):
            self._run("score", segment)
        yield from draw_tokens(self._next_logits, self._hold, max_tokens, sampling, "Reset the stream.")

    def _next_logits(self) -> npt.NDArray[np.float32]:
        """Run the held token; return the logits of the next one."""
        self._room()
        # The target is not known yet; the generate graph has no such input, so any will do.
        logits: npt.NDArray[np.float32] = self._run("generate", np.array([self.pending], np.int64))["logits"][0]
        if not np.isfinite(logits).all():
            self.memory.restart(0, refill=True)
        return logits

    def _hold(self, token: int) -> None:
        self.pending = token


def warn_not_finite(name: str, position: int) -> None:
    """Tell that a row had scores that are not finite, and that its memory starts afresh."""
    message = f"{name}: scores that are not finite before token {position}; its memory was refilled and starts afresh."
    warnings.warn(message, NonFiniteScoreWarning, stacklevel=3)


def restore_stream(engine: Engine, file: Path, capacity: int | None = None) -> Stream:
    """Return a stream as `Stream.save` left it; see `Model.restore`."""
    saved, evaluation, arrays = read_stream(engine, file)
    stream = Stream(engine, evaluation, saved.capacity if capacity is None else capacity)
    stream.memory.load_rows(arrays, saved.offset, saved.capacity)
    stream.memory.memory_length[0] = saved.memory_length
    stream.memory.position[0] = saved.history
    stream.pending, stream.position = saved.pending, saved.position
    return stream


def _no_scores() -> Scores:
    none = np.zeros(0, np.int64)
    return Scores(none, none, np.zeros(0, np.float32), none)
