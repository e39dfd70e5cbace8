"""Evaluate a corpus by published protocols: as parallel streams, as the original scripts do.

    kimiyoung   streams of equal length, one per row of the batch; the first token of each is not predicted
    nvidia      the same, but each row first runs the end of the stream before its own, which is not counted
    document    one stream, with the same result as `Model.score`

Under `kimiyoung`, the sentences of a corpus (One Billion Word) may be packed into the rows instead. docs/protocols.md
has the settings of published scores.

corpus = read_corpus(model, Document("test.txt", Path("test.txt")))
score = walk(model, arrange(corpus, model.evaluation(segment_len=128, mem_len=1600)))
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .documents import Document, check_length
from .engine import Engine
from .errors import OptionError, TextError, TokenError, XlruntimeError
from .evaluation import EvaluationSettings, SettingValue
from .limits import Limits
from .scores import LN2, Sum, flat_fields, perplexity
from .token_reader import TokenReader
from .tokenizers.vocabulary import Vocabulary

__all__ = ["PROTOCOLS", "Corpus", "CorpusScore", "Protocol", "Streams", "arrange", "read_corpus", "walk"]

READ_TOKENS = 1 << 16  # tokens of a corpus that are read at a time
CORPUS_LIMITS = Limits(bytes=8 << 30, seconds=math.inf)  # a billion tokens; tokenizing may take any time
UNIT_NAMES = {"words": "word", "characters": "character", "bytes": "byte"}

Ids = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Protocol:
    """The properties of a protocol."""

    batch_size: int  # default number of streams
    warmup: bool = False  # whether each row first runs the end of the stream before its own
    one_stream: bool = False
    packs_sentences: bool = False  # if the vocabulary marks their beginning and end


PROTOCOLS: Mapping[str, Protocol] = {
    "kimiyoung": Protocol(batch_size=10, packs_sentences=True),
    "nvidia": Protocol(batch_size=16, warmup=True),
    "document": Protocol(batch_size=1, one_stream=True),
}


@dataclass(frozen=True)
class Corpus:
    """A tokenized corpus.

    Attributes:
        name: for reports and messages.
        ids: (n,) token ids.
        unit: the kind of the tokens: byte, character, word, or just token.
        bytes: size of the text; 0 if token ids were given.
        dropped_bytes: bytes that no token covers; the vocabulary of enwik8 has no newline.
        unknown_tokens: number of tokens for text that the vocabulary lacks.
        marks: ids of the tokens at the beginning and at the end of a sentence, if the vocabulary has both.
    """

    name: str
    ids: Ids
    unit: str = "token"
    bytes: int = 0
    dropped_bytes: int = 0
    unknown_tokens: int = 0
    marks: tuple[int, int] | None = None


@dataclass(frozen=True)
class Streams:
    """A corpus as parallel streams, to be walked `evaluation.segment_len` columns at a time.

    Streams that are longer than the model can read restart together at its last position, if `restart` is set.

    Every token of the corpus is scored, only read (the first of a stream or sentence), or trimmed.

    Attributes:
        tokens: (B, N) tokens that the model reads.
        targets: (B, N) the token after each.
        warmup: number of first columns that are run only to fill the memory.
        unpredicted: number of tokens that are read but not predicted.
        trimmed: number of tokens at the end of the corpus that do not fill a column or batch.
    """

    corpus: Corpus
    evaluation: EvaluationSettings
    protocol: str
    sentences: bool
    tokens: Ids
    targets: Ids
    warmup: int
    unpredicted: int
    trimmed: int


@dataclass(frozen=True)
class CorpusScore:
    """The score of a corpus under a protocol; means are over all predicted tokens."""

    corpus: str
    protocol: str
    sentences: bool
    batch_size: int
    stream_len: int  # tokens predicted in each stream
    tokens: int  # scored + unpredicted + trimmed
    scored_tokens: int
    unpredicted_tokens: int
    trimmed_tokens: int
    unknown_tokens: int
    bytes: int
    dropped_bytes: int
    warmup_segments: int
    unit: str
    nats: float
    nats_per_token: float
    bits_per_token: float
    perplexity: float
    segment_len: int
    settings: Mapping[str, SettingValue]  # declared by the bundle
    restart: bool
    first_memory: str
    tokens_per_second: float  # warm-up included

    def to_dict(self) -> dict[str, Any]:
        """Return all fields by name, each setting as a field of its own."""
        return flat_fields(self)


def read_corpus(engine: Engine, document: Document) -> Corpus:
    """Tokenize a whole corpus, and keep it with four bytes per token.

    Raises:
        TokenError, TextError, OSError: the document cannot be read, or exceeds CORPUS_LIMITS.
    """
    budget = CORPUS_LIMITS.budget(document.name, TextError)
    reader = TokenReader(document, engine.tokenizer, engine.bundle.vocab_size)
    parts: list[Ids] = []
    while not reader.at_end:
        parts.append(reader.take(READ_TOKENS).ids.astype(np.int32))
        budget.charge(2 * parts[-1].nbytes)  # they are joined
    vocabulary = getattr(engine.tokenizer, "vocabulary", None)
    unit, marks = "byte" if engine.bundle.tokenizer.kind == "bytes" else "token", None
    if isinstance(vocabulary, Vocabulary):
        unit = UNIT_NAMES.get(vocabulary.kind, unit)
        start, end = vocabulary.id_of(vocabulary.line_start), vocabulary.id_of(vocabulary.line_end)
        marks = None if start is None or end is None else (start, end)
    return Corpus(
        name=document.name,
        ids=np.concatenate([np.zeros(0, np.int32), *parts]),
        unit=unit,
        bytes=reader.counts.bytes,
        dropped_bytes=reader.counts.dropped_bytes,
        unknown_tokens=reader.counts.unknown_tokens,
        marks=marks,
    )


def arrange(
    corpus: Corpus,
    evaluation: EvaluationSettings,
    protocol: str = "kimiyoung",
    batch_size: int | None = None,
    sentences: bool | None = None,
) -> Streams:
    """Arrange a corpus as the streams of a protocol.

    Args:
        batch_size: number of parallel streams; None: the protocol's own number. The score depends on it.
        sentences: pack sentences into the rows, instead of cutting the corpus into streams. None: do so if the protocol
            packs sentences and the vocabulary marks them.

    Raises:
        OptionError: settings contradict each other; lists all problems.
        TextError: the corpus is too short for the streams, or they are longer than the model can read.
        TokenError: the corpus does not consist of sentences.
    """
    if protocol not in PROTOCOLS:
        raise OptionError(f"protocol is {protocol!r}, expected one of {', '.join(PROTOCOLS)}.")
    rules = PROTOCOLS[protocol]
    B = rules.batch_size if batch_size is None else batch_size
    problems = []
    if B < 1:
        problems.append(f"batch size is {B}, at least 1 is needed")
    if rules.one_stream and B > 1:
        problems.append(f"batch size is {B}, but protocol {protocol} is one stream")
    if rules.warmup and evaluation.full_document:
        problems.append(f"protocol {protocol} warms up a memory, but this model reads in one step and has none")
    if sentences and not rules.packs_sentences:
        problems.append(f"protocol {protocol} does not pack sentences")
    if sentences and corpus.marks is None:
        problems.append("sentences are asked for, but the vocabulary marks neither their beginning nor their end")
    if problems:
        raise OptionError("; ".join(problems) + ".")
    S = evaluation.segment_len
    if corpus.marks is not None and (rules.packs_sentences if sentences is None else sentences):
        streams = _pack_sentences(corpus, corpus.marks, evaluation, protocol, B)
    else:
        W = -(-evaluation.most_rows // S) * S if rules.warmup else 0
        streams = _cut(corpus, evaluation, protocol, B, W)
    N = streams.tokens.shape[1]
    check_length(N + 1, evaluation, corpus.name, f"streams of {N + 1:,} tokens")
    return streams


def _cut(corpus: Corpus, evaluation: EvaluationSettings, protocol: str, B: int, W: int) -> Streams:
    """Cut B equal streams, each after the last W tokens of the stream before it (the first: of the last)."""
    n = len(corpus.ids) // B
    needed = max(2, W)
    if n < needed:
        warmup = "" if W == 0 else f", to warm up a memory of {evaluation.most_rows} rows"
        raise TextError(
            f"{corpus.name}: {len(corpus.ids):,} tokens make {B} streams of {n:,}, at least {needed:,} each are "
            f"needed{warmup}.",
            hint=f"Give a longer text, or a smaller batch size{' or memory' if W else ''}.",
        )
    streams = corpus.ids[: B * n].reshape(B, n)
    if W:
        streams = np.concatenate([np.roll(streams, 1, axis=0)[:, n - W :], streams], axis=1)  # (B, W + n)
    return Streams(
        corpus=corpus,
        evaluation=evaluation,
        protocol=protocol,
        sentences=False,
        tokens=streams[:, :-1],
        targets=streams[:, 1:],
        warmup=W,
        unpredicted=B,
        trimmed=len(corpus.ids) - B * n,
    )


def _pack_sentences(
    corpus: Corpus, marks: tuple[int, int], evaluation: EvaluationSettings, protocol: str, B: int
) -> Streams:
    """Fill rows segment by segment: when a row's sentence ends, the row takes the next sentence of the corpus.

    A sentence's last token is not read, so the first of the next is not predicted. The last segment is dropped unless
    every row fills it.
    """
    S = evaluation.segment_len
    waiting = _sentences(corpus, *marks)
    rests = [np.zeros(0, np.int32)] * B  # the rest of each row's sentence, from the next token to read
    rows: list[list[Ids]] = [[] for _ in range(B)]  # the last token of each run is not read
    segments = 0
    with contextlib.suppress(StopIteration):  # until no sentence is left
        while True:
            for row, runs in enumerate(rows):
                space = S
                while space:
                    if len(rests[row]) < 2:
                        rests[row] = next(waiting)
                    run = rests[row][: space + 1]
                    rests[row] = rests[row][len(run) - 1 :]
                    space -= len(run) - 1
                    runs.append(run)
            segments += 1
    if not segments:
        raise TextError(
            f"{corpus.name}: its sentences do not fill one segment of {S} tokens in each of {B} rows.",
            hint="Give a longer text, or a smaller batch size.",
        )
    N = segments * S
    tokens = np.stack([np.concatenate([run[:-1] for run in runs])[:N] for runs in rows])
    targets = np.stack([np.concatenate([run[1:] for run in runs])[:N] for runs in rows])
    begun = int(np.count_nonzero(tokens == marks[0]))
    return Streams(
        corpus=corpus,
        evaluation=evaluation,
        protocol=protocol,
        sentences=True,
        tokens=tokens,
        targets=targets,
        warmup=0,
        unpredicted=begun,
        trimmed=len(corpus.ids) - tokens.size - begun,
    )


def _sentences(corpus: Corpus, start: int, end: int) -> Iterator[Ids]:
    """Yield the sentences of a corpus with their marks: tokens `start` and `end`, which may be the same.

    Raises:
        TokenError: the corpus does not consist of sentences.
    """
    starts, ends = np.flatnonzero(corpus.ids == start), np.flatnonzero(corpus.ids == end)
    if start == end:
        starts, ends = starts[0::2], ends[1::2]
    borders = np.concatenate([[0], ends + 1])
    if not np.array_equal(np.concatenate([starts, [len(corpus.ids)]]), borders):
        raise TokenError(
            f"{corpus.name}: expected sentences one after the other, each from token {start} to token {end}; found "
            "another order.",
            hint="To cut the corpus into plain streams, add --set sentences=false.",
        )
    return (corpus.ids[first : last + 1] for first, last in zip(starts, ends, strict=True))


def walk(engine: Engine, streams: Streams, progress: Callable[[int, int], None] | None = None) -> CorpusScore:
    """Score streams, all rows at once, each with a fresh memory.

    Args:
        progress: called after each segment with the number of tokens read so far, and the total number.

    Raises:
        XlruntimeError: a log-probability is not finite, so a mean cannot be computed.
    """
    evaluation, corpus = streams.evaluation, streams.corpus
    longest = engine.longest_step("score", evaluation.segment_len)
    B, N = streams.tokens.shape
    memory = engine.new_memory(evaluation, B)
    log_probs, start = Sum(), 0
    began = time.perf_counter()
    while start < N:
        if not memory.room[0]:  # all rows have the same room
            for row in range(B):
                memory.restart(row)
        border = streams.warmup if start < streams.warmup else N
        most = min(longest, int(memory.room[0]))
        segment = slice(start, min(start + most, border))
        tokens, targets = (np.ascontiguousarray(ids[:, segment], np.int64) for ids in (streams.tokens, streams.targets))
        S = segment.stop - start
        if evaluation.bidirectional and most > S:  # the streams end: their last tokens are read, with any targets
            tokens, targets = (np.concatenate([ids, targets[:, -1:]], axis=1) for ids in (tokens, targets))
        log_prob = engine.step("score", memory, tokens, targets)["log_prob"][:, :S]
        if not np.isfinite(log_prob).all():
            row, column = np.argwhere(~np.isfinite(log_prob))[0]
            raise XlruntimeError(
                f"{corpus.name}: stream {row + 1} of {B}, token {start + column + 1}: a log-probability of "
                f"{log_prob[row, column]}, so the text cannot be scored.",
                hint="Check that the checkpoint's weights are finite.",
            )
        if start >= streams.warmup:
            log_probs.add(log_prob)
        if progress is not None:
            progress(B * segment.stop, streams.tokens.size)
        start = segment.stop
    elapsed = time.perf_counter() - began
    scored = B * (N - streams.warmup)
    nats = 0.0 - log_probs.value
    mean = nats / scored
    return CorpusScore(
        corpus=corpus.name,
        protocol=streams.protocol,
        sentences=streams.sentences,
        batch_size=B,
        stream_len=N - streams.warmup,
        tokens=len(corpus.ids),
        scored_tokens=scored,
        unpredicted_tokens=streams.unpredicted,
        trimmed_tokens=streams.trimmed,
        unknown_tokens=corpus.unknown_tokens,
        bytes=corpus.bytes,
        dropped_bytes=corpus.dropped_bytes,
        warmup_segments=streams.warmup // evaluation.segment_len,
        unit=corpus.unit,
        nats=nats,
        nats_per_token=mean,
        bits_per_token=mean / LN2,
        perplexity=perplexity(mean),
        segment_len=evaluation.segment_len,
        settings=evaluation.values,
        restart=evaluation.restart,
        first_memory=evaluation.fresh_memory,
        tokens_per_second=streams.tokens.size / elapsed if elapsed > 0 else 0.0,
    )
