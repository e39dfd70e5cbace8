"""The application: routes, and what is opened and closed with the server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from xlexport.serve.answers import ApiError
from xlexport.serve.bodies import encoded, read_json, share_of
from xlexport.serve.completions import Completions
from xlexport.serve.frame import Frame
from xlexport.serve.limits import Admission, ServeLimits
from xlexport.serve.metrics import CONTENT_TYPE, Metrics
from xlexport.serve.models import Models
from xlexport.serve.schemas import DetokenizeBody, TokenizeBody
from xlexport.serve.session_routes import SessionRoutes
from xlexport.serve.store import SessionStore
from xlruntime.documents import check_ids

__all__ = ["make_app"]

SWEEP_SECONDS = 5.0  # between two looks for sessions that have expired


def make_app(
    models: Models, limits: ServeLimits | None = None, keys: Sequence[str] = (), hosts: Sequence[str] = ()
) -> ASGIApp:
    """Return the application that serves these bundles.

    Args:
        keys: keys of which a request needs one; none: everybody may use it.
        hosts: names of the server besides `localhost`; without keys it has no others.
    """
    limits = limits or ServeLimits()
    store, admission = SessionStore(limits), Admission(limits.requests, limits.request_bytes)
    metrics = Metrics(models, admission, store)
    completions, sessions = Completions(models, limits, metrics), SessionRoutes(models, limits, store)
    plain = _Plain(models, limits, metrics)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        sweeping = asyncio.create_task(_sweep(store))
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
        Route(f"{one}/generate", sessions.generate, methods=["POST"]),
        Route(f"{one}/state", sessions.save),
    ]
    names = {route.endpoint: route.path for route in routes}
    return Frame(_Routes(routes, lifespan), limits, keys, hosts, admission, metrics, names)


class _Routes(Starlette):
    """Starlette's routing without its handling of errors, which the frame has."""

    def __init__(self, routes: Sequence[Route], lifespan: Any) -> None:
        super().__init__(routes=routes, lifespan=lifespan)

    def build_middleware_stack(self) -> ASGIApp:
        return self.router


@dataclass(frozen=True)
class _Plain:
    """The routes that need no job."""

    models: Models
    limits: ServeLimits
    metrics: Metrics

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
        # Clients end continuations at eos_token. No token ends a document here.
        tokens = {"model": model.name, "eos_token": None, "bos_token": model.prefix}
        return JSONResponse({**tokens, "vocab_size": model.scheduler.engine.bundle.vocab_size})

    async def tokenize(self, request: Request) -> Response:
        body = await read_json(TokenizeBody, request, self.limits)
        model = self.models.find(body.model or self.models.all[0].name)
        (ids,) = await encoded(request, self.limits, model, [body.prompt])
        share_of(request).take_scores(len(ids), None)
        longest = model.scheduler.evaluation.longest_document
        return JSONResponse({"count": len(ids), "max_model_len": longest, "tokens": ids.tolist()})

    async def detokenize(self, request: Request) -> Response:
        body = await read_json(DetokenizeBody, request, self.limits)
        model = self.models.find(body.model or self.models.all[0].name)
        ids = model.ids(body.tokens)
        check_ids(ids, model.scheduler.engine.bundle.vocab_size, "tokens")
        return JSONResponse({"prompt": await asyncio.to_thread(model.tokenizer.decode, ids)})


async def _sweep(store: SessionStore) -> None:
    while True:
        await asyncio.sleep(SWEEP_SECONDS)
        store.expire()
