"""One document's walk: it owns a memory, takes text or tokens in pieces of any size, and can be saved."""

from __future__ import annotations

import copy
import dataclasses
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .documents import check_length, encode
from .errors import OptionError, StateError, TextError, XlruntimeError
from .generation import Sampling
from .json_fields import read_fields
from .spec import Evaluation
from .state_file import read_state, write_state

if TYPE_CHECKING:
    from .model import Model

__all__ = ["NonFiniteScoreWarning", "Scores", "Stream", "restore_stream", "warn_not_finite"]

STATE_KIND = "xlexport stream"
STATE_VERSION = 1
LARGEST_COUNT = 2**62  # tokens: far from overflowing


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
    goes on as one that begins (see `Evaluation`).

    Attributes:
        model: what runs the steps; shared with other streams.
        evaluation: how far a token sees, and how long a step is.
        memory: what is carried; `memory.nbytes` says how large it is.
        pending: id of the token that is held; None before the first one.
        position: tokens of the document taken so far, the held one included.
    """

    def __init__(self, model: Model, evaluation: Evaluation, capacity: int | None = None) -> None:
        if evaluation.whole:
            raise OptionError(
                f"{model.folder}: this model reads each document in one step and carries no memory, so there is no "
                "stream of it. Use Model.score, Model.score_tokens or Model.generate on whole documents."
            )
        self.model = model
        self.evaluation = evaluation
        self.memory = model.new_memory(evaluation, 1, capacity)
        if evaluation.segmentation_matters and self.memory.max_segment < evaluation.segment_len:
            raise OptionError(
                f"a capacity of {capacity} slots would cut segments of {evaluation.segment_len} tokens, on which the "
                f"scores depend without same_length. Give at least {evaluation.capacity()}."
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
            raise TextError("nothing to continue: the prompt is empty and the stream has read nothing. Give a prompt.")
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
        fields = {
            "fingerprint": self.model.bundle.fingerprint,
            "evaluation": dataclasses.asdict(self.evaluation),
            "capacity": memory.capacity,
            "offset": memory.offset,
            "memory_length": int(memory.memory_length[0]),
            "history": int(memory.position[0]),  # under the name it always had
            "pending": self.pending,
            "position": self.position,
        }
        arrays = {entry.input: memory.array(entry) for entry in memory.entries}
        write_state(Path(file), STATE_KIND, STATE_VERSION, fields, arrays)

    def _ids(self, source: str | bytes | npt.NDArray[np.int64] | list[int]) -> npt.NDArray[np.int64]:
        model = self.model
        return encode(source, model.tokenizer, model.bundle.vocab_size, "the stream", self.pending, self.position)

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
        longest = min(self.memory.max_segment, self.model.longest_step("score", self.evaluation.segment_len))
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
        outputs = self.model.step(purpose, self.memory, tokens[None], targets[None])
        self.pending = int(targets[-1])
        self.position += len(targets)
        return outputs

    def _generate(self, ids: npt.NDArray[np.int64], max_tokens: int, sampling: Sampling) -> Iterator[int]:
        for segment in self._segments(self._take(ids, "the prompt")):
            self._run("score", segment)
        rng = sampling.rng()
        for _ in range(max_tokens):
            self._room()
            # The target is not known yet; the generate graph has no such input, so any will do.
            logits = self._run("generate", np.array([self.pending], np.int64))["logits"][0]
            if not np.isfinite(logits).all():
                self.memory.restart(0, refill=True)
                raise XlruntimeError(
                    "the model gave logits that are not finite, so generation stops. Reset the stream."
                )
            self.pending = sampling.draw(logits, rng)
            yield self.pending


def warn_not_finite(name: str, position: int) -> None:
    """Tell that a row had scores that are not finite, and that its memory starts afresh."""
    message = f"{name}: scores that are not finite before token {position}; its memory was refilled and starts afresh."
    warnings.warn(message, NonFiniteScoreWarning, stacklevel=3)


@dataclass(frozen=True)
class _Saved:
    """The fields of a state, within the bounds that a walk keeps."""

    fingerprint: str
    evaluation: Evaluation
    capacity: int
    offset: int
    memory_length: int
    history: int  # of the row's own document, as `RingMemory.position`
    pending: int | None
    position: int

    def __post_init__(self) -> None:
        most = {
            "offset": LARGEST_COUNT,
            "memory_length": self.evaluation.mem_len,
            "position": LARGEST_COUNT,
            "history": self.position,
            "pending": LARGEST_COUNT,
        }
        found = {name: number for name in most if (number := getattr(self, name)) is not None}
        problems = [
            f"{name} is {str(number)[:20]}, expected 0 to {most[name]}"
            for name, number in found.items()
            if not 0 <= number <= most[name]
        ]
        if (self.pending is None) != (self.position == 0):
            problems.append(f"{self.position} tokens were read, and {self.pending} is held")
        if problems:
            raise ValueError("; ".join(problems))

    @property
    def settings(self) -> dict[str, Any]:
        """Those of its evaluation that a stream may choose."""
        names = ("segment_len", "mem_len", "clamp_len", "same_length", "n_hashes", "restart")
        return {name: getattr(self.evaluation, name) for name in names}


def restore_stream(model: Model, file: Path, capacity: int | None = None) -> Stream:
    """A stream as `Stream.save` left it; see `Model.restore`."""
    if not file.is_file():
        raise FileNotFoundError(f"{file}: no such file; expected a stream's state that Stream.save wrote.")
    state, arrays = read_state(file, STATE_KIND, STATE_VERSION, "Save the stream again with Stream.save.")
    if state.get("fingerprint") != model.bundle.fingerprint:
        raise StateError(f"{file}: saved from another bundle than {model.folder}. Open the one it was saved from.")
    try:
        saved = read_fields(_Saved, state)
        if saved.evaluation != model.evaluation(**saved.settings):
            raise OptionError("its evaluation settings are not those of this bundle")
    except ValueError as error:  # OptionError is one, too
        raise StateError(f"{file}: not a stream's state ({error}). Save the stream again with Stream.save.") from error
    if saved.pending is not None and saved.pending >= model.bundle.vocab_size:
        raise StateError(f"{file}: the held token is {saved.pending}, expected 0 to {model.bundle.vocab_size - 1}.")
    _check_arrays(file, arrays, model, saved.capacity)
    stream = Stream(model, saved.evaluation, saved.capacity if capacity is None else capacity)
    stream.memory.load_rows(arrays, saved.offset, saved.capacity)
    stream.memory.memory_length[0] = saved.memory_length
    stream.memory.position[0] = saved.history
    stream.pending, stream.position = saved.pending, saved.position
    return stream


def _check_arrays(file: Path, arrays: dict[str, npt.NDArray[Any]], model: Model, capacity: int) -> None:
    problems = []
    for entry in model.bundle.memory:
        free = {"batch": 1, "capacity": capacity}
        expected = tuple(axis if isinstance(axis, int) else free[axis] for axis in entry.shape)
        found = arrays.get(entry.input)
        if found is None:
            problems.append(f"{entry.input} is missing")
        elif found.shape != expected or found.dtype != entry.dtype:
            problems.append(f"{entry.input} is {found.dtype} {found.shape}, expected {entry.dtype} {expected}")
        elif not np.isfinite(found).all():
            problems.append(f"{entry.input} has numbers that are not finite")
    if problems:
        raise StateError(f"{file}: {'; '.join(problems)}. Save the stream again with Stream.save.")


def _no_scores() -> Scores:
    none = np.zeros(0, np.int64)
    return Scores(none, none, np.zeros(0, np.float32), none)
