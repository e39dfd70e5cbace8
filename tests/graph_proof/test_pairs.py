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
        ("x:n,4", "y:n,4", ""),
        # as exporters write them
        ("x:1,3 h0:1,4 c_t1:1,4 m_tm1:1,4", "y:1,4 hn:1,4 c_t:1,4 m_t:1,4", "h0=hn c_t1=c_t m_tm1=m_t"),
        ("input:1,8 hx:1,4 cx:1,4", "output:1,4 hy:1,4 cy:1,4", "hx=hy cx=cy"),
        ("x:1,3 prev_h:1,4 cin:1,4", "y:1,2 next_h:1,4 cout:1,4", "prev_h=next_h cin=cout"),
        ("chunk:1,67,80 att_cache:12,4,16,128", "output:1,16,256 r_att_cache:12,4,16,128", "att_cache=r_att_cache"),
        ("feats:1,5,56 in_cache0:1,512,10 instate1:8", "logits:1,5,9 out_cache0:1,512,10 outstate1:8",
         "in_cache0=out_cache0 instate1=outstate1"),
        ("src:1,3,h,w r1i:1,16,a,b r2i:1,20,a,b ratio:1", "fgr:1,3,h,w pha:1,1,h,w r1o:1,16,a,b r2o:1,20,a,b",
         "r1i=r1o r2i=r2o"),
        ("input_1:1,3,41 input_2:1,64", "output_1:1,1,1 output_2:1,64", "input_2=output_2"),
        ("x:9 cache_last_len:1,7", "y:2 cache_last_len_next:1,7", "cache_last_len=cache_last_len_next"),
        ("obs:1,48 out_state.1:1,64 hidden_state.1:1,64", "mu:1,2 out_state:1,64 hidden_state:1,64",
         "out_state.1=out_state hidden_state.1=hidden_state"),
        ("ids:b,s:int64 past:2,b,8,p,64", "logits:b,s,9 present:2,b,8,q,64", "past=present"),
        ("frame:1,80 prev_frame:1,80", "y:1,2 frame_out:1,80", "prev_frame=frame_out"),
        ("x:1,8 u:1,2", "y:1,3 x_next:1,8", "x=x_next"),
        # what comes and goes
        ("audio_in:1,512 ref:1,512 h:1,8", "audio_out:1,512 vad:1,1 hn:1,8", "h=hn"),
        ("x:1,8 cond:1,3 h:1,8", "x_out:1,8 z:1,1 hn:1,8", "h=hn"),
        ("foo_in:b,time,8 cond:1,3 h:1,8", "foo_out:b,time,8 z:1,1 hn:1,8", "h=hn"),
        ("foo_in:1,512 gain:1 h:1,8", "foo_out:1,512 hn:1,8", "h=hn"),
        ("hidden_states:1,t,8 h:1,8", "last_hidden_state:1,t,8 hn:1,8", "h=hn"),
        ("x:1,8", "x_out:1,8", ""),
        ("audio:1,512 audio_tail:1,64 h:1,8", "audio_out:1,512 audio_tail_out:1,64 hn:1,8",
         "audio_tail=audio_tail_out h=hn"),
        # by shape, beside what names found
        ("x:t,b,3 h0:1,b,4 foo:1,b,4", "y:t,b,4 hn:1,b,4 bar:1,b,4", "h0=hn foo=bar"),
        ("x:1,80 zi:1,80 h:1,8", "y:1,80 zf:1,80 hn:1,8", "zi=zf h=hn"),
        ("x:1,3 onnx.LSTM_12:1,4 onnx.LSTM_13:1,4", "y:1,4 133:1,4 134:1,4", "onnx.LSTM_12=133 onnx.LSTM_13=134"),
        ("mic:1,257 far:1,257 h:1,8", "mask:1,257 hn:1,8", "h=hn"),
    ],
)  # fmt: skip
def test_guessed_pairs(inputs: str, outputs: str, expected: str) -> None:
    assert " ".join(f"{pair.input}={pair.output}" for pair in find_pairs(graph(inputs, outputs), {}, ())) == expected


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        ("x:1,4 k:1,4", "y:1,4"),
        ("x:1,3 h:1,8 a:1,4 b:1,4", "y:1,2 hn:1,8 c:1,4 d:1,4"),
        ("x:1,3 h:1,8 a:1,4", "y:1,2 hn:1,8 c:1,4 d:1,4"),
        ("a:1,4 b:1,4 h:1,8", "c:1,4 hn:1,8"),
        ("x:b,t total:b,1 h:1,8", "y:b,t sum:b,1 hn:1,8"),
        ("x:1,4 gain: h:1,8", "y:1,4 energy: hn:1,8"),
        ("x:1,4 state:1,8 state_in:1,8", "y:1,4 state_out:1,8"),
    ],
)
def test_states_that_nothing_decides_are_refused(inputs: str, outputs: str) -> None:
    with pytest.raises(GraphError, match="could carry") as caught:
        find_pairs(graph(inputs, outputs), {}, ())
    assert "--state" in caught.value.hint and "--input" in caught.value.hint


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
