"""The application: its routes, the checks around every request, and the resources of the server."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import logging
import re
import time
import uuid
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from xlexport.serve.bodies import SHARE, DetokenizeBody, Gone, TokenizeBody, encode_texts, read_json, share_of
from xlexport.serve.completions import Completions
from xlexport.serve.errors import ApiError, answer_of, error_body
from xlexport.serve.hosts import refusal
from xlexport.serve.jobs import ClosedError
from xlexport.serve.limits import Admission
from xlexport.serve.metrics import CONTENT_TYPE, Metrics
from xlexport.serve.models import Models
from xlexport.serve.options import ServeLimits
from xlexport.serve.runs import json_answer
from xlexport.serve.sessions import SessionRoutes, SessionStore
from xlruntime.documents import check_ids
from xlruntime.messages import named

__all__ = ["make_app"]

SWEEP_SECONDS = 5.0  # between two looks for sessions that have expired
OPEN = ("/health",)  # routes that need no key
ALWAYS = (*OPEN, "/metrics")  # routes that are answered while the server is full
LARGE = 1 << 16  # bytes of a last part of an answer until whose end its memory counts
COPIES = 4  # of a text that is sent
OTHER = "other"  # the route that logs and metrics show for a path that is none
WENT_AWAY = 499  # the status that logs and metrics show for a client that went away

access = logging.getLogger("xlexport.serve.access")
logger = logging.getLogger(__name__)


def make_app(
    models: Models, limits: ServeLimits | None = None, keys: Sequence[str] = (), hosts: Sequence[str] = ()
) -> ASGIApp:
    """Return the application that serves these bundles.

    Args:
        keys: keys of which a request needs one; if there are none, everyone may use the server.
        hosts: names of the server besides `localhost`; without keys it has no others.
    """
    limits = limits or ServeLimits()
    store = SessionStore(limits, len(set(keys)))
    admission = Admission(limits.requests, limits.request_bytes - limits.prefix_cache)
    metrics = Metrics(models, admission, store)
    completions, sessions = Completions(models, limits, metrics), SessionRoutes(models, limits, store)
    plain = _ModelRoutes(models, limits, metrics)

    async def sweep() -> None:
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            store.expire()
            if models.prefixes is not None:
                models.prefixes.expire()

    @contextlib.asynccontextmanager
    async def lifespan(app: object) -> AsyncIterator[None]:
        sweeping = asyncio.create_task(sweep())
        try:
            yield
        finally:
            sweeping.cancel()
            await asyncio.to_thread(models.close)

    one = "/v1/sessions/{session}"
    routes = [
        Route("/health", plain.health),
        Route("/metrics", plain.metrics_text),
        Route("/v1/models", plain.models_list),
        Route("/v1/models/{model}", plain.model),
        Route("/tokenizer_info", plain.tokenizer_info),
        Route("/tokenize", plain.tokenize, methods=["POST"]),
        Route("/detokenize", plain.detokenize, methods=["POST"]),
        Route("/v1/completions", completions.create, methods=["POST"]),
        Route("/v1/sessions", sessions.all),
        Route("/v1/sessions", sessions.create, methods=["POST"]),
        Route("/v1/sessions/restore", sessions.restore, methods=["POST"]),
        Route(one, sessions.show),
        Route(one, sessions.delete, methods=["DELETE"]),
        Route(f"{one}/fork", sessions.fork, methods=["POST"]),
        Route(f"{one}/feed", sessions.feed, methods=["POST"]),
        Route(f"{one}/score", sessions.score, methods=["POST"]),
        Route(f"{one}/preview", sessions.preview, methods=["POST"]),
        Route(f"{one}/generate", sessions.generate, methods=["POST"]),
        Route(f"{one}/state", sessions.save),
    ]
    names = {route.endpoint: route.path for route in routes}
    routes += [Route("/", plain.index), Route("/v1/chat/completions", plain.chat, methods=["GET", "POST"])]
    raw, known = [key.encode() for key in keys], {"localhost", *(host.lower() for host in hosts)}
    return _Frame(Router(routes, lifespan=lifespan), limits, raw, known, admission, metrics, names)


@dataclass(frozen=True)
class _ModelRoutes:
    """The routes of the server and its bundles, which need no job."""

    models: Models
    limits: ServeLimits
    metrics: Metrics

    async def index(self, request: Request) -> Response:
        routes = ["/v1/completions", "/v1/models", "/v1/sessions", "/tokenize", "/detokenize", "/health", "/metrics"]
        return JSONResponse(
            {"server": "xlexport", "models": [model.name for model in self.models.all], "routes": routes}
        )

    async def chat(self, request: Request) -> Response:
        raise ApiError(404, "no bundle here is a chat model; send the text as a prompt to /v1/completions.", "no_chat")

    async def health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def metrics_text(self, request: Request) -> Response:
        return Response(self.metrics.text(), headers={"content-type": CONTENT_TYPE})

    async def models_list(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [model.describe() for model in self.models.all]})

    async def model(self, request: Request) -> Response:
        return JSONResponse(self.models.find(request.path_params["model"]).describe())

    async def tokenizer_info(self, request: Request) -> Response:
        model = self.models.find(request.query_params.get("model", self.models.all[0].name))
        if model.prefix is None:
            raise ApiError(404, f"{model.name} has no token that may come before a document.", "no_prefix")
        ends = model.scheduler.engine.bundle.tokenizer.ends  # the harness also takes eos_token as a stop
        tokens = {
            "model": model.name,
            "bos_token": model.prefix.name,
            "bos_token_id": model.prefix.id,
            "eos_token": ends[0].name if ends else None,
            "eos_token_ids": [token.id for token in ends],
        }
        return JSONResponse({**tokens, "vocab_size": model.scheduler.engine.bundle.vocab_size})

    async def tokenize(self, request: Request) -> Response:
        body = await read_json(TokenizeBody, request, self.limits)
        model = self.models.find(body.model or self.models.all[0].name)
        # The harness asks for the id of a special token by its name, which may be no text of the vocabulary.
        known = model.named_tokens().get(body.prompt)
        source = body.prompt if known is None else [known]
        (ids,) = await encode_texts(request, self.limits, model, [source], model.ids)
        share_of(request).take_scores(len(ids), None)
        longest = model.scheduler.evaluation.longest_document
        return json_answer({"count": len(ids), "max_model_len": longest, "tokens": ids}, len(ids))

    async def detokenize(self, request: Request) -> Response:
        body = await read_json(DetokenizeBody, request, self.limits)
        model = self.models.find(body.model or self.models.all[0].name)
        ids = model.ids(body.tokens)
        check_ids(ids, model.scheduler.engine.bundle.vocab_size, "tokens")
        text = await asyncio.to_thread(model.tokenizer.decode, ids)
        share_of(request).take(COPIES * len(text))
        return JSONResponse({"prompt": text})


@dataclass(frozen=True)
class _Frame:
    """The checks around every request: key or host, limits, errors as answers, log and metrics.

    Attributes:
        hosts: without keys, requests must name one of these or an IP address.
        names: the route of each endpoint.
    """

    app: ASGIApp
    limits: ServeLimits
    keys: Sequence[bytes]
    hosts: Collection[str]
    admission: Admission
    metrics: Metrics
    names: Mapping[Any, str]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        scope["app"] = self  # Starlette's routes then raise errors, and leave the answers to this class
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status, nbytes, request_id = time.perf_counter(), 0, 0, uuid.uuid4().hex

        async def counting(message: Message) -> None:
            nonlocal status, nbytes
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": [*message["headers"], (b"x-request-id", request_id.encode())]}
            else:
                nbytes += len(message.get("body", b""))
            try:
                async with asyncio.timeout(self.limits.transfer_seconds):
                    if len(message.get("body", b"")) > LARGE and not message.get("more_body"):
                        await send({**message, "more_body": True})
                        message = {"type": message["type"]}  # uvicorn sends it after the client has read the first
                    await send(message)
            except TimeoutError as error:
                raise Gone from error

        async def answer_instead(answer: ApiError) -> None:
            if not status:
                await JSONResponse(error_body(answer), answer.status, answer.headers)(scope, receive, counting)

        try:
            try:
                await self._answer(scope, receive, counting)
            except asyncio.CancelledError:  # the server ends before the request did
                await answer_instead(answer_of(ClosedError()))
            except Gone:
                raise
            except Exception as error:
                answer = answer_of(error)
                if answer.status >= 500:
                    logger.error("%s %s", scope["method"], _loggable(scope["path"]), exc_info=error)
                await answer_instead(answer.with_traceback(None))  # its frames hold the body
        except Gone:
            status = WENT_AWAY
        finally:
            seconds = time.perf_counter() - began
            status = status or WENT_AWAY
            route = self.names.get(scope.get("endpoint"), OTHER)
            self.metrics.answered(route, status, seconds, scope.get("state", {}).get("client", ""))
            client, _ = scope.get("client") or ("-", 0)
            path = _loggable(scope["path"]) if route == OTHER else route
            request = client, scope["method"], path, status, nbytes, 1000 * seconds, request_id
            access.info("%s %s %s %d %d B %.1f ms %s", *request)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, key = scope["path"], self._key(scope)
        if self.keys and path not in OPEN and key is None:
            raise ApiError(
                401, "the API key is missing or wrong; expected Authorization: Bearer KEY.", "invalid_api_key"
            )
        host, origin = (_header(scope, name).decode("latin-1") for name in (b"host", b"origin"))
        if not self.keys and path not in OPEN and (refused := refusal(host, origin, self.hosts)) is not None:
            raise ApiError(*refused)
        digest = None if key is None else hashlib.sha256(key).hexdigest()[:16]
        address, port = scope.get("client") or ("-", 0)
        scope.setdefault("state", {}).update(owner=digest, client=digest or f"{address}:{port}")
        if path in ALWAYS:
            await self.app(scope, receive, send)
        else:
            with self.admission.share() as share:
                if scope["method"] != "POST":  # others take their place when the body is complete
                    share.enter()
                scope[SHARE] = share
                await self.app(scope, receive, send)

    def _key(self, scope: Scope) -> bytes | None:
        """Return the key of a request; None if it has none of the server's."""
        kind, _, key = _header(scope, b"authorization").partition(b" ")
        # Every key is compared, in a time that does not depend on where they differ.
        known = (kind.lower() == b"bearer") & any([hmac.compare_digest(key, own_key) for own_key in self.keys])
        return key if known else None


def _header(scope: Scope, key: bytes) -> bytes:
    return next((bytes(value) for name, value in scope["headers"] if name == key), b"")


def _loggable(path: str) -> str:
    """Return what the log shows of a path: not the name of a session, which is as good as a key."""
    return named(re.sub("sess-[0-9a-f]{32}", "{session}", path))
