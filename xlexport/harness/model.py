"""The model of lm-evaluation-harness that runs a bundle.

Its log-likelihoods are the sums that `xlexport score` prints. A document is never cut into windows: memory is carried
from its beginning to its end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Any

import lm_eval.models
import numpy as np
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model

from xlexport.bundles import open_bundle
from xlexport.scoring.begin_token import bos_token
from xlexport.serve.jobs import AnswerChoice, RequestJob
from xlexport.serve.models import ServedModel
from xlexport.serve.scheduler import Scheduler
from xlruntime import Document, GrowingText, OptionError, PrefixCache, Sampling
from xlruntime.messages import shown
from xlruntime.providers import import_onnxruntime
from xlruntime.scorer import BatchSize, Scorer

__all__ = ["XlexportLM"]

assert lm_eval.models  # the harness registers its own models only if it has none yet
AUTO_ROWS = 8  # of continuations that are drawn
DEFAULT_DEVICE = "cuda:0"  # of the harness's command line
NEW_TOKENS = 256
UNUSED = ("do_sample", "until", "max_gen_toks", "max_tokens", "max_new_tokens")  # read apart from the rules of drawing


@register_model("xlexport")
class XlexportLM(TemplateLM):  # the harness has no types
    """A bundle as the harness sees it.

    Args:
        bundle: the folder of the bundle.
        batch_size: documents in a step; `auto`: as many of similar lengths as make steps fast, and 8 continuations.
        bos: the token before a document and before a continuation without context, as `xlexport score --bos` takes it;
            None: the token that begins texts, else one that ends them, else a newline; `none`: no token, so a
            document's first token has no score.
        add_bos_token: whether texts come after the token that begins texts; None: as the tokenizer's own rule says,
            which is what the harness's own Hugging Face models do.
        max_gen_toks: tokens that a continuation may have if the task does not say.
        device: as in `xlruntime.load`. The harness gives `cuda:0` if nobody chooses, so that means the CPU if this
            machine's ONNX Runtime is not made for CUDA.
        prefix_cache: bytes that keep what the model remembers of contexts, so that equal beginnings are read once.
        threads, ops, step_timeout: as in `xlruntime.load`.
        max_batch_size: not used.
        settings: evaluation settings of the bundle, such as `mem_len`.

    Raises:
        OptionError, BundleError, ProviderError: an argument is out of range, or the bundle cannot be opened.
    """

    def __init__(
        self,
        bundle: str,
        batch_size: int | str = "auto",
        bos: str | int | None = None,
        max_gen_toks: int = NEW_TOKENS,
        add_bos_token: bool | None = None,
        device: str | None = None,
        threads: int | None = None,
        ops: str = "auto",
        step_timeout: float | None = None,
        prefix_cache: int = 0,
        max_batch_size: int | None = None,
        **settings: Any,
    ) -> None:
        super().__init__()
        self._rows: BatchSize = "auto" if str(batch_size).startswith("auto") else int(batch_size)
        providers = import_onnxruntime().get_available_providers()
        if device is None or (device == DEFAULT_DEVICE and "CUDAExecutionProvider" not in providers):
            device = "cpu"
        model = open_bundle(bundle, device=device, threads=threads, ops=ops, step_timeout=step_timeout)
        self._prefixes = PrefixCache(prefix_cache) if prefix_cache else None
        rows = AUTO_ROWS if self._rows == "auto" else self._rows
        self._scheduler = Scheduler(model, rows, prefixes=self._prefixes, **settings)
        if self._prefixes is not None:
            self._prefixes.check(model, self._scheduler.evaluation)
        self._served = ServedModel.of(str(bundle), self._scheduler)
        self._max_gen_toks = max_gen_toks
        rule = model.bundle.tokenizer
        self._begin = rule.begin if rule.adds_begin or add_bos_token else None
        self._adds_begin = self._begin is not None and add_bos_token is not False
        self._bos: int | None = None
        if bos is None and self._served.prefix is not None:
            self._bos = self._served.prefix.id
        elif bos is not None and bos != "none":
            self._bos = bos_token(str(bos), self._served.tokenizer)

    @property
    def tokenizer_name(self) -> str:
        """The name under which the harness keeps tokenized requests."""
        return self._scheduler.engine.bundle.fingerprint

    @property
    def eot_token_id(self) -> int | None:
        """The first of the tokens that end a text; None: there is none."""
        return next(iter(self._scheduler.engine.bundle.tokenizer.end_ids), None)

    @property
    def prefix_token_id(self) -> int:
        """The token before a continuation without context.

        Raises:
            OptionError: there is none.
        """
        if self._bos is None:
            raise OptionError(
                "a request has no context, and the model has no token to begin with.", hint="Give bos=TOKEN."
            )
        return self._bos

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **more: Any) -> list[int]:
        """Return the token ids of a text that may go on, after the token that begins texts where the rule puts it."""
        return self._begun(string, self._served.ids(string).tolist(), add_special_tokens)

    def _begun(self, text: str, ids: list[int], adds: bool | None = None) -> list[int]:
        """Return the tokens of a text with the one that begins texts, unless the text spells that itself."""
        if self._begin is None or adds is False or (adds is None and not self._adds_begin):
            return ids
        return ids if adds is None and text.startswith(self._begin.name) else [self._begin.id, *ids]

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """Return the log-likelihood of each document, read from its beginning to its end with carried memory."""
        texts = (request.args[0] for request in requests)
        # The harness's own models read the begin token after the prefix, so their sums have its score, too.
        documents = (self._begun(text, self._served.ids(text, whole=True).tolist()) for text in texts)
        scorer, sums = self._scorer(bos=False if self._bos is None else self._bos), []
        for request, score in zip(requests, scorer.documents(documents), strict=True):
            sums.append(-score.nats)
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, sums[-1])
        return sums

    def loglikelihood(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Return log-likelihoods of continuations, and whether each is what the model would draw at temperature 0.

        Raises:
            OptionError: a continuation has no tokens, so nothing could be compared.
        """
        for number, request in enumerate(requests):
            context, continuation = request.args
            if not continuation or (not context and not self.tok_encode(continuation)):
                raise _nothing_to_score(number, context, continuation)
        found: list[tuple[float, bool]] = super().loglikelihood(requests, disable_tqdm=disable_tqdm)
        return found

    def _loglikelihood_tokens(
        self, requests: Iterable[tuple[tuple[str, str], list[int], list[int]]], disable_tqdm: bool = False, **more: Any
    ) -> list[tuple[float, bool]]:
        """Return log-likelihoods of continuations, and whether each is what the model would draw at temperature 0."""
        pairs, documents = list(requests), []
        for number, (texts, context, continuation) in enumerate(pairs):
            before, tokens = context, continuation
            if not context and continuation:  # white space alone, which the harness has moved to the continuation
                has_prefix = continuation[0] == self.prefix_token_id
                before = continuation[:1] if has_prefix else [self.prefix_token_id]
                tokens = continuation[has_prefix:]
            if not tokens:
                raise _nothing_to_score(number, *texts)
            documents.append(Document("a request", tokens, context=before))
        answers = [(0.0, True)] * len(pairs)
        for part in self._scorer(top=1).tokens(documents):
            total, greedy = answers[part.number]
            total += float(part.log_probs.sum(dtype=np.float64))
            answers[part.number] = total, greedy and bool(np.all(part.rank == 1))
            if part.summary is not None:
                self.cache_hook.add_partial("loglikelihood", pairs[part.number][0], answers[part.number])
        return answers

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Return a continuation of each context, up to the first of its stops."""
        jobs = [self._continue(*request.args) for request in requests]
        texts = []
        for request, job in zip(requests, jobs, strict=True):
            job.result()
            texts.append(job.choices[0].take().text)
            self.cache_hook.add_partial("generate_until", request.args, texts[-1])
        return texts

    def _continue(self, context: str, options: dict[str, Any]) -> RequestJob:
        ids = np.array(self.tok_encode(context) or [self.prefix_token_id], np.int64)
        until = options.get("until") or []
        tokens = next((options[name] for name in UNUSED[2:] if options.get(name) is not None), self._max_gen_toks)
        stops = [until] if isinstance(until, str) else until
        text = GrowingText(self._served.tokenizer, [], stops)  # the harness decodes a continuation alone
        choice = AnswerChoice(_sampling(options), text)
        job = RequestJob(ids, scores=False, max_tokens=int(tokens), choices=[choice])
        job.scope = ()
        self._scheduler.submit(job)
        return job

    def _scorer(self, **options: Any) -> Scorer:
        return Scorer(
            self._scheduler.engine, self._scheduler.evaluation, self._rows, prefixes=self._prefixes, **options
        )


def _nothing_to_score(number: int, context: str, continuation: str) -> OptionError:
    return OptionError(
        f"request {number}: the continuation {shown(continuation)} after {shown(context)} has no tokens.",
        hint="Leave the pair out, or give the continuation a text.",
    )


def _sampling(options: dict[str, Any]) -> Sampling:
    """Return the rule of drawing that a task asks for: the likeliest token, unless it says otherwise.

    Raises:
        OptionError: it asks for something that `Sampling` does not have.
    """
    settings = {name: value for name, value in options.items() if name not in UNUSED and value is not None}
    if unknown := set(settings) - set(known := [field.name for field in fields(Sampling)]):
        raise OptionError(f"generation options: {shown(sorted(unknown))}; expected some of {', '.join(known)}.")
    temperature = float(settings.pop("temperature", 0)) if options.get("do_sample", True) else 0.0
    return Sampling(**settings | {"temperature": temperature})
