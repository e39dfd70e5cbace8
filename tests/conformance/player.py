"""Play the actions of a case with `xlruntime`, and return what they give as JSON values."""

from __future__ import annotations

import base64
import json
import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import safe_open

from xlruntime import (
    Document,
    Sampling,
    Scores,
    StepModel,
    XlruntimeError,
    load,
    load_step_model,
)

from .actions import MANIFEST

SUMMARY = ("tokens", "scored_tokens", "unknown_tokens", "words", "chars", "bytes", "dropped_chars", "dropped_bytes")
RATIOS = ("nats", "bits", "bits_per_byte", "bits_per_char", "bits_per_token", "perplexity")

Action = Mapping[str, Any]


class Player:
    """One case while it is played: the open bundle, its streams and the states that they have saved.

    Args:
        kit: the folder of the kit.
        work: an empty folder for damaged bundles and saved states.
        states: a folder with states of another runtime, which take the place of those of the kit.
        ops: kernels for the custom operators, as in `load`.
    """

    def __init__(self, kit: Path, work: Path, states: Path | None = None, ops: str | Path = "auto") -> None:
        self._kit, self._work, self._ops = kit, work, ops
        self._foreign = states
        self._model: Any = None  # a Model or a StepModel
        self._streams: dict[str, Any] = {}
        self._opened = 0

    def play(self, action: Action) -> dict[str, Any]:
        """Run one action, and return what it gives.

        Raises:
            XlruntimeError: the action is refused.
        """
        found: dict[str, Any] = getattr(self, f"_{action['do']}")(action)
        return found

    def attempt(self, action: Action, where: str, problems: list[str]) -> dict[str, Any] | None:
        """Run one action, and return what it gives, or None if it is refused; note where that is not as it says.

        Raises:
            XlruntimeError: the action is refused, and says nothing of it.
        """
        wanted = action.get("error")
        try:
            values = self.play(action)
        except XlruntimeError as error:
            if wanted is None:
                raise
            if error.code != wanted["code"]:
                problems.append(f"{where}: {type(error).__name__}: {error}; expected {wanted}")
            return None
        if wanted is not None:
            problems.append(f"{where}: nothing was refused, expected {wanted}")
            return None
        return values

    def state(self, name: str) -> Path:
        """Return the file of a state: one that a stream of this case has saved, or one of the kit."""
        own = self._work / f"{name}.state"
        if not own.is_file() and self._foreign is not None:
            own = self._foreign / f"{name}.safetensors"
        return own if own.is_file() else self._kit / "states" / f"{name}.safetensors"

    @property
    def _bundle(self) -> Any:
        assert self._model is not None, "a case opens its bundle first"
        return self._model

    def _open(self, action: Action) -> dict[str, Any]:
        folder = self._kit / "bundles" / action["bundle"]
        if changed := action.get("files"):
            self._opened += 1
            copy = self._work / f"bundle_{self._opened}"
            copy.mkdir()
            for file in folder.iterdir():
                if file.name not in changed:
                    shutil.copyfile(file, copy / file.name)
            for name, source in changed.items():
                if source is not None:
                    shutil.copyfile(self._kit / source, copy / name)
            folder = copy
        manifest = json.loads((self._kit / "bundles" / action["bundle"] / MANIFEST).read_text("utf-8"))
        opens = load_step_model if manifest["model"]["vocab_size"] == 0 else load
        self._model = opens(folder, digest=action.get("digest"), threads=1, ops=self._ops)
        bundle = self._model.bundle
        found = {"vocab_size": bundle.vocab_size, "graphs": sorted(bundle.graphs)}
        return {**found, "fingerprint": bundle.fingerprint, "digest": self._model.digest}

    def _check(self, action: Action) -> dict[str, Any]:
        result = self._bundle.check()
        return {"passed": result.passed, "tokens": result.tokens}

    def _encode(self, action: Action) -> dict[str, Any]:
        return {"ids": self._bundle.tokenizer.encode(self._source(action["text"])).tolist()}

    def _decode(self, action: Action) -> dict[str, Any]:
        return {"text": self._bundle.tokenizer.decode(action["ids"])}

    def _score(self, action: Action) -> dict[str, Any]:
        document = Document("the document", self._source(action["document"]))
        (settings, detail) = (action.get("settings", {}), action.get("detail"))
        parts = list(self._bundle.score_tokens([document], top=detail, bos=action.get("bos"), **settings))
        total = parts[-1].summary
        assert total is not None

        def joined(name: str) -> npt.NDArray[Any]:
            return np.concatenate([getattr(part, name) for part in parts])

        found: dict[str, Any] = {"index": joined("index").tolist(), "tokens": joined("tokens").tolist()}
        found |= {"starts": joined("starts").tolist(), "ends": joined("ends").tolist()}
        found |= {"log_probs": floats(joined("log_probs")), "context": joined("context").tolist()}
        if detail is not None:
            found |= {"rank": joined("rank").tolist(), "entropy": floats(joined("entropy"))}
            found |= {"top_ids": joined("top_ids").tolist(), "top_log_probs": floats(joined("top_log_probs"))}
        found["counts"] = {name: getattr(total, name) for name in SUMMARY}
        found["totals"] = {name: getattr(total, name) for name in RATIOS}
        if found["totals"]["perplexity"] == math.inf:  # JSON has no such number
            found["totals"]["perplexity"] = "Infinity"
        return found

    def _run(self, action: Action) -> dict[str, Any]:
        outputs = self._streams[action["stream"]].run(action["inputs"])
        return {"outputs": {name: values(array) for name, array in outputs.items()}}

    def _stream(self, action: Action) -> dict[str, Any]:
        if isinstance(self._model, StepModel):
            self._streams[action["as"]] = self._model.stream(action.get("rows", 1))
            return {}
        stream = self._bundle.stream(capacity=action.get("capacity"), **action.get("settings", {}))
        self._streams[action["as"]] = stream
        return {"capacity": stream.memory.capacity}

    def _feed(self, action: Action) -> dict[str, Any]:
        return scored(self._streams[action["stream"]].feed(self._source(action["piece"])))

    def _score_continuation(self, action: Action) -> dict[str, Any]:
        return scored(self._streams[action["stream"]].score_continuation(self._source(action["piece"])))

    def _grow(self, action: Action) -> dict[str, Any]:
        """Feed pieces, pass the stream through a saved state, and flush it: how much is held differs by runtime."""
        stream = self._streams[action["stream"]]
        parts = [scored(stream.feed(self._source(piece))) for piece in action["pieces"]]
        stream.save(file := self._work / "held.state")
        stream = self._streams[action["stream"]] = self._bundle.restore(file)
        parts.append(scored(stream.flush()))
        return {name: [value for part in parts for value in part[name]] for name in parts[0]}

    def _fork(self, action: Action) -> dict[str, Any]:
        self._streams[action["as"]] = self._streams[action["stream"]].fork()
        return {"position": self._streams[action["as"]].position}

    def _reset(self, action: Action) -> dict[str, Any]:
        self._streams[action["stream"]].reset(*([action["row"]] if "row" in action else []))
        return {"position": self._streams[action["stream"]].position}

    def _generate(self, action: Action) -> dict[str, Any]:
        prompt = self._source(action["prompt"]) if "prompt" in action else None
        sampling = dict(action["sampling"])
        if isinstance(sampling.get("seed"), str):
            sampling["seed"] = int(sampling["seed"])
        options: dict[str, Any] = {"max_tokens": action["max_tokens"], "sampling": Sampling(**sampling)}
        if "stream" in action:
            drawn = self._streams[action["stream"]].generate(prompt, **options)
        else:
            assert prompt is not None
            drawn = self._bundle.generate(prompt, **options, **action.get("settings", {}))
        return {"ids": list(drawn)}

    def _save(self, action: Action) -> dict[str, Any]:
        file = self._work / f"{action['as']}.state"
        self._streams[action["stream"]].save(file)
        metadata = metadata_of(file)
        with safe_open(file, "numpy") as opened:
            parts = {name: opened.get_slice(name) for name in sorted(opened.keys())}
            tensors = {name: [part.get_dtype(), part.get_shape()] for name, part in parts.items()}
        same = file.read_bytes() == self.state(action.get("same_as", action["as"])).read_bytes()
        return {"metadata": metadata, "tensors": tensors, "same": same}

    def _leave(self, action: Action) -> dict[str, Any]:
        """Save a stream for other runtimes; how much text it holds is not compared."""
        self._streams[action["stream"]].save(self._work / f"{action['as']}.state")
        return {}

    def _restore(self, action: Action) -> dict[str, Any]:
        more = {"capacity": action["capacity"]} if "capacity" in action else {}
        stream = self._bundle.restore(self.state(action["state"]), **more)
        self._streams[action["as"]] = stream
        return {"position": stream.position}

    def _source(self, given: Mapping[str, Any]) -> Any:
        """Return the text, bytes or token ids that an action gives in one of four ways."""
        ((way, value),) = given.items()
        if way == "base64":
            return base64.b64decode(value)
        if way == "file":
            return (self._kit / value).read_bytes()
        assert way in ("text", "ids")
        return value


def metadata_of(state: Path) -> dict[str, str]:
    """Return the metadata of a saved stream without its digest."""
    with safe_open(state, "numpy") as opened:
        return {name: value for name, value in opened.metadata().items() if name != "digest"}


def scored(scores: Scores) -> dict[str, Any]:
    """Return the scores of a piece."""
    return {
        "index": scores.index.tolist(),
        "tokens": scores.tokens.tolist(),
        "log_probs": floats(scores.log_probs),
        "context": scores.context.tolist(),
    }


def values(array: npt.NDArray[Any]) -> Any:
    """Return numbers of any dtype as lists."""
    return floats(array) if array.dtype.kind == "f" else array.tolist()


def floats(values: npt.NDArray[Any]) -> Any:
    """Return numbers as the shortest decimals that give the same float32."""
    return [floats(row) for row in values] if values.ndim > 1 else [float(str(v)) for v in values.astype(np.float32)]
