"""Streams: walks through one document in pieces of any size, with a memory that can be saved.

`state.py` has the fields of a saved stream, and reads and writes its file.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .documents import Tokenizer, check_ids, check_length
from .engine import Engine
from .errors import OptionError, TextError
from .evaluation import EvaluationSettings
from .held_text import HeldText
from .sampling import Sampling, draw_tokens
from .scores import LN2, data_frame
from .state import State
from .stops import token_texts

__all__ = ["NonFiniteScoreWarning", "Scores", "Stream", "restore_stream", "warn_not_finite"]


class NonFiniteScoreWarning(RuntimeWarning):
    """A score was not finite, so the row's memory was reset: later scores only depend on later tokens."""


@dataclass(frozen=True)
class Scores:
    """Scores of consecutive tokens.

    Attributes:
        index: (n,) places of the tokens in the document, from 0.
        tokens: (n,) token ids.
        log_probs: (n,) natural logarithms of the tokens' probabilities.
        context: (n,) number of tokens of the document that each prediction attended to.
        tokenizer: the model's, which `text` and `to_pandas` use.
    """

    index: npt.NDArray[np.int64]
    tokens: npt.NDArray[np.int64]
    log_probs: npt.NDArray[np.float32]
    context: npt.NDArray[np.int64]
    tokenizer: Tokenizer

    @property
    def bits(self) -> npt.NDArray[np.float64]:
        """The surprisal of each token (n,), in bits."""
        return -self.log_probs.astype(np.float64) / LN2

    @property
    def text(self) -> str:
        """The text of the tokens."""
        return self.tokenizer.decode(self.tokens) if len(self) else ""

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, part: slice) -> Scores:
        """Return the scores of a part of the tokens."""
        return Scores(self.index[part], self.tokens[part], self.log_probs[part], self.context[part], self.tokenizer)

    def __repr__(self) -> str:
        place = f" from {self.index[0]}" if len(self) else ""
        return f"Scores({len(self)} tokens{place}, {self.bits.sum():.2f} bits)"

    def to_pandas(self) -> Any:
        """Return a `pandas.DataFrame` with a row for each token, and the columns of `score --per token`.

        Raises:
            XlruntimeError: pandas is not installed.
        """
        return data_frame(
            {
                "index": self.index,
                "token": token_texts(self.tokenizer, self.tokens.tolist()),
                "id": self.tokens,
                "log_prob": self.log_probs,
                "surprisal_bits": self.bits,
                "context": self.context,
            }
        )


class Stream:
    """A walk through one document of any length at constant memory. Only one thread at a time may use it.

    A feed's last token has no target yet: the stream holds it, and runs it when the next token arrives. Without
    `same_length`, scores depend on the ends of feeds. If a document has no positions left, it is refused, or with
    `restart` position and memory are reset (see `EvaluationSettings`).

    Attributes:
        engine: runs the steps; shared with other streams.
        evaluation: the evaluation settings, such as the length of memory and of steps.
        memory: the carried memory; `memory.nbytes` is its size in bytes.
        pending: id of the held token; None before the first token.
        position: number of tokens taken of the document, the held one included.
        held: the end of the text, which has no tokens yet because a later piece may change them.
    """

    def __init__(self, engine: Engine, evaluation: EvaluationSettings, capacity: int | None = None) -> None:
        if evaluation.full_document:
            raise OptionError(
                f"{engine.folder}: this model reads each document in one step and carries no memory, so it "
                "cannot stream.",
                hint="Use Model.score, Model.score_tokens or Model.generate on whole documents.",
            )
        self.engine = engine
        self.evaluation = evaluation
        self.memory = engine.new_memory(evaluation, 1, capacity)
        if evaluation.segmentation_matters and self.memory.max_segment < evaluation.segment_len:
            raise OptionError(
                f"a capacity of {capacity} slots would cut segments of {evaluation.segment_len} tokens, on which the "
                "scores depend without same_length.",
                hint=f"Give at least {evaluation.capacity()}.",
            )
        self.pending: int | None = None
        self.position = 0  # tokens fed so far
        self.held = HeldText()

    def __repr__(self) -> str:
        return f"Stream({self.position:,} tokens read, memory of {self.memory.nbytes:,} bytes)"

    def feed(self, source: str | bytes | npt.NDArray[np.int64] | list[int]) -> Scores:
        """Take the next piece of the document, of any length, cut anywhere.

        The pieces have the tokens of the whole text. So the stream holds back what a later piece may still change: for
        most tokenizers the last word or two. Their scores come with a later piece, or by `flush`. Of a run of 4,096
        bytes without a boundary, all tokens are taken; `held.unsettled_cuts` counts these cuts. A line of a vocabulary
        ends when its newline is fed. Token ids come after the held text, as if it ended there.

        Returns:
            The new scores: of every token that is certain now, except the document's first token.

        Raises:
            TokenError: an id is outside the vocabulary.
            TextError: the text cannot be tokenized, the tokenizer cannot say which tokens a growing text keeps, or the
                document gets longer than the model can read. After either error, the stream is unchanged.
        """
        ids, held = self.held.fed(source, self.engine.tokenizer, self.pending)
        scores = self._score(self._checked(ids), refill=True)
        self.held = held
        return scores

    def flush(self) -> Scores:
        """Take the text that is held back as if the document ended here, and return its scores.

        Raises:
            TextError: the held text ends within a character.
        """
        return self.feed([])

    def preview(self) -> Scores:
        """Return the scores that `flush` would return, without changing the stream."""
        return self._continued(self.held.fed([], self.engine.tokenizer, self.pending)[0])

    def score_continuation(self, source: str | bytes | npt.NDArray[np.int64] | list[int]) -> Scores:
        """Return the scores of a continuation that ends the document, without changing the stream: to compare some.

        A token that begins in the text held back and ends in the continuation counts as the continuation's. The cost
        is only the step over both. Up to `memory.max_segment` tokens are written to spare slots of the memory and
        hidden again; a longer continuation is fed to a `fork`.

        Raises:
            TokenError, TextError: as `feed`.
        """
        return self._continued(*self.held.continued(source, self.engine.tokenizer, self.pending))

    def _continued(self, ids: npt.NDArray[np.int64], skipped: int = 0) -> Scores:
        """Return the scores of ids (n,) after the first `skipped`, and leave the stream as it was."""
        self._checked(ids)
        skipped -= self.pending is None and skipped > 0  # a document's first token has no score
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
                return scores[skipped:]
        return self.fork()._score(ids, refill=True)[skipped:]

    def fork(self) -> Stream:
        """Return an independent stream at the same place of the same document; bit-equal if fed the same.

        This copies the memory (`memory.nbytes`), and does not read the document again.
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
        """Continue the document, after `prompt` if given: yield token ids as they are drawn, until one ends the text.

        The prompt is run when the first token is requested. Drawn tokens become part of the document: a later feed or
        generate goes on after them. So does the one that ends the text, which is not yielded.

        Raises:
            OptionError: max_tokens is negative.
            TextError: there is nothing to continue, or the document could get longer than the model can read.
        """
        if max_tokens < 0:
            raise OptionError(f"max_tokens is {max_tokens}, at least 0 is needed.")
        ids, _ = self.held.continued([] if prompt is None else prompt, self.engine.tokenizer, self.pending)
        self._checked(ids)
        if self.pending is None and not len(ids):
            raise TextError(
                "nothing to continue: the prompt is empty and the stream has read nothing.", hint="Give a prompt."
            )
        self._check_length(len(ids) + max_tokens, f"the document with {max_tokens:,} tokens more")
        return self._generate(ids, max_tokens, sampling or Sampling())

    def reset(self) -> None:
        """Forget the document; the next feed starts a new one."""
        self.memory.restart(0, refill=True)  # a restored state may have any numbers
        self.pending, self.position, self.held = None, 0, HeldText()

    def save(self, file: str | Path) -> None:
        """Write the state (safetensors), from which `Model.restore` goes on bit-equal.

        The file appears whole or not at all.

        Raises:
            OSError: the file cannot be written; an older one stays as it was.
        """
        memory = self.memory
        state = State(
            fingerprint=self.engine.bundle.fingerprint,
            settings=self.evaluation.to_dict(),
            capacity=memory.capacity,
            offset=memory.offset,
            length=int(memory.memory_length[0]),
            history=int(memory.position[0]),
            pending=self.pending,
            position=self.position,
            held=self.held,
            tokenizer=self.engine.bundle.tokenizer_digest,
            memory=memory.arrays(),
        )
        state.write(Path(file))

    def _checked(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        check_ids(ids, self.engine.bundle.vocab_size, "the stream", self.position)
        return ids

    def _check_length(self, more: int, name: str) -> None:
        held = 0 if self.pending is None else 1
        check_length(int(self.memory.position[0]) + held + more, self.evaluation, name)

    def _take(self, ids: npt.NDArray[np.int64], name: str) -> npt.NDArray[np.int64]:
        """Hold the first token of a document, and return the rest of ids (n,) as targets."""
        self._check_length(len(ids), name)
        if self.pending is None and len(ids):
            self.pending, ids = int(ids[0]), ids[1:]
            self.position = 1
        return ids

    def _segments(self, targets: npt.NDArray[np.int64]) -> Iterator[npt.NDArray[np.int64]]:
        """Cut targets (n,) into segments that fit a step. Request each one after the previous one has run."""
        longest = min(self.memory.max_segment, self.engine.longest_step("score", self.evaluation.segment_len))
        while len(targets):
            S = min(longest, self._room())
            yield targets[:S]
            targets = targets[S:]

    def _room(self) -> int:
        """Return the number of tokens that still fit before a restart; if there are none, restart first."""
        if not self.memory.room[0]:
            self._check_length(1, "the document")
            self.memory.restart(0, refill=True)
        return int(self.memory.room[0])

    def _score(self, ids: npt.NDArray[np.int64], refill: bool) -> Scores:
        """Score ids (n,), the document's next tokens; `refill` the memory after scores that are not finite."""
        targets = self._take(ids, "the document")
        first = self.position
        parts = [self._step(segment, refill) for segment in self._segments(targets)]
        if not parts:
            none = np.zeros(0, np.int64)
            return Scores(none, none, np.zeros(0, np.float32), none, self.engine.tokenizer)
        log_probs = np.concatenate([log_prob for log_prob, _ in parts])
        context = np.concatenate([seen for _, seen in parts])
        index = np.arange(first, first + len(targets), dtype=np.int64)
        return Scores(index, targets, log_probs, context, self.engine.tokenizer)

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
        before = ids if self.pending is None else np.append(self.pending, ids)
        for segment in self._segments(self._take(ids, "the prompt")):
            self._run("score", segment)
        self.held, hint = replace(self.held, raw=b"", begun=True), "Reset the stream."
        yield from draw_tokens(self.engine, self._next_logits, self._hold, max_tokens, sampling, hint, before)

    def _next_logits(self) -> npt.NDArray[np.float32]:
        """Run the held token; return the logits of the next one."""
        self._room()
        # The target is not known yet. The generate graph has no such input, so its value does not matter.
        logits: npt.NDArray[np.float32] = self._run("generate", np.array([self.pending], np.int64))["logits"][0]
        if not np.isfinite(logits.max()):  # minus infinity is an impossible token
            self.memory.restart(0, refill=True)
        return logits

    def _hold(self, token: int) -> None:
        self.pending = token


def warn_not_finite(name: str, position: int) -> None:
    """Warn that a row had scores that are not finite, and that its memory was reset."""
    message = f"{name}: scores that are not finite before token {position}; its memory was refilled with first values."
    warnings.warn(message, NonFiniteScoreWarning, stacklevel=3)


def restore_stream(engine: Engine, file: Path, capacity: int | None = None) -> Stream:
    """Return the stream that `Stream.save` wrote; see `Model.restore`."""
    if not file.is_file():
        problem = "a folder" if file.is_dir() else "no such file"
        raise FileNotFoundError(f"{file}: {problem}; expected a stream's state that Stream.save wrote.")
    state = State.read(file)
    stream = Stream(engine, state.evaluation(engine, file), state.capacity if capacity is None else capacity)
    stream.memory.load_rows(state.memory, state.offset, state.capacity, [state.length], [state.history])
    stream.pending, stream.position, stream.held = state.pending, state.position, state.held
    return stream
