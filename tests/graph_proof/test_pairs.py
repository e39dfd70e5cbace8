"""Which output feeds which input: by names, by shapes, as the user says, or refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from xlexport.errors import GraphError
from xlexport.graph_proof.graph_file import GraphFile, Port
from xlexport.graph_proof.pairs import find_pairs


def graph(inputs: str, outputs: str) -> GraphFile:
    """Return a graph without nodes; ports are written `name:2,b,3`, and `name:2,b,3:int64` if no float32."""

    def ports(text: str) -> tuple[Port, ...]:
        return tuple(port(*one.split(":")) for one in text.split())

    def port(name: str, axes: str, dtype: str = "float32") -> Port:
        shape = tuple(int(axis) if axis.isdigit() else axis for axis in axes.split(",") if axis)
        return Port(name, np.dtype(dtype), shape)

    return GraphFile(Path("graph.onnx"), b"", ports(inputs), ports(outputs), (), (), {})


@pytest.mark.parametrize(
    ("inputs", "outputs", "expected"),
    [
        ("input:b,n state:2,b,8 sr::int64", "output:b,1 stateN:?,?,?", "state=stateN"),
        ("x:1,4 h:1,b,4 c:1,b,4", "y:1,4 cn:1,b,4 hn:1,b,4", "h=hn c=cn"),
        ("x:1,4 h0:1,4 c_0:1,4", "y:1,4 hn:1,4 c_n:1,4", "h0=hn c_0=c_n"),
        ("ids:b,s past_key_values.0.key:b,p,4 past_key_values.0.value:b,p,4",
         "logits:b,s,9 present.0.key:b,t,4 present.0.value:b,t,4",
         "past_key_values.0.key=present.0.key past_key_values.0.value=present.0.value"),
        ("memory_1:4 memory_0:4 x:4", "y:4 new_memory_0:4 new_memory_1:4",
         "memory_1=new_memory_1 memory_0=new_memory_0"),
        ("cached_len_0:1 x:4", "y:4 new_cached_len_0:1", "cached_len_0=new_cached_len_0"),
        ("past_key_values.layers.0.keys:1,4 cache_params.layers.0.conv_states.0:1,3 input_ids:1,1",
         "logits:1,9 cache.layers.0.conv_states.0:1,3 cache.layers.0.keys:1,4",
         "past_key_values.layers.0.keys=cache.layers.0.keys "
         "cache_params.layers.0.conv_states.0=cache.layers.0.conv_states.0"),
        ("encoder.h:4 decoder.h:4 x:4", "y:4 decoder.hn:4 encoder.hn:4", "encoder.h=encoder.hn decoder.h=decoder.hn"),
        ("audio_in:1,8 state_in:2,8 sr::int64", "audio_out:1,8 state_out:2,8", "state_in=state_out"),
        ("x_in:1,8 y_in:1,8 z_in:1,8", "x_out:1,8 y_out:1,8 z_out:1,8", "y_in=y_out z_in=z_out"),
        ("convCacheIn:1,3 x:4", "y:4 convCacheOut:1,3", "convCacheIn=convCacheOut"),
        ("input_2:1,1,9 input_3:1,2,8", "activation_2:1,1,9 stack_2:N,2,8", "input_3=stack_2"),
        ("input_2:1,7 a:1,8 b:1,8", "z:1,5 d:1,8 c:1,8", "a=d b=c"),
        ("x:1,4 k:1,4", "y:1,4", ""),
        ("x:n,4", "y:n,4", ""),
    ],
)  # fmt: skip
def test_guessed_pairs(inputs: str, outputs: str, expected: str) -> None:
    if inputs == "x:1,4 k:1,4":  # two inputs, one output of their shape
        with pytest.raises(GraphError, match="could carry"):
            find_pairs(graph(inputs, outputs), {}, ())
        return
    assert " ".join(f"{pair.input}={pair.output}" for pair in find_pairs(graph(inputs, outputs), {}, ())) == expected


def test_inputs_with_given_values_are_no_states() -> None:
    both = graph("input_2:1,1,9 input_3:1,2,8", "activation_2:1,1,9 stack_2:1,2,8")
    (pair,) = find_pairs(both, {}, ["input_2"])
    assert (pair.input, pair.output, pair.why) == ("input_3", "stack_2", "by shape")
    pairs = find_pairs(graph("input:n,9 h:1,1,8 c:1,1,8", "y:n hn:1,1,8 cn:1,1,8"), {}, ["input"])
    assert [pair.output for pair in pairs] == ["hn", "cn"]
    (pair,) = find_pairs(graph("x:4 a:3 b:5", "y:4 b_out:5 q:3"), {"a": "q"}, ["b"])
    assert (pair.input, pair.why) == ("a", "given")


@pytest.mark.parametrize(
    ("outputs", "given", "message"),
    [
        ("y:4 hn:1,8 h_out:1,8", {}, "2 outputs could carry h: hn, h_out"),
        ("y:4 hn:1,9", {}, "hn float32 .1, 9. cannot carry h float32 .1, 8.: axis 1 is 9, not 8"),
        ("y:4 hn:1,8:float16", {}, "float16 is not float32"),
        ("y:4 hn:8", {}, "1 axes are not 2"),
        ("y:4 hn:1,8", {"h": "zz"}, "no output zz"),
        ("y:4 hn:1,8", {"zz": "hn"}, "no input zz"),
        ("y:4 hn:1,8", {"h": "hn", "x": "hn"}, "gives the output hn to h, x"),
    ],
)
def test_pairs_that_cannot_be_are_refused(outputs: str, given: dict[str, str], message: str) -> None:
    with pytest.raises(GraphError, match=message) as caught:
        find_pairs(graph("x:4 h:1,8", outputs), given, ())
    assert caught.value.hint
