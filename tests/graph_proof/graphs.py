"""Tiny graphs that carry a state, as texts in ONNX's own syntax."""

from __future__ import annotations

from tests.graph_proof.broken import write_graph as write

__all__ = ["ATTENTION", "BEFORE", "ENDLESS", "STACKED", "SUM", "TABLE", "write"]

SUM = """
(float[batch, time] x, float[batch, 1] total) => (float[batch, time] y, float[batch, 1] new_total)
<int64[1] axis = {1}, int64 along = {1}> {
  sums = CumSum(x, along)
  y = Add(sums, total)
  sum = ReduceSum(x, axis)
  new_total = Add(total, sum)
}"""
BEFORE = """
(float[batch, time] x, float[batch, 1] last) => (float[batch, time] y, float[batch, 1] new_last)
<int64[1] axis = {1}, int64[1] none = {0}, int64[1] end = {-1}, int64[1] all = {4611686018427387904}> {
  joined = Concat <axis = 1> (last, x)
  before = Slice(joined, none, end, axis)
  y = Add(x, before)
  new_last = Slice(joined, end, all, axis)
}"""
STACKED = """
(float[1, batch, 4] x, float[2, batch, 4] last) => (float[1, batch, 4] y, float[2, batch, 4] new_last)
<int64[1] none = {0}, int64[1] one = {1}, int64[1] two = {2}> {
  then = Slice(last, none, one, none)
  below = Slice(last, one, two, none)
  now = Identity(x)
  y = Add(now, below)
  new_last = Concat <axis = 0> (now, then)
}"""
ATTENTION = """
(int64[batch, time] ids, int64[batch, total] attention_mask, int64[batch, time] position_ids,
 float[batch, past, 1] past_key_0)
=> (float[batch, time, 1] logits, float[batch, total, 1] present_key_0)
<float[4, 1] values = {0.5, -1.0, 0.25, 2.0}, int64[1] last = {2}, int64 along = {1}, int64[1] axis = {1},
 int64[1] end = {4611686018427387904}, float small = {0.001}> {
  x = Gather <axis = 0> (values, ids)
  present_key_0 = Concat <axis = 1> (past_key_0, x)
  mask = Cast <to = 1> (attention_mask)
  wide = Unsqueeze(mask, last)
  heard = Mul(present_key_0, wide)
  sums = CumSum(heard, along)
  length = Shape <start = 1, end = 2> (ids)
  start = Neg(length)
  own = Slice(sums, start, end, axis)
  place = Cast <to = 1> (position_ids)
  places = Unsqueeze(place, last)
  scaled = Mul(places, small)
  logits = Add(own, scaled)
}"""
TABLE = """
(float[1, 1] x, int64[1] place) => (float[1, 1] y, int64[1] new_place)
<int64[1] one = {1}, int64[1] size = {300}, int64[1] columns = {1}, float[1] zero = {0}> {
  shape = Concat <axis = 0> (size, columns)
  rows = Expand(zero, shape)
  row = Gather <axis = 0> (rows, place)
  y = Add(x, row)
  next = Add(place, one)
  new_place = Mod(next, size)
}"""
"""A ring of 300 rows, or without `Mod` a table that ends."""
ENDLESS = """
(float[1, 4] x, float[1, 4] h) => (float[1, 4] y, float[1, 4] hn) <bool yes = {1}> {
  hn = Loop (, yes, h) <body = again (int64 n, bool on, float[1, 4] old) => (bool go_on, float[1, 4] new) {
    go_on = Identity(on)
    new = Tanh(old)
  }>
  y = Add(x, hn)
}"""
