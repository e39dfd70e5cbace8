"""Every wrong step model is refused by one line that names its fault, in words of numbers; right ones pass."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.step_models.modules import RIGHT, Leaky
from xlexport import api
from xlexport.errors import ExportError
from xlexport.families import architecture

LANGUAGE = re.compile(r"\b(tokens?|logits?|documents?|nats|log-probabilit)", re.IGNORECASE)


HALF = nn.Linear(4, 4).bfloat16()


def check(module: Any, inputs: Any = None) -> Any:
    source = api.read(module, inputs=inputs)
    return architecture(source.architecture).check(source.build_model(), ())


def step(compute: Callable[..., Any], **attributes: Any) -> Any:
    """Return a module whose step is `compute(module, inputs, state)`."""
    return type("Own", (Leaky,), {"step": compute, **attributes})()


def segment(compute: Callable[[Any, Any], Any], **attributes: Any) -> Any:
    """Return a module whose segment computes y and the last h from x (B, S, 4) and h (B, 4)."""

    def whole(self: Any, inputs: Any, state: Any) -> Any:
        y, h = compute(inputs["x"], state["h"])
        return {"y": y}, {"h": h}

    return type("Own", (Leaky,), {"segment": whole, "step": None, **attributes})()


def kept(self: Any, inputs: Any, state: Any) -> Any:
    self.last = getattr(self, "last", 0.0) * 0.5 + inputs["x"].mean()
    h = state["h"] * 0.5 + inputs["x"] + self.last
    return {"y": h}, {"h": h}


def shifted(x: Any, h: Any) -> Any:
    both = torch.cat([h[:, None], x], dim=1)
    return both[:, 1:] + both[:, :-1], both[:, -2]


def counted(self: Any, inputs: Any, state: Any) -> Any:
    h = state["h"] + 1
    return {"y": functional.embedding(h[:, 0].long(), torch.eye(500))}, {"h": h}


def returning(result: Callable[[Any], Any], **attributes: Any) -> Any:
    """Return a module that computes h = 0.5 h + x, and returns `result(h)`."""
    return step(lambda self, inputs, state: result(0.5 * state["h"] + inputs["x"]), **attributes)


def cumulated(x: Any, h: Any) -> Any:
    return h[:, None] + 0.1 * x.cumsum(dim=1)


WRONG: dict[str, tuple[str, Callable[[], Any]]] = {
    "off by one": ("'h' lacks the last step of a segment", lambda: segment(shifted)),
    "off by one, of tiny numbers": (
        "'h' lacks the last step of a segment",
        lambda: segment(lambda x, h: shifted(1e-8 * x, h)),
    ),
    "state that no output reads": (
        "outputs do not depend on the state",
        lambda: step(lambda self, i, s: ({"y": i["x"]}, {"h": s["h"] * 0.5 + i["x"]})),
    ),
    "state that nothing reads": (
        "'h' is returned but never read",
        lambda: step(lambda self, i, s: ({"y": i["x"]}, {"h": i["x"]})),
    ),
    "looks ahead": (
        "changes earlier outputs, so the module looks ahead",
        lambda: segment(lambda x, h: (cumulated(x, h) + x.mean(1, keepdim=True), cumulated(x, h)[:, -1])),
    ),
    "other rows": (
        "of a batch of 3 depends on the other rows",
        lambda: returning(lambda h: ({"y": h - h.mean(0)}, {"h": h})),
    ),
    "hidden state": ("keeps a state in its attribute 'last'", lambda: step(kept)),
    "random": ("the result is random", lambda: returning(lambda h: ({"y": functional.dropout(h)}, {"h": h}))),
    "writes into the state": (
        "writes in place into its argument: state['h']",
        lambda: step(lambda self, i, s: ({"y": s["h"].add_(i["x"]) * 1}, {"h": s["h"] * 1})),
    ),
    "writes into an input": (
        "writes in place into its input 'x'",
        lambda: step(lambda self, i, s: ({"y": i["x"].mul_(2) + s["h"]}, {"h": i["x"] + s["h"] * 0.5})),
    ),
    "grows": (
        "A state must not grow",
        lambda: step(
            lambda self, i, s: ({"y": s["h"].mean(1)}, {"h": torch.cat([s["h"], i["x"][:, None]], 1)}),
            first_state=lambda self: {"h": torch.zeros(1, 4)},
        ),
    ),
    "half precision": (
        "'h' is rounded to half precision",
        lambda: segment(lambda x, h: (cumulated(x, h).sin(), cumulated(x, h)[:, -1].half().float())),
    ),
    "step and segment differ": (
        "it computes something else than segment: outputs differ",
        lambda: segment(lambda x, h: (cumulated(x, h), cumulated(x, h)[:, -1]), step=Leaky.step),
    ),
    "step has other outputs": (
        "the outputs are z, expected y",
        lambda: segment(
            lambda x, h: (cumulated(x, h), cumulated(x, h)[:, -1]),
            step=lambda self, i, s: ({"z": s["h"] + 0.1 * i["x"]}, {"h": s["h"] + 0.1 * i["x"]}),
        ),
    ),
    "decides by values": (
        "decides by the value of h",
        lambda: returning(lambda h: ({"y": h * 2 if h[0, 0] > 0 else h}, {"h": h})),
    ),
    "no mapping": ('Return {"action": tensor}, state', lambda: returning(lambda h: (h, {"h": h}))),
    "no state returned": ("returns (outputs, new_state), both mappings", lambda: returning(lambda h: {"y": h})),
    "another shape later": (
        "the output 'y' is (3, 17, 2) float32, expected (3, 17, 4) float32",
        lambda: segment(
            lambda x, h: (x[..., : 4 if x.shape[1] < 9 else 2] + h[:, None, :2].mean(), h * 0.5 + x[:, -1])
        ),
    ),
    "the last step alone": (
        "expected (2, 3) in front, for 2 rows of 3 steps",
        lambda: segment(lambda x, h: (x[:, -1] + h, h * 0.5 + x[:, -1])),
    ),
    "not finite": ("the outputs are not finite at step", lambda: returning(lambda h: ({"y": h.sqrt()}, {"h": h}))),
    "no number": ("the output 'y' is float ()", lambda: returning(lambda h: ({"y": 0.5}, {"h": h}))),
    "a name twice": ("'x' is the name of another tensor too", lambda: returning(lambda h: ({"x": h}, {"h": h}))),
    "no state": ("there is no state", lambda: step(Leaky.step, first_state=lambda self: {})),
    "first state fails": (
        "raises KeyError ('tokens')",
        lambda: step(Leaky.step, first_state=lambda self: {}["tokens"]),
    ),
    "another precision": (
        "its weights are bfloat16",
        lambda: step(lambda self, i, s: self.layer(i["x"]), build=lambda self: self.add_module("layer", HALF)),
    ),
    "segment_len": ("Own.segment_len is 'a', expected a whole number", lambda: step(Leaky.step, segment_len="a")),
    "max_positions": ("It is the most steps of a series", lambda: step(Leaky.step, max_positions=-1)),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_step_models_are_refused_in_words_of_numbers(case: str) -> None:
    words, make = WRONG[case]
    with pytest.raises(ExportError) as caught:
        check(make())
    text = str(caught.value)
    assert words in text
    assert "\n" not in text
    assert not LANGUAGE.search(text.replace("'tokens'", "")), text
    assert caught.value.hint


@pytest.mark.full
@pytest.mark.parametrize(
    ("words", "compute"),
    [
        ("may have at most 499 steps; then the next steps raise IndexError", counted),
        ("grows beyond the range of float32", lambda self, i, s: ({"y": s["h"].tanh()}, {"h": 1.1 * s["h"] + i["x"]})),
    ],
)
def test_series_that_end_are_refused(words: str, compute: Callable[..., Any]) -> None:
    with pytest.raises(ExportError) as caught:
        check(step(compute))
    assert words in str(caught.value)
    assert "longer series are refused" in str(caught.value.hint)


@pytest.mark.full
def test_a_counter_of_float32_limits_series_in_words_of_numbers() -> None:
    compute = lambda self, i, s: ({"y": i["x"] * (s["h"] / 50).cos()}, {"h": s["h"] + 1})  # noqa: E731
    found = check(step(compute))
    assert (found.limit, found.note.partition(":")[0]) == (2**24, "A series has at most 16,777,216 steps")


@pytest.mark.full
@pytest.mark.parametrize("kind", RIGHT)
def test_right_step_models_pass_the_checks(kind: type[Leaky]) -> None:
    assert check(kind()).note is None


X = {"shape": (4,)}


@pytest.mark.parametrize(
    ("words", "inputs"),
    [
        ("expected a mapping of names to shapes", {}),
        ("expected a mapping of names to shapes", ["x"]),
        ("has no name that graphs can have", {"new_x": (4,)}),
        ("has no name that graphs can have", {3: (4,)}),
        *[
            ("expected as shape a list of numbers above 0", {"x": each})
            for each in (4, (0,), (2.0,), (True,), "ab", None)
        ],
        ("with a product of at most 262,144", {"x": (2**40,)}),
        ("expected as shape", {"x": {"dtype": "int64"}}),
        ("expected shape, dtype, low and high", {"x": X | {"unit": "m"}}),
        ("expected a dtype of float32, bool", {"x": X | {"dtype": "float16"}}),
        ("expected low not above high", {"x": X | {"low": 2}}),
        *[("numbers from -1e+38 to 1e+38", {"x": X | {"low": each}}) for each in (float("nan"), -1e39, "a", None)],
        ("whole numbers from 0 to 255", {"x": X | {"dtype": "uint8", "low": -1}}),
        ("whole numbers from 0 to 1", {"x": X | {"dtype": "bool", "high": 2}}),
        ("whole numbers from", {"x": X | {"dtype": "int64", "high": 0.5}}),
        ("raises KeyError ('x')", {"u": (4,)}),
        ("'h' is the name of another tensor too", {"x": (4,), "h": (4,)}),
    ],
)
def test_wrong_inputs_are_refused(words: str, inputs: Any) -> None:
    with pytest.raises(ExportError) as caught:
        api.read(Leaky(), inputs=inputs)
    assert words in str(caught.value)
    assert caught.value.hint


def test_all_numbers_of_int64_are_an_input() -> None:
    numbers = X | {"dtype": "int64", "low": -(2**63), "high": 2**63 - 1}
    assert api.read(Leaky(), inputs={"x": (4,), "n": numbers}).config["inputs"]["n"]["high"] == 2**63 - 1


def test_a_module_without_inputs_is_told_to_name_them() -> None:
    with pytest.raises(ExportError, match="says what it takes in `inputs`"):
        api.read(step(Leaky.step, inputs=None))
