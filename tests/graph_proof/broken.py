"""Stateful graphs, each beside the same graph with one mistake that real projects shipped."""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx

__all__ = ["CASES", "CHAOS", "CHAOS_STEP", "GRU", "LSTM", "UNUSUAL", "Case", "write_graph"]

WEIGHTS = {
    "W": (1, 12, 3), "R": (1, 12, 4), "B": (1, 24), "again_W": (1, 12, 4), "lstm_W": (1, 16, 3), "lstm_R": (1, 16, 4),
    "taps": (3, 3, 3), "table": (100, 4), "long_table": (500, 4), "query": (4, 4), "wide_query": (8, 8),
    "wild_W": (1, 64, 3), "wild_R": (1, 64, 64),
}  # fmt: skip

GRU = """
(float[time, batch, 3] x, float[1, batch, 4] h) => (float[time, batch, 4] y, float[1, batch, 4] hn)
<int64[1] none = {0}, int64[1] one = {1}, int64[1] four = {4}, float[1] zero = {0}, float[1] half = {0.5}> {
  all, hn = GRU <hidden_size = 4, linear_before_reset = 1> (x, W, R, B, , h)
  y = Squeeze(all, one)
}"""
STEP = GRU.replace("time", "1")
CHAOS = """
(float[time, batch, 3] x, float[1, batch, 64] h) => (float[time, batch, 64] y, float[1, batch, 64] hn)
<int64[1] one = {1}> {
  all, hn = RNN <hidden_size = 64> (x, wild_W, wild_R, , , h)
  y = Squeeze(all, one)
}"""
CHAOS_STEP = """
(float[1, batch, 3] x, float[1, batch, 64] h) => (float[1, batch, 64] y, float[1, batch, 64] hn) <int64[1] zero = {0}> {
  inner = Squeeze(wild_W, zero)
  outer = Squeeze(wild_R, zero)
  inner_T = Transpose(inner)
  outer_T = Transpose(outer)
  read = MatMul(x, inner_T)
  kept = MatMul(h, outer_T)
  sum = Add(read, kept)
  y = Tanh(sum)
  hn = Identity(y)
}"""
LAYERS = """
(float[1, batch, 3] x, float[2, batch, 4] state) => (float[1, batch, 4] y, float[2, batch, 4] stateN)
<int64[1] none = {0}, int64[1] one = {1}, int64[1] two = {2}> {
  a = Slice(state, none, one, none)  b = Slice(state, one, two, none)
  all, an = GRU <hidden_size = 4> (x, W, R, B, , a)
  below = Squeeze(all, one)
  above, bn = GRU <hidden_size = 4> (below, again_W, R, , , b)
  y = Squeeze(above, one)
  stateN = Concat <axis = 0> (an, bn)
}"""
LSTM = """
(float[time, batch, 3] x, float[1, batch, 4] h, float[1, batch, 4] c)
=> (float[time, batch, 4] y, float[1, batch, 4] hn, float[1, batch, 4] cn) <int64[1] one = {1}> {
  all, hn, cn = LSTM <hidden_size = 4> (x, lstm_W, lstm_R, , , h, c)
  y = Squeeze(all, one)
}"""
CONVOLUTION = """
(float[batch, 3, time] x, float[batch, 3, 2] cache) => (float[batch, 3, time] y, float[batch, 3, 2] new_cache)
<int64[1] start = {-2}, int64[1] end = {9223372036854775807}, int64[1] axis = {2}> {
  joined = Concat <axis = 2> (cache, x)
  y = Conv(joined, taps)
  new_cache = Slice(joined, start, end, axis)
}"""
CONTEXT = """
(float[batch, 3, time] x, float[1, batch, 4] state) => (float[frames, batch, 4] y, float[1, batch, 4] stateN)
<int64[1] one = {1}> {
  heard = Conv(x, taps)  frames_first = Transpose <perm = [2, 0, 1]> (heard)
  all, stateN = GRU <hidden_size = 4> (frames_first, W, R, B, , state)
  y = Squeeze(all, one)
}"""
ATTENTION = """
(float[batch, time, 4] x, float[batch, past, 4] past_0) => (float[batch, time, 4] y, float[batch, total, 4] present_0)
<float low = {-1e9}, bool yes = {1}, int64 none = {0}> {
  present_0 = Concat <axis = 1> (past_0, x)
  queries = MatMul(x, query)  keys = Transpose <perm = [0, 2, 1]> (present_0)  scores = MatMul(queries, keys)
  read = Shape <start = 1, end = 2> (past_0)  offset = Squeeze(read)
  length = Shape <start = 1, end = 2> (x)  total_length = Shape <start = 1, end = 2> (present_0)
  size = Concat <axis = 0> (length, total_length)  all = Expand(yes, size)  seen = Trilu <upper = 0> (all, offset)
  masked = Where(seen, scores, low)  weights = Softmax <axis = -1> (masked)
  y = MatMul(weights, present_0)
}"""
MICROSOFT = """
(float[batch, time, 8] x, float[batch, 2, past, 4] past_key, float[batch, 2, past, 4] past_value)
=> (float[batch, time, 8] y, float[batch, 2, total, 4] present_key, float[batch, 2, total, 4] present_value) {
  queries = MatMul(x, wide_query)
  y, present_key, present_value =
    com.microsoft.MultiHeadAttention <num_heads = 2, unidirectional = 1> (queries, x, x, , , , past_key, past_value)
}"""
POSITIONS = """
(float[time, batch, 4] x, int64[1] position) => (float[time, batch, 4] y, int64[1] new_position)
<int64 zero = {0}, int64 step = {1}, int64[1] one = {1}, int64[1] rows = {100}, int64[1] last = {99}> {
  length = Shape <start = 0, end = 1> (x)
  new_position = Add(position, length)
  stop = Squeeze(length)  steps = Range(zero, stop, step)
  positions = Add(steps, position)  row = Mod(positions, rows)
  embeddings = Gather(table, row)  added = Unsqueeze(embeddings, one)
  y = Add(x, added)
}"""
SUM = """
(float[batch, 4] x, float[batch, 4] memory) => (float[batch, 4] y, float[batch, 4] new_memory)
<float[1] keep = {0.9}, float[1] gain = {640}> {
  wide = Cast <to = 1> (memory)  kept = Mul(wide, keep)
  size = Abs(x)  added = Mul(size, gain)
  sum = Add(kept, added)  new_memory = Cast <to = 1> (sum)
  y = Mul(x, wide)
}"""
HALF_SUM = re.sub(r"float(\[batch, 4\] \w*memory)", r"float16\1", SUM).replace("<to = 1> (sum)", "<to = 10> (sum)")
SMALL = CONVOLUTION.replace("y = Conv(joined, taps)", "wide = Conv(joined, taps)  y = Mul(wide, small)").replace(
    "int64[1] start", "float small = {0.000001}, int64[1] start"
)
LONG_RING = POSITIONS.replace("rows = {100}", "rows = {500}").replace("last = {99}", "last = {499}")
LONG_RING = LONG_RING.replace("Gather(table", "Gather(long_table")
LAYER = "  a{0} = Add(t{0}, cached_{0})  t{1} = Mul(a{0}, half)  new_cached_{0} = Neg(t{1})"
MANY = f"""
(float[1, 4] x, {", ".join(f"float[1, 4] cached_{at}" for at in range(70))})
=> (float[1, 4] t70, {", ".join(f"float[1, 4] new_cached_{at}" for at in range(70))}) <float half = {{0.5}}> {{
  t0 = Identity(x)
{"".join(LAYER.format(at, at + 1) for at in range(70))}
}}"""
DYNAMIC = GRU.replace("all, hn", "q, s, z = DynamicQuantizeLinear(x)  d = DequantizeLinear(q, s, z)  all, hn").replace(
    "(x, W", "(d, W"
)


@dataclass(frozen=True)
class Case:
    """A right graph, the mistake as replacements in its text, and what `verify` must say of the wrong one."""

    right: str
    mistake: tuple[tuple[str, str], ...]
    checks: tuple[str, ...]  # at least one of them fails
    pattern: str = ""  # in the place or detail of this check
    right_options: dict[str, Any] = field(default_factory=dict)
    other: str | None = None  # the graph to compare both with

    @property
    def wrong(self) -> str:
        """Return the text of the graph with the mistake."""
        text = self.right
        for old, new in self.mistake:
            assert old in text, old
            text = text.replace(old, new)
        return text


# fmt: off
PADDED = """length = Shape <start = 0, end = 1> (x)  less = Neg(length)  rest = Mod(less, four)
  pads = Concat <axis = 0> (none, none, none, rest, none, none)  padded = Pad(x, pads)
  all, hn = GRU <hidden_size = 4, linear_before_reset = 1> (padded, W, R, B, , h)
  long = Squeeze(all, one)  y = Slice(long, none, length, none)
}"""
SINGLE = "length = Shape <end = 1> (x)  single = Equal(length, one)  first = Where(single, h, zero)  all, hn ="
FIRST_ROW = "row = Slice(h, none, one, one)  size = Shape(h)  first = Expand(row, size)  all, hn ="
ABOVE = "below = Squeeze(all, one)  above = GRU <hidden_size = 4> (below, again_W, R)  y = Squeeze(above, one)"
NOISY = "clean = Squeeze(all, one)  noise = RandomNormalLike(clean)  y = Add(clean, noise)"
ROUNDED = ("a = Cast <to = 1> (position)  b = Cast <to = 1> (length)  sum = Add(a, b)"
           "  new_position = Cast <to = 7> (sum)")
FLOATING = (("int64[1] position", "float[1] ticks"), ("int64[1] new_position", "float[1] new_ticks"),
            ("length =", "position = Cast <to = 7> (ticks)  length ="),
            ("stop =", "new_ticks = Cast <to = 1> (new_position)  stop ="))
# Named by public reports of such mistakes.
CASES = {
    "state never read (livekit/agents-js#944)": Case(GRU, ((", , h)", ")"),), ("state read",), r"\bh\b"),
    "second layer's state never read": Case(
        LAYERS, ((", , , b)", ", , , zeros)"), ("below =", "zeros = Sub(b, b)  below =")), ("state read",), "state"),
    "old state returned (rl_games#316)": Case(
        GRU, (("all, hn =", "all, lost ="), ("  y =", "  hn = Identity(h)  y =")), ("state written",), "hn"),
    "second layer's state begins anew in each step": Case(
        LAYERS, (("(an, bn)", "(an, new)"), ("  stateN", "  new = Sub(bn, bn)  stateN")), ("state written",), "stateN"),
    "state is a constant": Case(
        STEP, (("all, hn =", "all, lost ="), ("  y =", "  gone = Sub(h, h)  hn = Sigmoid(gone)  y =")),
        ("state written",), "hn"),
    "second layer's old state returned": Case(LAYERS, (("(an, bn)", "(an, b)"),), ("state written",), "stateN"),
    "long segments begin at zero (sparkinfer#1071)": Case(
        GRU, (("all, hn =", SINGLE), (", , h)", ", , first)")), ("cuts",)),
    "pads update the state (transformers#46190)": Case(GRU, ((GRU[GRU.index("all,") :], PADDED),), ("cuts",)),
    "all rows read the first row's state (mlx-lm#1908)": Case(
        STEP, (("all, hn =", FIRST_ROW), (", , h)", ", , first)")), ("rows",)),
    "mean over the rows": Case(
        POSITIONS, (("y = Add(x, added)", "m = ReduceMean(x, one)  z = Sub(x, m)  y = Add(z, added)"),), ("rows",)),
    "second layer has no state (DeepFilterNet#430)": Case(
        GRU, (("y = Squeeze(all, one)", ABOVE),), ("recurrence",), "GRU"),
    "noise of training left on (MNN#4447)": Case(GRU, (("y = Squeeze(all, one)", NOISY),), ("repeat", "fresh")),
    "steps after the first diverge (tract#2157)": Case(
        STEP, (("all, hn =", "less = Mul(h, half)  all, hn ="), (", , h)", ", , less)")), ("other",), r"step 1\b",
        other=GRU),
    "reset gate before the product (onnxscript#2852)": Case(GRU, (("reset = 1", "reset = 0"),), ("other",), other=GRU),
    "two states swapped (Isaac Lab#6064)": Case(LSTM, (("all, hn, cn", "all, cn, hn"),), ("cuts",)),
    "cache begins one too early (Transformers-RL#7)": Case(
        CONVOLUTION, (("{-2}", "{-3}"), ("{9223372036854775807}", "{-1}")), ("cuts",)),
    "input without its context (silero-vad#771)": Case(CONTEXT, (), ("cuts",), right_options={"context": ("x=2",)}),
    "mask forgets the cache (sherpa-onnx#3782)": Case(ATTENTION, (("(all, offset)", "(all, none)"),), ("cuts",)),
    "attention sees later tokens (com.microsoft)": Case(
        MICROSOFT, (("unidirectional = 1", "unidirectional = 0"),), ("cuts",)),
    "counter counts calls (Isaac Lab#3837)": Case(POSITIONS, (("position, length", "position, one"),), ("cuts",)),
    "call that crosses the end of a ring is cut short": Case(
        POSITIONS, (("steps, position)", "steps, begin)"), ("row = Mod(positions, rows)", "row = Min(positions, last)"),
                    ("positions =", "begin = Mod(position, rows)  positions =")), ("cuts",)),
    "table of positions runs out": Case(
        POSITIONS, (("Mod(positions, rows)", "Identity(positions)"),), ("horizon",), "100"),
    "counter through float32": Case(POSITIONS, (("new_position = Add(position, length)", ROUNDED),), ("horizon",)),
    "counter is a float32": Case(POSITIONS, FLOATING, ("range", "horizon"), "ticks"),
    "state grows without end (mlcommons/inference#689)": Case(SUM, (("{0.9}", "{1}"),), ("range",), "memory"),
    "float16 state overflows (mlcommons/inference#689)": Case(HALF_SUM, (("{0.9}", "{1}"),), ("range",), "memory"),
    "results of a millionth": Case(
        SMALL, (("{-2}", "{-3}"), ("{9223372036854775807}", "{-1}")), ("cuts",), "y, step 1"),
    "call that crosses the end of a long ring is cut short": Case(
        LONG_RING, (("steps, position)", "steps, begin)"), ("row = Mod(positions, rows)", "row = Min(positions, last)"),
               ("positions =", "begin = Mod(position, rows)  positions =")), ("cuts",), "y, step 500"),
    "one of 70 states is never read": Case(MANY, (("(t65, cached_65)", "(t65, t65)"),), ("state read",), "^cached_65 "),
    "state begins anew in each step": Case(
        GRU, (("all, hn =", "all, lost ="), ("  y =", "  hn = Sub(h, h)  y =")), ("state written",), "hn"),
    "int8 with a state that long segments forget": Case(
        DYNAMIC, (("all, hn =", SINGLE), (", , h)", ", , first)")), ("cuts",)),
}

HEARD = """(float[1, 4] x, float[1, 4] h, STATE) => (float[1, 4] y, float[1, 4] hn, NEW)
<float half = {0.5}, float high = {5}, bool[1] yes = {1}, int64[1] one = {1}, int64[1] cap = {12000000}> {
  kept = Mul(h, half)  hn = Add(kept, x)  BODY
}"""
CROSS = """(float[batch, 1, 4] x, float[batch, past, 4] own, float[batch, 6, 4] encoder)
=> (float[batch, 1, 4] y, float[batch, total, 4] new_own, float[batch, 6, 4] new_encoder) {
  new_own = Concat <axis = 1> (own, x)  places = Transpose <perm = [0, 2, 1]> (new_own)  scores = MatMul(x, places)
  weights = Softmax <axis = -1> (scores)  heard = MatMul(weights, new_own)
  others = Transpose <perm = [0, 2, 1]> (encoder)  more = MatMul(heard, others)  shares = Softmax <axis = -1> (more)
  read = MatMul(shares, encoder)  y = Add(read, heard)  new_encoder = Identity(encoder)
}"""
CHANNEL = """(float[1, 4] x, float[1, 3, 4] cache) => (float[1, 4] y, float[1, 3, 4] new_cache)
<int64[1] one = {1}, float[1, 3, 1] gain = {0.5, 0, 0.5}> {
  wide = Unsqueeze(x, one)  sum = Add(cache, wide)  new_cache = Mul(sum, gain)
  y = ReduceSum <keepdims = 0> (new_cache, one)
}"""
WITHIN = """(float[1, 4] x, float[1, 4] h) => (float[1, 4] y, float[1, 4] hn)
<int64 n = {3}, bool yes = {1}, float half = {0.5}> {
  kept = Mul(h, half)  hn = Add(kept, x)
  z = Loop (n, yes, x) <body = again (int64 i, bool on, float[1, 4] old) => (bool go_on, float[1, 4] new) {
    go_on = Identity(on)  new = Tanh(old)
  }>
  y = Add(hn, z)
}"""
MEAN = "long = Squeeze(all, one)  y = ReduceMean <keepdims = 0> (long, none)"
POOLED = GRU.replace("y = Squeeze(all, one)", MEAN).replace("float[time, batch, 4] y", "float[batch, 4] y")


def heard(state: str, after: str, body: str) -> str:
    return HEARD.replace("STATE", state).replace("NEW", after).replace("BODY", body)


# Right graphs that look wrong: their text, the check that says why they are not, and its words.
UNUSUAL = {
    "flag": (heard("bool[1] begun", "bool[1] new_begun", "new_begun = Identity(yes)  y = Where(begun, hn, x)"),
             "state written", "new_begun: a flag"),
    "latch": (heard("int64[1] seen", "int64[1] new_seen",
                    "most = ReduceMax <keepdims = 0> (x)  is_loud = Greater(most, high)  loud = Cast <to = 7> (is_loud)"
                    "  new_seen = Max(seen, loud)  more = Cast <to = 1> (new_seen)  y = Add(hn, more)"),
              "state written", "new_seen: no step"),
    "cache of an encoder": (CROSS, "state written", "new_encoder: passed through"),
    "dead channel": (CHANNEL, "state written", r"new_cache\[:, 1\]: the same"),
    "quiet state": (heard("float[1, 4] rest", "float[1, 4] new_rest",
                          "all = Add(hn, rest)  more = Sub(all, high)  new_rest = Relu(more)  y = Add(hn, new_rest)"),
                    "state written", "new_rest: the same"),
    "counter with a bound": (heard("int64[1] seen", "int64[1] new_seen",
                                   "next = Add(seen, one)  new_seen = Min(next, cap)  place = Cast <to = 1> (new_seen)"
                                   "  turn = Cos(place)  y = Add(hn, turn)"), "horizon", "to a bound"),
    "loop within a step": (WITHIN, "recurrence", "right within a step"),
    "mean of a call": (POOLED, "cuts", "y pools"),
    "largest of a call": (POOLED.replace("ReduceMean", "ReduceMax"), "cuts", "y pools"),
    "sum of a call": (POOLED.replace("ReduceMean", "ReduceSum"), "cuts", "y pools"),
    "dynamic int8": (DYNAMIC, "cuts", "ranges of int8"),
    "result of all rows": (SUM.replace("float[batch, 4] y,", "float[batch, 4] y, float energy,").replace(
        "y = Mul", "energy = ReduceMean <keepdims = 0> (x)  y = Mul"), "rows", "energy has no axis"),
    "slow average": (SUM.replace("{0.9}", "{0.9999}"), "range", "has an end"),
    "sum with a bound": (SUM.replace("{0.9}", "{1}").replace("sum = Add(kept, added)", "all = Add(kept, added)"
                         "  sum = Clip(all, low, high)").replace("<float", "<float low = {0}, float high = {1e8}, "
                         "float"), "range", "has an end"),
    "steps that sum what is random": (
        SUM.replace("{0.9}", "{1}").replace("kept = Mul(wide, keep)", "now = Sign(x)  open = Abs(now)"
                                            "  kept = Mul(wide, open)"), "range", "zeros shrink it"),
}
# fmt: on


def write_graph(path: Path, text: str) -> Path:
    """Write the graph of a text in ONNX's own syntax, with drawn weights for the names of `WEIGHTS` that it reads."""
    domains = "".join(f', "{domain}" : 1' for domain in ("com.microsoft", "com.example") if domain in text)
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21{domains}]> graph {text}')
    read = {name for node in model.graph.node for name in node.input}
    constants = [constant for constant in model.graph.initializer if constant.name in read]
    for name in read & WEIGHTS.keys():
        drawn = np.random.default_rng(zlib.crc32(name.encode())).normal(0, 0.7, WEIGHTS[name]).astype(np.float32)
        constants.append(onnx.numpy_helper.from_array(drawn, name))
    del model.graph.initializer[:]
    model.graph.initializer.extend(sorted(constants, key=lambda constant: constant.name))
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)
    return path
