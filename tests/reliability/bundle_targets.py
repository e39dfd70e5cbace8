"""Damage bundles as disks and people damage them, in some cases with digests computed again afterwards."""

from __future__ import annotations

import functools
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.helpers.manifests import seal
from tests.helpers.paths import GOLDEN
from tests.reliability.damage import damage_bytes, damage_json
from tests.reliability.judging import Outcome, judged
from xlruntime import Model, XlruntimeError, load
from xlruntime.bundle import MANIFEST
from xlruntime.bundle_files import digest_file, read_bundle
from xlruntime.sampling import Sampling
from xlruntime.tokenizers.vocabulary import Vocabulary

__all__ = ["BundleBytes", "ManifestFields", "ResealedFiles", "Sample", "samples"]

# The large ones take ten times as long to open, so they are tried less often.
NAMES = (*("post_lnorm_same_length_empty", "pre_lnorm_same_length_zeros", "pre_lnorm_empty") * 4,
         "post_lnorm_zeros", "reformer_band", "reformer_chunk", "reformer_paper")  # fmt: skip
TEXT = "It was the best of times, it was the worst of times."
COMPUTING = {"tokenizer", "document", "settings", "rings", "memory", "graphs"}  # fields that say what is computed
CLOSE = 1e-5  # nats: the same graphs on the same tokens


class Sample:
    """An undamaged bundle, its files, and its results for a few tokens."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest = json.loads((folder / MANIFEST).read_text("utf-8"))
        self.files = {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
        self.takes_text = self.manifest["tokenizer"]["kind"] != "none"
        self.vocab_size: int = self.manifest["model"]["vocab_size"]
        self.ids = np.random.default_rng(7).integers(0, min(self.vocab_size, 29), 40)
        self.expected = self.results(load(folder, threads=1))

    def results(self, model: Model) -> list[npt.NDArray[Any]]:
        """Scores of the ids, the tokens generated after them, and scores of a text."""
        documents: list[Any] = [self.ids, *([TEXT] if self.takes_text else [])]
        parts = list(model.score_tokens(documents))
        scores = [
            np.concatenate([part.log_probs for part in parts if part.number == number])
            for number in range(len(documents))
        ]
        drawn = list(model.generate(self.ids[:10], max_tokens=3, sampling=Sampling(temperature=0)))
        return [*scores, np.array(drawn)]

    def is_right(self, found: list[npt.NDArray[Any]]) -> bool:
        """Return whether the results equal those of the undamaged bundle."""
        return len(found) == len(self.expected) and all(
            a.shape == b.shape and bool((abs(a - b) <= CLOSE).all()) for a, b in zip(found, self.expected, strict=True)
        )


def seal_files(folder: Path, manifest: dict[str, Any]) -> None:
    """Write a manifest with the digests of the current files, and its own digest."""
    for name in manifest["files"]:
        digest = digest_file(folder / name)
        manifest["files"][name] = {"sha256": digest.sha256, "size": digest.size}
    seal(folder, json.dumps(manifest).encode())


def _with_tokenizer(source: Path, folder: Path, kind: str, name: str, content: bytes) -> Path:
    shutil.copytree(source, folder)
    (folder / name).write_bytes(content)
    manifest = json.loads((folder / MANIFEST).read_text("utf-8"))
    manifest["files"][name] = {"sha256": "0" * 64, "size": 0}
    manifest["tokenizer"] = {"kind": kind, "file": name, "first_id": 0}
    seal_files(folder, manifest)
    return folder


def _words() -> Vocabulary:
    words = sorted(set(TEXT.split()))
    more = [f"w{number}" for number in range(27 - len(words))]
    return Vocabulary("words", ("<unk>", "<eos>", *words, *more), unk="<unk>", line_end="<eos>")


def _tokenizers_json() -> bytes:
    words = ["<unk>", *sorted(set(TEXT.split()))]
    words += [f"w{number}" for number in range(29 - len(words))]
    model = {"type": "WordLevel", "vocab": {word: number for number, word in enumerate(words)}, "unk_token": "<unk>"}
    return json.dumps({"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
                       "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": None, "decoder": None,
                       "model": model}).encode()  # fmt: skip


def _sentencepiece_model() -> bytes:
    import io

    import sentencepiece

    file = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([TEXT] * 5), model_writer=file, vocab_size=29, hard_vocab_limit=False, minloglevel=2
    )
    return file.getvalue()


@functools.cache
def samples(folder: Path) -> dict[str, Sample]:
    """Return every golden bundle, and one for each kind of tokenizer with a file."""
    made = {}
    for name in dict.fromkeys(NAMES):
        copy = Path(shutil.copytree(GOLDEN / name / "bundle", folder / name))
        made[name] = Sample(copy)
    ids = GOLDEN / "pre_lnorm_empty" / "bundle"
    for kind, file, content in (
        ("vocabulary", "vocabulary.json", _words().to_json().encode()),
        ("tokenizers", "tokenizer.json", _tokenizers_json()),
        ("sentencepiece", "tokenizer.model", _sentencepiece_model()),
    ):
        made[kind] = Sample(_with_tokenizer(ids, folder / kind, kind, file, content))
    return made


class _Bundles:
    """Base of the three kinds of damage, with a copy of a bundle to damage."""

    def __init__(self, folder: Path) -> None:
        self._copy = folder / "copy"
        self._samples = samples(folder)

    def _pick(self, rng: random.Random, names: tuple[str, ...]) -> Sample:
        sample = self._samples[rng.choice(names)]
        shutil.rmtree(self._copy, ignore_errors=True)
        self._copy.mkdir()
        for name, content in sample.files.items():
            (self._copy / name).write_bytes(content)
        return sample

    def _judge(self, sample: Sample, may_differ: bool, look: Callable[[], object] = lambda: None) -> Outcome:
        def attempt() -> list[npt.NDArray[Any]]:
            look()
            return sample.results(load(self._copy, threads=1))

        return judged(attempt, (XlruntimeError,), sample.is_right, may_differ)


class BundleBytes(_Bundles):
    """A bundle in which a file has damaged bytes, is missing, is exchanged with another, or is not a file."""

    def case(self, number: int) -> Outcome:
        rng = random.Random(f"bundle {number}")
        sample = self._pick(rng, (*NAMES, "vocabulary", "tokenizers", "sentencepiece"))
        # Half of the cases damage the manifest, because everything else depends on it.
        name = MANIFEST if rng.random() < 0.5 else rng.choice(sorted(sample.files))
        path, other = self._copy / name, self._copy / rng.choice(sorted(sample.files))
        kind = rng.random()
        if kind < 0.9:
            path.write_bytes(damage_bytes(sample.files[name], rng, sample.files[other.name]))
        elif kind < 0.94:
            path.unlink()
            if rng.random() < 0.3:
                path.mkdir()
            elif rng.random() < 0.5:
                path.symlink_to(rng.choice((other.name, "nowhere", "/etc/passwd", path.name)))
        else:
            path.write_bytes(sample.files[other.name])
            other.write_bytes(sample.files[name])
        return self._judge(sample, may_differ=False)


class ManifestFields(_Bundles):
    """A manifest with other content under a matching digest; `inspect` reads it, too."""

    def case(self, number: int) -> Outcome:
        from xlexport.commands.inspect import bundle_rows

        rng = random.Random(f"manifest {number}")
        sample = self._pick(rng, (*NAMES, "vocabulary"))
        text = damage_json(sample.manifest, rng)
        seal(self._copy, text.encode("utf-8", "surrogatepass"))
        return self._judge(
            sample,
            may_differ=bool(_differ_in(sample.manifest, text) & COMPUTING),
            look=lambda: bundle_rows(read_bundle(self._copy), self._copy),
        )


def _differ_in(manifest: dict[str, Any], text: str) -> set[str]:
    """Return the top-level fields that have changed."""
    try:
        changed = json.loads(text)
    except (ValueError, RecursionError):
        return set()
    if not isinstance(changed, dict):
        return set()
    return {name for name in {*manifest, *changed} if manifest.get(name, ...) != changed.get(name, ...)}


class ResealedFiles(_Bundles):
    """Graphs, weights, first rows and tokenizers with damaged bytes and matching digests.

    A bundle with matching digests is trusted, so it may give other results. But every error must be one of ours.
    """

    def case(self, number: int) -> Outcome:
        rng = random.Random(f"resealed {number}")
        names = ("post_lnorm_same_length_empty", "pre_lnorm_same_length_zeros", "vocabulary", "tokenizers")
        sample = self._pick(rng, (*names, "vocabulary", "tokenizers", "sentencepiece", "sentencepiece"))
        computing = [name for name in sample.files if name not in (MANIFEST, "README.md", "parity.json")]
        tokenizer = sample.manifest["tokenizer"]["file"]
        name = tokenizer if tokenizer is not None and rng.random() < 0.7 else rng.choice(computing)
        content = sample.files[name]
        if name.endswith(".json") and rng.random() < 0.6:
            changed = damage_json(json.loads(content), rng).encode("utf-8", "surrogatepass")
        else:
            changed = damage_bytes(content, rng)
        (self._copy / name).write_bytes(changed)
        seal_files(self._copy, json.loads(sample.files[MANIFEST]))
        return self._judge(sample, may_differ=True)
