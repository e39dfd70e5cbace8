"""The stages of a job, each a step at a time: tokens are read, then continuations are drawn.

A stage has batches, whose rows documents join and leave between steps, and a queue of documents that wait for a row. A
step adds up the slots of a ring in the order in which they lie there. In a shared batch all documents write at the same
slots, so a document lies at other slots than it would alone, and its scores are rounded in another way. In a batch of
its own, a document gets the very numbers that it gets alone. On a CPU that costs nothing, unless reading the weights of
a model takes longer than computing with them: in a large model, or while single tokens are drawn. So continuations that
nobody can repeat, random ones without a seed, share steps in any case.

Clients take turns in each stage, and so do the requests of each (`turns`). A client whose requests have more rows than
another's gives them up, so each gets a row in the next round. No client has more than one step of its own in a round
while others have work. The memory that waits is that of documents that gave their row up, which go on before others of
their request begin, and of documents that were read: a request reads no others while any of its continuations wait.

Each document is cut as `Stream.feed` cuts it. Its neighbours do not matter: without `same_length`, scores depend on the
cuts. So a row whose last piece is shorter than the step is padded. If its memory is needed afterwards, the padding is
taken back, which only rings can do. Other memories run such a piece in a step of their own.

With a cache of prefixes, a document that gets a row goes on from the longest beginning that is known. If another
one is reading more of the same beginning, it waits for that one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import ClassVar, Generic

import numpy as np
import numpy.typing as npt

from xlexport.serve.batches import Batch, T, Tenant
from xlexport.serve.jobs import AnswerChoice, Owner, RequestJob, ScoredPiece, StreamPosition
from xlexport.serve.turns import Queues, in_turn
from xlruntime import EvaluationSettings, Memory, Model, Random, XlruntimeError
from xlruntime.documents import check_length
from xlruntime.prefix_cache import PrefixCache, Trail
from xlruntime.scorer import detail_of

__all__ = ["Counts", "DrawStage", "Drawer", "ReadStage", "Reader", "Stage", "not_finite"]

LOOKS = 2  # of a document into the cache of prefixes: each takes time for all its tokens


@dataclass
class Counts:
    """The counters of one scheduler.

    Attributes:
        jobs: jobs submitted; finished, failed, cancelled: jobs that ended, by how they ended.
        read: tokens read, without padding; drawn: tokens drawn.
        steps: steps run; row_steps: rows of all steps together; busy_row_steps: those of them with a document.
    """

    jobs: int = 0
    finished: int = 0
    failed: int = 0
    cancelled: int = 0
    read: int = 0
    drawn: int = 0
    steps: int = 0
    row_steps: int = 0
    busy_row_steps: int = 0

    def step(self, rows: int, busy: int) -> None:
        """Count a step."""
        self.steps += 1
        self.row_steps += rows
        self.busy_row_steps += busy


class Stage(ABC, Generic[T]):
    """Documents at the same stage of their jobs: tenants with rows, and tenants that wait.

    Args:
        most: tenants with a row at a time, in all batches together.
        shared: whether all of them share one batch; otherwise, each has one of its own, unless `shares` says otherwise.

    Attributes:
        turn: steps after which a tenant gives its row to a client or request with one row less.
        waiting: the tenants without a row.
    """

    turn: ClassVar[int]

    def __init__(self, engine: Model, evaluation: EvaluationSettings, counts: Counts, most: int, shared: bool) -> None:
        self.engine = engine
        self.evaluation = evaluation
        self.counts = counts
        self.most = most
        self.waiting = Queues[T]()
        self._round = 0
        self._shared = shared
        self._batches = [Batch[T](engine, evaluation, rows) for rows in (most, *[1] * most)]  # the first is shared

    @abstractmethod
    def run(self, batch: Batch[T]) -> None:
        """Run a step of a batch, which has a tenant, and report its results."""

    def shares(self, tenant: T) -> bool:
        """Return whether a tenant shares steps with others."""
        return self._shared

    def needs_no_row(self, tenant: T) -> bool:
        """Return whether a tenant whose turn has come waits for another one, or has nothing left to do here."""
        return False

    def may_begin(self, owner: Owner) -> bool:
        """Return whether a request that waits may have one more row."""
        return True

    @property
    def seated(self) -> list[tuple[T, Batch[T], int]]:
        """The tenants with a row, each with its batch and row."""
        rows = ((batch, row, tenant) for batch in self._batches for row, tenant in enumerate(batch.tenants))
        return [(tenant, batch, row) for batch, row, tenant in rows if tenant is not None]

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.waiting or self.seated)

    def drop(self) -> None:
        """Remove the tenants whose jobs have ended."""
        for tenant, batch, row in self.seated:
            if tenant.job.done():
                batch.free(row)
        self.waiting.drop(self.counts.failed + self.counts.cancelled)

    def step(self) -> None:
        """Give rows to tenants that wait, and run a step of the batches whose turn it is.

        One that fails ends the jobs of its batch.
        """
        self._round += 1
        if self.waiting:
            self._give_rows()
        for batch in self.due():
            for _, tenant in batch.active:
                tenant.last = self._round
            try:
                self.run(batch)
            except Exception as error:  # nobody's memory can be trusted
                for tenant in batch.clear():
                    tenant.job.fail(error)

    def due(self) -> list[Batch[T]]:
        """Return the batches whose turn it is: the shared one, and of the others as `in_turn` says."""
        batches = {tenant: batch for tenant, batch, _ in reversed(self.seated)}  # the shared one is the last
        shared = self._batches[:1] if self._batches[0].active else []
        return list(dict.fromkeys([*shared, *(batches[tenant] for tenant in in_turn(batches))]))

    def _give_rows(self) -> None:
        """Give rows to tenants that wait: to the client with the fewest first, then to its request with the fewest."""
        rows = Counter[Owner | str](key for tenant, *_ in self.seated for key in tenant.job.owner.keys)
        while owners := [owner for owner in self.waiting if self.may_begin(owner)]:
            owners.sort(key=lambda owner: (rows[owner.client], rows[owner]))
            free = self.most - len(self.seated)
            owner = owners[0] if free else self._displace(owners, rows)
            if owner is None:
                return
            more = min(sum(len(self.waiting[owner]) for owner in owners), free) - 1
            tenant = self.waiting.take(owner)
            if self.needs_no_row(tenant):
                continue
            alone = (batch for batch in self._batches[1:] if not batch.active)
            (self._batches[0] if self.shares(tenant) else next(alone)).join(tenant, max(more, 0))
            tenant.last = self._round
            rows.update(owner.keys)

    def _displace(self, owners: Sequence[Owner], rows: Counter[Owner | str]) -> Owner | None:
        """Take a row from a client or request that has more than one of `owners`, and return that one.

        With one row more, it keeps a row for a turn. The tenant waits before others of its request.
        """
        fewest = rows[owners[0].client]
        seated = [
            (tenant, batch, row)
            for tenant, batch, row in self.seated
            if tenant.steps >= self.turn or rows[tenant.job.owner] > 1 or rows[tenant.job.owner.client] > fewest + 1
        ]
        for owner in owners if seated else ():
            leads = []
            for tenant, batch, row in seated:
                other = tenant.job.owner
                both = (other, owner) if other.client == owner.client else (other.client, owner.client)
                leads.append((rows[both[0]] - rows[both[1]], rows[other], tenant.steps, batch, row))
            lead, _, steps, batch, row = max(leads, key=itemgetter(0, 1, 2))
            if lead > 1 or (lead == 1 and steps >= self.turn):
                tenant = batch.leave(row)
                self.waiting.add(tenant, first=True)
                rows.subtract(tenant.job.owner.keys)
                return owner
        return None


@dataclass(eq=False)
class Drawer(Tenant):
    """A continuation that is being drawn, with its own random numbers, its newest tokens, and the ids that end it."""

    choice: AnswerChoice
    rng: Random
    recent: deque[int]
    ends: frozenset[int]


class DrawStage(Stage[Drawer]):
    """Continuations, a token at a time."""

    turn = 64

    def add(self, job: RequestJob, pending: int, position: int, memory: Memory | None) -> None:
        """Take the continuations of a job that has been read up to a place."""
        before, tokenizer = job.before, self.engine.bundle.tokenizer
        for choice in job.choices:
            rule = choice.sampling
            more = choice, rule.rng(), rule.recent(before), rule.ends(tokenizer)
            self.waiting.add(Drawer(job, pending, position, memory, *more))

    def shares(self, tenant: Drawer) -> bool:
        """Return whether a continuation shares steps with others: in any case if no seed can repeat it."""
        rule = tenant.choice.sampling
        random = rule.seed is None and rule.temperature > 0
        return self._shared or (random and not self.engine.bundle.fixed)

    def run(self, batch: Batch[Drawer]) -> None:
        """Draw one token for every row."""
        for row, _ in batch.active:
            _make_room(batch.memory, row, self.evaluation)
        memory, active = batch.before_step(1), batch.active
        tokens = np.zeros((memory.batch_size, 1), np.int64)
        for row, drawer in active:
            tokens[row, 0] = drawer.pending
        logits = self.engine.step("generate", memory, tokens, tokens)["logits"]  # any targets
        self.counts.step(memory.batch_size, len(active))
        for row, drawer in active:
            if not np.isfinite(logits[row]).all():
                batch.discard(row)
                drawer.job.fail(not_finite(drawer.position))
            elif self._draw(drawer, logits[row]):
                place = StreamPosition(memory.row(row), drawer.pending, drawer.position) if drawer.job.keep else None
                batch.free(row)
                drawer.job.end_choice(drawer.choice, place)

    def _draw(self, drawer: Drawer, logits: npt.NDArray[np.float32]) -> bool:
        """Draw the next token; return whether the continuation ends."""
        drawer.pending = drawer.choice.sampling.draw(logits[: self.engine.drawable], drawer.rng, drawer.recent)
        drawer.recent.append(drawer.pending)
        drawer.position += 1
        self.counts.drawn += 1
        if drawer.pending in drawer.ends:
            drawer.choice.stop()
            return True
        try:
            stopped = drawer.choice.add(drawer.pending, logits, drawer.job.top)
        except Exception as error:  # of this continuation only: its text, or a client that does not read it
            drawer.job.fail(error)
            return True
        return stopped or drawer.choice.drawn == drawer.job.max_tokens


@dataclass(eq=False)
class Reader(Tenant):
    """A job whose tokens are being read.

    Attributes:
        targets: (n,) the tokens that have no score yet; `pending` is the token before them.
        trail: the tokens that its memory has read, as the cache of prefixes knows them; None: without the cache.
        length: tokens of its next step; whole: whether that is not shorter because the document ends.
        looks: how often it has looked into the cache: once, or again after it has waited for another document.
    """

    targets: npt.NDArray[np.int64]
    trail: Trail | None = None
    length: int = field(default=0, init=False)
    whole: bool = field(default=False, init=False)
    looks: int = field(default=0, init=False)

    def skip(self, trail: Trail, memory: Memory) -> None:
        """Go on after the tokens of a trail, which this memory has read."""
        assert self.trail is not None
        n = trail.read - self.trail.read
        self.trail, self.memory, self.position = trail, memory, self.position + n
        self.pending, self.targets = int(self.targets[n - 1]), self.targets[n:]
        self.job.cached += n


@dataclass(frozen=True)
class _Follower:
    """A document that waits until another one, its leader, has read so many tokens with which both begin."""

    reader: Reader
    leader: Reader
    until: int


class ReadStage(Stage[Reader]):
    """Jobs whose tokens are read, a segment at a time. `drawing` takes the ones that go on."""

    turn = 8

    def __init__(
        self,
        engine: Model,
        evaluation: EvaluationSettings,
        counts: Counts,
        most: int,
        shared: bool,
        drawing: DrawStage,
        prefixes: PrefixCache | None = None,
    ) -> None:
        super().__init__(engine, evaluation, counts, most, shared)
        self._drawing = drawing
        self._prefixes = prefixes
        self._followers: list[_Follower] = []
        lengths = [engine.longest_step(purpose, evaluation.segment_len) for purpose in ("score", "detail")]
        self._longest = min(evaluation.segment_len, *lengths)
        self._can_go_back = all(entry.layout == "ring" for entry in engine.bundle.memory)

    def add(self, job: RequestJob) -> None:
        """Take a job; there must be a token before those that get scores."""
        start, ids = job.start, job.ids
        if start is None:
            reader = Reader(job, int(ids[0]), 1, None, ids[1:], self._trail(job))
        else:
            reader = Reader(job, start.pending, start.position, start.memory, ids, start.trail)
        if len(reader.targets):
            self.waiting.add(reader)
        else:
            self._end(reader, reader.memory)

    def _trail(self, job: RequestJob) -> Trail | None:
        """Return the trail of a document that begins; None: without the cache."""
        if self._prefixes is None or job.scope is None:
            return None
        return self._prefixes.trail(self.engine, self.evaluation, "score", self._longest, job.scope)

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        return super().idle and not self._followers

    def step(self) -> None:
        """Let followers go on whose leader has read enough, or reads no more; then step as any stage does."""
        leaders = {
            client: set(self._leaders(client)) for client in {one.reader.job.owner.client for one in self._followers}
        }
        waiting, self._followers = self._followers, []
        for one in waiting:
            if one.reader.job.done():
                continue
            trail = one.leader.trail if one.leader in leaders[one.reader.job.owner.client] else None
            if trail is not None and trail.read < one.until:
                self._followers.append(one)
            else:
                self.waiting.add(one.reader, first=True)
        super().step()

    def needs_no_row(self, tenant: Reader) -> bool:
        """Go on from the longest known beginning; return whether the document then waits, or has been read."""
        cache, trail = self._prefixes, tenant.trail
        if cache is None or trail is None or tenant.looks == LOOKS:
            return False
        if tenant.job.scores:  # all its tokens get one, so all are read
            tenant.looks = LOOKS
            return False
        tenant.looks += 1
        if (found := cache.find(trail, np.append(tenant.pending, tenant.targets))) is not None:
            tenant.skip(*found)
        if tenant.looks < LOOKS and (follower := self._follower(tenant)) is not None:
            self._followers.append(follower)
            return True
        tenant.looks = LOOKS
        cache.count(tenant.job.cached)
        if not len(tenant.targets):
            self._end(tenant, tenant.memory)
        return not len(tenant.targets)

    def _leaders(self, client: str) -> list[Reader]:
        """Return the documents that a client may follow: those with a row, and its own that gave theirs up."""
        queues = (queue for owner, queue in self.waiting.items() if owner.client == client)
        own = (reader for queue in queues for reader in queue if reader.looks == LOOKS)
        return [*(reader for reader, *_ in self.seated), *own]

    def _follower(self, reader: Reader) -> _Follower | None:
        """Return a document as a follower of one that will know more of its beginning; None: none will."""
        best, ids, own = None, reader.job.ids, reader.trail
        for leader in self._leaders(reader.job.owner.client):
            other, trail = leader.job.ids, leader.trail
            if own is None or trail is None or trail.origin != own.origin:
                continue
            if reader.job.start is not None or leader.job.start is not None:
                continue
            n = min(len(ids), len(other)) - 1  # the last token is not read
            differ = np.flatnonzero(ids[:n] != other[:n])
            n = int(differ[0]) if len(differ) else n
            same = n == len(ids) - 1 == len(other) - 1
            until = n if same else trail.read + (n - trail.read) // self._longest * self._longest
            if until > max(own.read, trail.read) and (best is None or until > best.until):
                best = _Follower(reader, leader, until)
        return best

    def may_begin(self, owner: Owner) -> bool:
        """Return whether a request may read on: not to draw more continuations while others of it hold memory."""
        return not (self.waiting[owner][0].job.max_tokens and owner in self._drawing.waiting)

    def due(self) -> list[Batch[Reader]]:
        """Return the batches whose turn it is, up to the tokens of one segment: continuations must not wait longer.

        Of each other client, a document that ends in this step is read as well.
        """
        due, tokens, clients = list[Batch[Reader]](), 0, set[str]()
        for batch in super().due():
            (_, reader), *_ = batch.active
            client, left = reader.job.owner.client, len(reader.targets)
            if tokens < self._longest or (left <= self._longest and client not in clients):
                due.append(batch)
            tokens += min(left, self._longest)
            clients.add(client)
        return due

    def run(self, batch: Batch[Reader]) -> None:
        """Read the next piece of every row."""
        for row, reader in batch.active:
            _make_room(batch.memory, row, self.evaluation)
            limits = self._longest, batch.memory.max_segment, int(batch.memory.room[row])
            reader.length = min(len(reader.targets), *limits)
            reader.whole = reader.length == min(limits)
        S = max(reader.length for _, reader in batch.active)
        for row, reader in batch.active:
            if reader.length < S and not self._can_pad(batch.memory, row, reader, S):
                self._run_alone(batch.leave(row))
        memory, active = batch.before_step(S), batch.active
        tokens, targets = np.zeros((memory.batch_size, S), np.int64), np.zeros((memory.batch_size, S), np.int64)
        for row, reader in active:
            n = reader.length
            tokens[row, 0], tokens[row, 1:n] = reader.pending, reader.targets[: n - 1]
            targets[row, :n] = reader.targets[:n]
        context = memory.context(S)
        purpose = "detail" if any(reader.job.top and reader.job.scores for _, reader in active) else "score"
        outputs = self.engine.step(purpose, memory, tokens, targets)
        self.counts.step(memory.batch_size, len(active))
        for row, reader in active:
            n, job = reader.length, reader.job
            if not np.isfinite(outputs["log_prob"][row]).all():
                batch.discard(row)
                job.fail(not_finite(reader.position))
                continue
            if job.scores:
                detail = detail_of(outputs, row, slice(0, n), job.top) if job.top else {}
                detail.pop("entropy", None)
                job.parts.append(ScoredPiece(outputs["log_prob"][row, :n].copy(), context[row, :n].copy(), **detail))
            self.counts.read += n
            if reader.trail is not None:  # another graph's memory differs by rounding
                reader.trail = reader.trail.after(tokens[row, :n], reader.whole) if purpose == "score" else None
            reader.pending, reader.position = int(reader.targets[n - 1]), reader.position + n
            reader.targets = reader.targets[n:]
            ended, place = not len(reader.targets), None
            kept = self._is_kept(reader) and (n == S or self._can_go_back)
            if kept or (ended and job.continues):
                place = memory.row(row, S - n)
            if kept and place is not None and reader.trail is not None and self._prefixes is not None:
                self._prefixes.keep(reader.trail, place)
            if ended:
                self._end(reader, place)
                batch.free(row)

    def _run_alone(self, reader: Reader) -> None:
        """Run the next piece in a step of its own; if there are more, they wait for a row before all others."""
        batch: Batch[Reader] = Batch(self.engine, self.evaluation, 1)
        try:
            batch.join(reader)
            self.run(batch)
        except Exception as error:
            reader.job.fail(error)
        else:
            for row, _ in batch.active:
                self.waiting.add(batch.leave(row), first=True)

    def _is_kept(self, reader: Reader) -> bool:
        """Return whether the cache needs a memory: at a boundary, for a follower, or at a prompt's last cuts."""
        if (trail := reader.trail) is None or self._prefixes is None:
            return False
        awaited = any(one.leader is reader and one.until == trail.read for one in self._followers)
        whole = not reader.job.scores and reader.job.start is None  # a session's many parts would evict others
        last = whole and len(reader.targets) < self._longest
        return (trail.boundary or awaited or last) and self._prefixes.needs(trail)

    def _can_pad(self, memory: Memory, row: int, reader: Reader, segment_len: int) -> bool:
        if reader.length < len(reader.targets) or memory.room[row] < segment_len:
            return False
        return self._can_go_back or not reader.job.continues

    def _end(self, reader: Reader, memory: Memory | None) -> None:
        job = reader.job
        if job.max_tokens:
            self._drawing.add(job, reader.pending, reader.position, memory)
        elif job.keep:
            state = self.engine.new_memory(self.evaluation) if memory is None else memory
            job.finish([StreamPosition(state, reader.pending, reader.position, reader.trail)])
        else:
            job.finish()


def _make_room(memory: Memory, row: int, evaluation: EvaluationSettings) -> None:
    """Begin a document without positions left again, if it may."""
    if not memory.room[row]:
        check_length(int(memory.position[row]) + 2, evaluation, "the document")
        memory.restart(row)


def not_finite(position: int) -> XlruntimeError:
    """Return the error for a document on which the model fails."""
    return XlruntimeError(
        f"the model gave scores that are not finite near token {position:,}.", hint="Give another text."
    )
