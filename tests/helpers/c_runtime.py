"""The C interface to bundles (runtime/c/include/xlruntime.h), called with ctypes."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, byref, c_char_p, c_double, c_float, c_int, c_int64, c_size_t, c_uint64, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from xlruntime import Sampling

__all__ = ["CError", "CModel", "CRuntime", "CScores", "CStepStream", "CStream", "CTensor", "tensor"]

Text = str | bytes
Ids = list[int] | npt.NDArray[np.int64]


class _Sized(ctypes.Structure):
    """A struct that begins with its size."""

    def __init__(self, **fields: Any) -> None:
        super().__init__(size=ctypes.sizeof(self), **fields)


class _LoadOptions(_Sized):
    _fields_ = [
        *(("size", c_size_t), ("onnxruntime", c_char_p), ("threads", c_int)),
        *(("check_files", c_int), ("kernels", c_int), ("digest", c_char_p)),
        ("check_once", c_int),
    ]


class _SettingInfo(ctypes.Structure):
    _fields_ = [
        *(("name", c_char_p), ("meaning", c_char_p), ("value", c_int64), ("minimum", c_int64), ("maximum", c_int64)),
        *(("off", c_int64), ("is_boolean", c_int), ("can_be_off", c_int)),
    ]


class _TensorInfo(ctypes.Structure):
    _fields_ = [
        *(("name", c_char_p), ("dtype", c_char_p), ("axes", c_size_t)),
        *(("shape", POINTER(c_int64)), ("bytes", c_size_t)),
    ]


class CTensor(ctypes.Structure):
    """A tensor for `CStepStream.call`."""

    _fields_ = [*(("name", c_char_p), ("dtype", c_char_p), ("data", c_void_p), ("bytes", c_size_t))]


class _ModelInfo(ctypes.Structure):
    _fields_ = [
        *((name, c_char_p) for name in ("architecture", "precision", "tokenizer")),
        *((name, c_char_p) for name in ("fingerprint", "digest", "onnxruntime")),
        *(("vocab_size", c_int64), ("full_document", c_int), ("restart", c_int), ("setting_count", c_size_t)),
        *(("settings", POINTER(_SettingInfo)), ("reads_text", c_int)),
        *(("adds_begin", c_int), ("begin", c_int64), ("warning", c_char_p)),
        *(("input_count", c_size_t), ("inputs", POINTER(_TensorInfo))),
        *(("output_count", c_size_t), ("outputs", POINTER(_TensorInfo))),
    ]


class _CheckResult(_Sized):
    _fields_ = [
        *(("size", c_size_t), ("known", c_int), ("passed", c_int), ("certain", c_int)),
        *(("tokens", c_int64), ("largest", c_double)),
    ]


class _Settings(_Sized):
    _fields_ = [("size", c_size_t), ("segment_len", c_int64), ("mem_len", c_int64)]


class _Scores(ctypes.Structure):
    _fields_ = [
        *(("count", c_size_t), ("index", POINTER(c_int64)), ("tokens", POINTER(c_int64))),
        *(("log_probs", POINTER(c_float)), ("context", POINTER(c_int64))),
        *(("starts", POINTER(c_int64)), ("ends", POINTER(c_int64)), ("top", c_size_t)),
        *(("rank", POINTER(c_int64)), ("entropy", POINTER(c_double))),
        *(("top_ids", POINTER(c_int64)), ("top_log_probs", POINTER(c_double))),
    ]


class _DocumentScore(_Sized):
    _fields_ = [
        ("size", c_size_t),
        *((name, c_int64) for name in ("tokens", "scored_tokens", "unknown_tokens", "words", "chars", "bytes")),
        *((name, c_int64) for name in ("dropped_chars", "dropped_bytes", "scored_chars", "scored_bytes")),
        *((name, c_double) for name in ("nats", "bits", "bits_per_byte", "bits_per_char", "bits_per_token")),
        ("perplexity", c_double),
    ]


class _ScoreOptions(_Sized):
    _fields_ = [
        *(("size", c_size_t), ("settings", POINTER(_Settings)), ("bos", c_int64), ("top", c_int)),
    ]


class _Sampling(_Sized):
    _fields_ = [
        *(("size", c_size_t), ("temperature", c_double), ("top_k", c_int64), ("top_p", c_double)),
        *(("seed", c_uint64), ("has_seed", c_int), ("min_p", c_double), ("repetition_penalty", c_double)),
        *(("repetition_window", c_int64), ("ignore_eos", c_int)),
    ]


_TakeScores = ctypes.CFUNCTYPE(c_int, c_void_p, POINTER(_Scores))
_TakeToken = ctypes.CFUNCTYPE(c_int, c_void_p, c_int64)


class CError(Exception):
    """An error of the C interface.

    Attributes:
        code: its word in docs/bundle_format.md.
        hint: what it suggests to do.
    """

    def __init__(self, code: str, text: str, hint: str) -> None:
        super().__init__(text)
        self.code, self.hint = code, hint


@dataclass(frozen=True)
class CScores:
    """Copies of the scores of one call, or of one step; None if the interface returned NULL."""

    index: npt.NDArray[np.int64]
    tokens: npt.NDArray[np.int64]
    log_probs: npt.NDArray[np.float32]
    context: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int64] | None
    ends: npt.NDArray[np.int64] | None
    rank: npt.NDArray[np.int64] | None
    entropy: npt.NDArray[np.float64] | None
    top_ids: npt.NDArray[np.int64] | None
    top_log_probs: npt.NDArray[np.float64] | None


class CRuntime:
    """The loaded library."""

    def __init__(self, library: Path, onnxruntime: Path) -> None:
        self.functions = ctypes.CDLL(str(library))
        self.onnxruntime = onnxruntime
        for name in ("xlr_error_text", "xlr_error_hint", "xlr_error_code", "xlr_version"):
            getattr(self.functions, name).restype = c_char_p
        self.functions.xlr_model_get_info.restype = POINTER(_ModelInfo)
        for name in ("position", "pending", "resets", "unsettled_cuts"):
            getattr(self.functions, f"xlr_stream_{name}").restype = c_int64
        self.functions.xlr_stream_row_position.restype = c_int64
        for name in ("memory_bytes", "rows"):
            getattr(self.functions, f"xlr_stream_{name}").restype = c_size_t

    def call(self, function: str, *arguments: Any) -> None:
        """Call a function that returns a status; raise its error."""
        status = getattr(self.functions, function)(*arguments)
        if status:
            text, hint = self.functions.xlr_error_text(), self.functions.xlr_error_hint()
            raise CError(self.functions.xlr_error_code(status).decode(), text.decode(), hint.decode())

    def load(
        self,
        folder: Path,
        *,
        check_files: bool = True,
        kernels: bool = True,
        digest: str | None = None,
        check_once: bool = False,
        ort: Path | None = None,
    ) -> CModel:
        options = _LoadOptions(
            onnxruntime=str(ort or self.onnxruntime).encode(),
            threads=1,
            check_files=check_files,
            kernels=kernels,
            digest=None if digest is None else digest.encode(),
            check_once=check_once,
        )
        model = c_void_p()
        self.call("xlr_load", str(folder).encode(), byref(options), byref(model))
        return CModel(self, model)


class CModel:
    """An open bundle."""

    def __init__(self, runtime: CRuntime, handle: c_void_p) -> None:
        self.runtime, self.handle = runtime, handle

    def __del__(self) -> None:
        self.runtime.functions.xlr_model_close(self.handle)

    @property
    def info(self) -> Any:
        return self.runtime.functions.xlr_model_get_info(self.handle).contents

    @property
    def settings(self) -> dict[str, Any]:
        info = self.info
        return {info.settings[i].name.decode(): info.settings[i] for i in range(info.setting_count)}

    def check(self) -> Any:
        result = _CheckResult()
        self.runtime.call("xlr_check", self.handle, byref(result))
        return result

    def encode(self, text: Text) -> npt.NDArray[np.int64]:
        raw, ids, count = _bytes(text), POINTER(c_int64)(), c_size_t()
        self.runtime.call("xlr_encode", self.handle, raw, c_size_t(len(raw)), byref(ids), byref(count))
        found = _copy(ids, count.value)
        self.runtime.functions.xlr_free(ids)
        assert found is not None
        return found

    def decode(self, ids: Ids) -> str:
        text, size = c_void_p(), c_size_t()
        self.runtime.call("xlr_decode", self.handle, *_ids(ids), byref(text), byref(size))
        found = ctypes.string_at(text, size.value)
        self.runtime.functions.xlr_free(text)
        return found.decode()

    def score(
        self,
        source: Text | Path | Ids,
        *,
        bos: int = -1,
        top: int = -1,
        **settings: int,
    ) -> tuple[Any, list[CScores]]:
        """Return the total of a document, and the scores of its steps."""
        options = _ScoreOptions(settings=ctypes.pointer(_Settings(**settings)), bos=bos, top=top)
        total, parts = _DocumentScore(), []

        def take(_: Any, scores: Any) -> int:
            parts.append(_copied(scores.contents))
            return 0

        given: list[Any]
        if isinstance(source, Path):
            name, given = "xlr_score_file", [str(source).encode()]
        elif isinstance(source, str | bytes):
            raw = _bytes(source)
            name, given = "xlr_score_text", [raw, c_size_t(len(raw))]
        else:
            name, given = "xlr_score_ids", [*_ids(source)]
        self.runtime.call(name, self.handle, *given, byref(options), _TakeScores(take), None, byref(total))
        return total, parts

    def generate(
        self, prompt: Ids, max_tokens: int, sampling: Sampling | None = None, ignore_eos: bool = False, **settings: int
    ) -> list[int]:
        tokens: list[int] = []
        self.runtime.call(
            "xlr_generate",
            self.handle,
            *_ids(prompt),
            byref(_Settings(**settings)),
            c_size_t(max_tokens),
            byref(_sampling(sampling, ignore_eos)),
            _taking(tokens),
            None,
        )
        return tokens

    def stream(self, capacity: int = 0, **settings: int) -> CStream:
        stream = c_void_p()
        self.runtime.call(
            "xlr_stream_open", self.handle, byref(_Settings(**settings)), c_int64(capacity), byref(stream)
        )
        return CStream(self.runtime, stream)

    def restore(self, file: Path, capacity: int = 0) -> CStream:
        return CStream(self.runtime, self.restore_handle(file, capacity))

    def restore_handle(self, file: Path, capacity: int = 0) -> c_void_p:
        stream = c_void_p()
        self.runtime.call("xlr_stream_restore", self.handle, str(file).encode(), c_int64(capacity), byref(stream))
        return stream


class CStepStream:
    """A stream of a step model."""

    def __init__(self, model: CModel, handle: c_void_p) -> None:
        self.model, self.runtime, self.handle = model, model.runtime, handle

    def __del__(self) -> None:
        self.runtime.functions.xlr_stream_close(self.handle)

    @staticmethod
    def open(model: CModel, rows: int = 1) -> CStepStream:
        stream = c_void_p()
        model.runtime.call("xlr_stream_open_rows", model.handle, c_size_t(rows), byref(stream))
        return CStepStream(model, stream)

    @staticmethod
    def restore(model: CModel, file: Path, capacity: int = 0) -> CStepStream:
        return CStepStream(model, model.restore_handle(file, capacity))

    def run(self, inputs: dict[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
        """Return all outputs for inputs (rows, steps, …)."""
        rows, steps = next(iter(inputs.values())).shape[:2]
        info = self.model.info
        outputs = {}
        for each in info.outputs[: info.output_count]:
            outputs[each.name.decode()] = np.empty((rows, steps, *each.shape[: each.axes]), each.dtype.decode())
        self.call([tensor(*item) for item in inputs.items()], [tensor(*item) for item in outputs.items()], steps)
        return outputs

    def call(self, inputs: list[CTensor], outputs: list[CTensor], steps: int) -> None:
        given, taken = ((CTensor * max(len(each), 1))(*each) for each in (inputs, outputs))
        counts = c_size_t(len(inputs)), c_size_t(len(outputs))
        self.runtime.call("xlr_stream_run", self.handle, given, counts[0], taken, counts[1], c_size_t(steps))

    def fork(self) -> CStepStream:
        twin = c_void_p()
        self.runtime.call("xlr_stream_fork", self.handle, byref(twin))
        return CStepStream(self.model, twin)

    def reset(self, row: int | None = None) -> None:
        if row is None:
            self.runtime.call("xlr_stream_reset", self.handle)
        else:
            self.runtime.call("xlr_stream_reset_row", self.handle, c_size_t(row))

    def save(self, file: Path) -> None:
        self.runtime.call("xlr_stream_save", self.handle, str(file).encode())

    @property
    def positions(self) -> list[int]:
        functions = self.runtime.functions
        rows = range(functions.xlr_stream_rows(self.handle))
        return [int(functions.xlr_stream_row_position(self.handle, c_size_t(row))) for row in rows]


class CStream:
    """One document with its memory."""

    def __init__(self, runtime: CRuntime, handle: c_void_p) -> None:
        self.runtime, self.handle = runtime, handle

    def __del__(self) -> None:
        self.runtime.functions.xlr_stream_close(self.handle)

    def feed(self, source: Text | Ids) -> CScores:
        if isinstance(source, str | bytes):
            raw = _bytes(source)
            return self._scores("xlr_stream_feed_text", raw, c_size_t(len(raw)))
        return self._scores("xlr_stream_feed_ids", *_ids(source))

    def flush(self) -> CScores:
        return self._scores("xlr_stream_flush")

    def preview(self) -> CScores:
        return self._scores("xlr_stream_preview")

    def score_continuation(self, source: Text | Ids) -> CScores:
        if isinstance(source, str | bytes):
            raw = _bytes(source)
            return self._scores("xlr_stream_score_text", raw, c_size_t(len(raw)))
        return self._scores("xlr_stream_score_ids", *_ids(source))

    def fork(self) -> CStream:
        twin = c_void_p()
        self.runtime.call("xlr_stream_fork", self.handle, byref(twin))
        return CStream(self.runtime, twin)

    def reset(self) -> None:
        self.runtime.call("xlr_stream_reset", self.handle)

    def generate(self, prompt: Ids, max_tokens: int, sampling: Sampling | None = None) -> list[int]:
        tokens: list[int] = []
        self.runtime.call(
            "xlr_stream_generate",
            self.handle,
            *_ids(prompt),
            c_size_t(max_tokens),
            byref(_sampling(sampling)),
            _taking(tokens),
            None,
        )
        return tokens

    def save(self, file: Path) -> None:
        self.runtime.call("xlr_stream_save", self.handle, str(file).encode())

    @property
    def position(self) -> int:
        return int(self.runtime.functions.xlr_stream_position(self.handle))

    @property
    def resets(self) -> int:
        return int(self.runtime.functions.xlr_stream_resets(self.handle))

    @property
    def unsettled_cuts(self) -> int:
        return int(self.runtime.functions.xlr_stream_unsettled_cuts(self.handle))

    def _scores(self, function: str, *arguments: Any) -> CScores:
        scores = POINTER(_Scores)()
        self.runtime.call(function, self.handle, *arguments, byref(scores))
        return _copied(scores.contents)


def tensor(name: str, array: npt.NDArray[Any]) -> CTensor:
    """Return a tensor of `CStepStream.call`, in the memory of a contiguous array."""
    assert array.flags.c_contiguous
    return CTensor(name.encode(), str(array.dtype).encode(), array.ctypes.data, array.nbytes)


def _bytes(text: Text) -> bytes:
    return text.encode() if isinstance(text, str) else text


def _ids(ids: Ids) -> tuple[Any, c_size_t]:
    array = np.ascontiguousarray(ids, np.int64)
    return (c_int64 * max(len(array), 1))(*array.tolist()), c_size_t(len(array))


def _sampling(sampling: Sampling | None, ignore_eos: bool = False) -> _Sampling:
    rule = sampling or Sampling()
    return _Sampling(
        temperature=rule.temperature,
        top_k=rule.top_k or 0,
        top_p=1.0 if rule.top_p is None else rule.top_p,
        seed=rule.seed or 0,
        has_seed=rule.seed is not None,
        min_p=rule.min_p,
        repetition_penalty=rule.repetition_penalty,
        repetition_window=rule.repetition_window,
        ignore_eos=ignore_eos,
    )


def _taking(tokens: list[int]) -> Any:
    def take(_: Any, token: int) -> int:
        tokens.append(token)
        return 0

    return _TakeToken(take)


def _copy(pointer: Any, *shape: int) -> Any:
    return np.ctypeslib.as_array(pointer, shape).copy() if pointer else np.zeros(shape) if 0 in shape else None


def _copied(scores: _Scores) -> CScores:
    n, k = scores.count, scores.top
    shapes = {"top_ids": (n, k), "top_log_probs": (n, k)}
    return CScores(
        **{name: _copy(getattr(scores, name), *shapes.get(name, (n,))) for name in CScores.__dataclass_fields__}
    )
