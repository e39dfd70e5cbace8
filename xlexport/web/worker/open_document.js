// A document in the worker: its tokens, what is known of each, and forks of its stream, from which an edit goes on.

const MOST_BYTES = 96 << 20; // of the memories that forks hold
const SHORTEST = 16; // tokens of the first step after an edit, so that its colours come at once
const APART = 32; // tokens between forks
const RECENT = 4; // the newest forks are never thinned out
const [STEPS, NO_SCORE] = [100, 0xffff]; // of a bit, and the mark of a token without a score, as on the page

/** The document of a model that carries memory. */
export class StreamDocument {
  #top;
  #longest;
  #isExact;
  #stream;
  #forks = []; // {taken, stream}, in order
  #most;
  #stride = SHORTEST;
  #wanted = -1; // the place of the latest edit, which gets a fork: more edits will follow there

  /**
   * @param base - the stream before the document: a new one, or one that was saved elsewhere.
   * @param top - number of likeliest tokens to keep of each prediction; null if the bundle has no such detail.
   */
  constructor(base, top) {
    const { segmentLen, segmentationMatters } = base.evaluation;
    this.table = new Table(top);
    this.ids = [];
    this.taken = 0; // tokens that the stream has read
    this.#top = top;
    this.#longest = segmentLen;
    this.#isExact = segmentationMatters; // then steps are those of `score`, whose lengths the numbers depend on
    this.#stream = base;
    this.#most = Math.max(2 * RECENT, Math.floor(MOST_BYTES / Math.max(1, base.nbytes)));
  }

  get isDone() {
    return this.taken >= this.ids.length;
  }

  /** Replace the document's tokens, and return how many keep their scores. */
  async set(ids) {
    await this.#keep();
    const known = Math.min(this.taken, ids.length);
    let same = 0;
    while (same < known && this.ids[same] === ids[same]) same++;
    this.table.resize(ids.length, same);
    this.ids = ids;
    this.#stride = SHORTEST;
    if (same === this.taken && !(this.#isExact && !this.#atBoundary)) return same;
    this.#wanted = same;
    while (this.#forks.length > 1 && this.#forks.at(-1).taken > same) await this.#forks.pop().stream.close();
    const { stream, taken } = this.#forks.at(-1);
    await this.#stream.close();
    this.#stream = await stream.fork();
    this.taken = taken;
    return same;
  }

  /** Score the next tokens, and return the first of them that has a score. */
  async step() {
    await this.#keep();
    const piece = this.ids.slice(this.taken, this.taken + this.#length());
    const scores = await this.#stream.feed(piece, { top: this.#top });
    const first = this.taken + piece.length - scores.logProbs.length; // a document's first token has no score
    this.taken += piece.length;
    this.#stride = Math.min(this.#longest, this.#stride * 2);
    this.table.fill(first, scores);
    return first;
  }

  /** Draw tokens after the document, one by one. */
  async *generate(options) {
    const fork = await this.#stream.fork();
    try {
      yield* fork.generate(null, options);
    } finally {
      await fork.close();
    }
  }

  /** Score tokens after the document, and leave the document as it is. */
  async continuation(ids) {
    return this.#stream.scoreContinuation(ids, { top: null });
  }

  /** The last token, which decides how a continuation is tokenized; null before the first one. */
  get last() {
    return this.#stream.pending;
  }

  /** Return the state of the stream after the document, as a file. */
  async save() {
    return this.#stream.save();
  }

  /** Free all memory. */
  async close() {
    for (const { stream } of this.#forks.splice(0)) await stream.close();
    await this.#stream.close();
  }

  get #atBoundary() {
    return this.#stream.position === 0 || (this.#stream.position - 1) % this.#longest === 0;
  }

  #length() {
    const { position } = this.#stream;
    if (this.#isExact) return position ? this.#longest - ((position - 1) % this.#longest) : this.#longest + 1;
    const toEdit = this.#wanted - this.taken;
    return toEdit > 0 ? Math.min(toEdit, this.#longest) : this.#stride;
  }

  /** Keep a fork here, if this is a place to go on from. */
  async #keep() {
    const before = this.#forks.at(-1)?.taken ?? -Infinity;
    if (this.taken === before) return;
    const isPlace = this.#isExact ? this.#atBoundary : this.taken >= before + APART || this.taken === this.#wanted;
    if (!isPlace && this.#forks.length) return;
    this.#forks.push({ taken: this.taken, stream: await this.#stream.fork() });
    if (this.#forks.length <= this.#most) return;
    const old = this.#forks.splice(1, this.#forks.length - 1 - RECENT);
    const kept = old.filter((_, place) => place % 2 === 1);
    for (const fork of old) if (!kept.includes(fork)) await fork.stream.close();
    this.#forks.splice(1, 0, ...kept);
  }
}

/** The document of a model that reads each document in one step: all of it is read again after an edit. */
export class FullDocument {
  #model;
  #top;

  constructor(model, top) {
    this.table = new Table(top);
    this.ids = [];
    this.taken = 0;
    this.#model = model;
    this.#top = top;
  }

  get isDone() {
    return this.taken >= this.ids.length;
  }

  async set(ids) {
    this.ids = ids;
    this.taken = 0;
    this.table.resize(ids.length, 0);
    return 0;
  }

  async step() {
    const parts = await this.#score(this.ids);
    for (const part of parts) this.table.fill(part.index[0], part);
    this.taken = this.ids.length;
    return parts[0]?.index[0] ?? this.ids.length;
  }

  async *generate(options) {
    yield* this.#model.generate(this.ids, options);
  }

  async continuation(ids) {
    const parts = await this.#score([...this.ids, ...ids]);
    return { logProbs: parts.flatMap((part) => [...part.logProbs]).slice(-ids.length) };
  }

  get last() {
    return this.ids.at(-1) ?? null;
  }

  async close() {}

  async #score(ids) {
    const parts = [];
    for await (const part of this.#model.scoreTokens([ids], { top: this.#top })) parts.push(part);
    return parts.filter(({ index }) => index.length);
  }
}

/** Return nats in hundredths of a bit; NO_SCORE for what is not finite. */
export function hundredths(nats) {
  if (!Number.isFinite(nats)) return NO_SCORE;
  return Math.min(NO_SCORE - 1, Math.max(0, Math.round((nats / Math.LN2) * STEPS)));
}

/** What is known of each token, in as few bytes as a book allows. */
class Table {
  constructor(top) {
    this.top = top;
    this.resize(0, 0);
  }

  /** Make room for `n` tokens, and keep the first `kept`. */
  resize(n, kept) {
    const fresh = (Kind, old, width = 1) => {
      const made = new Kind(n * width);
      if (old) made.set(old.subarray(0, kept * width));
      return made;
    };
    const k = this.top ?? 0;
    this.bits = fresh(Uint16Array, this.bits).fill(NO_SCORE, kept);
    this.entropy = fresh(Uint16Array, this.entropy).fill(NO_SCORE, kept);
    this.rank = fresh(Uint32Array, this.rank);
    this.seen = fresh(Uint32Array, this.seen);
    this.topIds = fresh(Uint32Array, this.topIds, k);
    this.topRoots = fresh(Uint8Array, this.topRoots, k); // square roots of probabilities, in 255ths
  }

  fill(first, { logProbs, context, rank, entropy, topIds, topLogProbs }) {
    this.bits.set(Array.from(logProbs, (value) => hundredths(-value)), first);
    this.seen.set(context, first);
    if (!rank) return;
    this.entropy.set(Array.from(entropy, hundredths), first);
    this.rank.set(rank, first);
    topIds.forEach((ids, token) => {
      const at = (first + token) * this.top;
      this.topIds.set(ids, at);
      this.topRoots.set(topLogProbs[token].map((value) => Math.round(Math.exp(value / 2) * 255)), at);
    });
  }

  /** Return the numbers of a token. */
  of(token) {
    const k = this.top ?? 0;
    const alternatives = Array.from({ length: k }, (_, place) => ({
      id: this.topIds[token * k + place],
      probability: (this.topRoots[token * k + place] / 255) ** 2,
    })).filter(({ probability }) => probability > 0);
    return { rank: this.rank[token], seen: this.seen[token], alternatives };
  }
}
