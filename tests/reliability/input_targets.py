"""Documents of any bytes, as `xlexport score` reads them: text, ids, JSON lines, gzip, sound and damaged."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import random
from pathlib import Path
from typing import Any

import numpy as np

from tests.reliability.bundle_targets import CLOSE, TEXT, Sample, samples
from tests.reliability.damage import VALUES, damage_bytes, damage_json
from tests.reliability.judging import Outcome, judged
from xlexport.commands import run
from xlexport.scoring.inputs import LOOKED_AT
from xlruntime import Model, XlruntimeError, load

__all__ = ["Inputs"]

BYTES, WHOLE = "post_lnorm_same_length_empty", "pre_lnorm_empty"
UTF_16 = (b"\xff\xfe", b"\xfe\xff")  # marks; those of UTF-32 begin with one, or have a zero byte
WORDS = ("vocabulary", "tokenizers", "sentencepiece")
CLEAR_DEPTHS = (100, 5000, 200_000)  # levels of nesting; between these, the caller decides whether Python can read it
NO_IDS = ([-1], [256], [2**63], [1.5], [[1]], [None], ["a"], [True, 300], [3, 10**30])
Documents = list[list[int] | None]  # ids of each document; None: it must be refused


class _Failed(Exception):
    """The command printed something wrong."""


class Inputs:
    """The command must score the documents that independent code can read, report the others, and do nothing else."""

    def __init__(self, folder: Path) -> None:
        self._samples = samples(folder)
        self._models = {name: load(self._samples[name].folder, threads=1) for name in (BYTES, WHOLE, *WORDS)}
        self._folder = folder / "documents"
        self._folder.mkdir()

    def case(self, number: int) -> Outcome:
        rng = random.Random(f"input {number}")
        kind = rng.choice(("text", "words", "ids", "lines", "id lines", "gzip", "feeds"))
        name = {"words": rng.choice(WORDS), "ids": WHOLE, "id lines": WHOLE}.get(kind, BYTES)
        model, sample = self._models[name], self._samples[name]
        if kind == "feeds":
            return self._feeds(rng, model)
        raw, options = self._file(rng, kind)
        binary = rng.random() < 0.5
        options += ["--set", "binary=true"] if binary else []
        file = self._folder / ("document.gz" if kind == "gzip" else "document")
        file.write_bytes(raw)
        expected = _expected(raw, kind, model, sample, binary)
        return judged(
            lambda: self._scored(sample.folder, [str(file), *options], expected),
            (XlruntimeError,),
            lambda found: _is_right(found, expected, model),
        )

    def _file(self, rng: random.Random, kind: str) -> tuple[bytes, list[str]]:
        long = (TEXT * rng.randint(0, 40))[: rng.randint(0, 400)].encode()
        text = rng.choice((long, rng.randbytes(rng.randint(0, 300)), "naïve 日本 \U0001f642\n\n".encode() * 4))
        if kind == "gzip":
            packed = gzip.compress(text, mtime=0)
            return (damage_bytes(packed, rng) if rng.random() < 0.8 else packed), []
        if kind == "ids":
            ids = " ".join(str(rng.randrange(29)) for _ in range(rng.randint(0, 60))).encode()
            return (damage_bytes(ids, rng, text) if rng.random() < 0.8 else ids), ["--ids"]
        if "lines" in kind:
            lines = [self._line(rng, kind) for _ in range(rng.randint(0, 4))]
            whole = "\n".join(lines).encode("utf-8", "surrogatepass")
            options = ["--field", "text", *(["--ids"] if kind == "id lines" else [])]
            return (damage_bytes(whole, rng, text) if rng.random() < 0.4 else whole), options
        return (damage_bytes(text, rng) if rng.random() < 0.3 else text), []

    @staticmethod
    def _line(rng: random.Random, kind: str) -> str:
        text: Any = TEXT[rng.randrange(20) :]
        if kind == "id lines":
            text = [rng.randrange(29) for _ in range(rng.randrange(30))]
        fields = {"text": rng.choice((text, text, rng.choice(VALUES))), "id": rng.choice((1, "name", None, [2]))}
        line = damage_json(fields, rng, CLEAR_DEPTHS) if rng.random() < 0.5 else json.dumps(fields)
        return line.replace("\n", " ")

    def _scored(self, bundle: Path, arguments: list[str], expected: Documents) -> list[float]:
        out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run(["score", str(bundle), *arguments, "--json", "--threads", "1"])
        out.flush()
        messages, records = err.getvalue().splitlines(), out.buffer.getvalue().splitlines()
        if code != (1 if None in expected or not expected else 0):
            raise _Failed(
                f"exit status {code}, {len(expected)} documents of which {expected.count(None)} are bad: {messages}"
            )
        for line in messages:
            if not line.isprintable() or "Traceback" in line or len(line) > 2000:
                raise _Failed(ascii(line))
        if code and not any(line.startswith('{"error": ') for line in messages):
            raise _Failed(f"exit status {code} without an error: {messages}")
        return [json.loads(line)["nats"] for line in records]

    def _feeds(self, rng: random.Random, model: Model) -> Outcome:
        """Check that bytes in pieces of any lengths score like the whole, and that invalid ids are refused."""
        raw = rng.randbytes(rng.randint(2, 200))
        whole = model.stream().feed(raw).log_probs

        def attempt() -> Any:
            stream, parts, left = model.stream(), [], raw
            while left:
                size = rng.randint(0, 40)
                wrong: Any = rng.choice(NO_IDS)
                with contextlib.suppress(XlruntimeError):
                    stream.feed(wrong)
                parts.append(stream.feed(rng.choice((left[:size], list(left[:size])))).log_probs)
                left = left[size:]
            return np.concatenate(parts)

        return judged(
            attempt,
            (),
            lambda found: found.shape == whole.shape and bool((abs(found - whole) <= CLOSE).all()),
        )


def _expected(raw: bytes, kind: str, model: Model, sample: Sample, binary: bool) -> Documents:
    """Return each document's ids, read in the plainest way."""
    try:
        if kind == "gzip":
            raw = gzip.decompress(raw)
        if not binary and (raw.startswith(UTF_16) or b"\0" in raw[:LOOKED_AT]):
            return [None]
        if kind == "ids":
            found: Documents = [[int(word) for word in raw.removeprefix(b"\xef\xbb\xbf").split()]]
        elif "lines" in kind:
            found = [_of_line(line, kind) for line in raw.split(b"\n") if line.strip()]
        else:
            found = [model.tokenizer.encode(raw).tolist()]
    except (ValueError, OSError, EOFError, gzip.zlib.error):  # type: ignore[attr-defined]
        return [None]
    size = sample.vocab_size
    return [ids if ids and len(ids) > 1 and all(0 <= token < size for token in ids) else None for ids in found]


def _of_line(line: bytes, kind: str) -> list[int] | None:
    try:
        value = json.loads(line.strip().decode("utf-8-sig"))
        text = value["text"] if isinstance(value, dict) else None
        if kind == "lines":
            return list(text.encode("utf-8")) if isinstance(text, str) else None
    except (ValueError, RecursionError, KeyError):
        return None
    good = isinstance(text, list) and all(type(token) is int for token in text)
    return text if good else None


def _is_right(found: list[float], expected: Documents, model: Model) -> bool:
    right = [score.nats for score in model.score([ids for ids in expected if ids is not None])]
    return len(found) == len(right) and all(abs(a - b) <= CLOSE * 400 for a, b in zip(found, right, strict=True))
