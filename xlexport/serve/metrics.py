"""Numbers about the server for Prometheus, in a registry of their own."""

from __future__ import annotations

from collections import Counter as Counted
from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from xlexport.serve.limits import Admission
from xlexport.serve.models import Models
from xlexport.serve.sessions import SessionStore

__all__ = ["CONTENT_TYPE", "Metrics"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)


class Metrics:
    """The metrics of one server.

    Attributes:
        requests: requests answered, by route and status; 499 is a client that went away.
        refusals: requests answered with 429, by client.
        seconds: how long they took, by route; first_token: how long until the first event of a stream.
    """

    def __init__(self, models: Models, admission: Admission, sessions: SessionStore) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter("xlexport_requests", "Requests answered.", ["route", "status"], registry=self.registry)
        self.refusals = Counter("xlexport_refusals", "Answers of 429.", ["client"], registry=self.registry)
        self.seconds = Histogram(
            "xlexport_request_seconds", "Time of a request.", ["route"], buckets=SECONDS, registry=self.registry
        )
        self.first_token = Histogram(
            "xlexport_first_token_seconds", "Time to a stream's first event.", buckets=SECONDS, registry=self.registry
        )
        self._models, self._admission, self._sessions = models, admission, sessions
        self.registry.register(self)

    def text(self) -> bytes:
        """Return all numbers as Prometheus reads them."""
        return generate_latest(self.registry)

    def answered(self, route: str, status: int, seconds: float, client: str) -> None:
        """Count an answer to a client."""
        self.requests.labels(route, str(status)).inc()
        self.seconds.labels(route).observe(seconds)
        if status == 429:
            self.refusals.labels(_label(client)).inc()

    def collect(self) -> Iterator[Any]:
        """Yield the numbers that others count."""
        yield GaugeMetricFamily("xlexport_requests_under_way", "Requests now.", self._admission.under_way)
        yield GaugeMetricFamily("xlexport_request_bytes", "Memory of requests now.", self._admission.nbytes)
        yield CounterMetricFamily("xlexport_requests_refused", "Requests without room.", self._admission.refused)
        yield GaugeMetricFamily("xlexport_sessions", "Sessions now.", len(self._sessions))
        yield GaugeMetricFamily("xlexport_session_bytes", "Memory of sessions.", self._sessions.nbytes)
        if (prefixes := self._models.prefixes) is not None:
            yield GaugeMetricFamily("xlexport_prefix_entries", "Memories in the cache of prefixes.", len(prefixes))
            yield GaugeMetricFamily("xlexport_prefix_bytes", "Memory of this cache.", prefixes.nbytes)
            yield CounterMetricFamily("xlexport_prefix_hits", "Prompts that it has begun.", prefixes.hits)
            yield CounterMetricFamily("xlexport_prefix_misses", "Prompts that it has not.", prefixes.misses)
            yield CounterMetricFamily("xlexport_prefix_tokens_saved", "Tokens not read again.", prefixes.saved)
        jobs = CounterMetricFamily("xlexport_jobs", "Jobs that ended.", labels=["model", "end"])
        submitted = CounterMetricFamily("xlexport_jobs_submitted", "Jobs submitted.", labels=["model"])
        load = GaugeMetricFamily("xlexport_jobs_under_way", "Jobs now.", labels=["model"])
        clients = GaugeMetricFamily("xlexport_client_jobs", "Jobs now.", labels=["model", "client", "state"])
        tokens = CounterMetricFamily("xlexport_tokens", "Tokens read and drawn.", labels=["model", "kind"])
        steps = CounterMetricFamily("xlexport_steps", "Steps of the model.", labels=["model"])
        rows = CounterMetricFamily("xlexport_row_steps", "Rows of all steps.", labels=["model", "state"])
        for model in self._models.all:
            counts = model.scheduler.counts
            for end in ("finished", "failed", "cancelled"):
                jobs.add_metric([model.name, end], getattr(counts, end))
            submitted.add_metric([model.name], counts.jobs)
            load.add_metric([model.name], model.scheduler.load)
            doings = Counted((_label(client), doing) for client, doing in model.scheduler.under_way())
            for (client, doing), number in doings.items():
                clients.add_metric([model.name, client, doing], number)
            for kind in ("read", "drawn"):
                tokens.add_metric([model.name, kind], getattr(counts, kind))
            steps.add_metric([model.name], counts.steps)
            rows.add_metric([model.name, "busy"], counts.busy_row_steps)
            rows.add_metric([model.name, "free"], counts.row_steps - counts.busy_row_steps)
        yield from (jobs, submitted, load, clients, tokens, steps, rows)


def _label(client: str) -> str:
    """Return the label of a client: the digest of its key; all connections without keys have none."""
    return "" if ":" in client else client
