"""Modules as people write them: right ones, which must convert, and wrong ones, each with the words of its refusal."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

N_TOKEN, D = 24, 8
State = Mapping[str, Tensor]
Result = tuple[Tensor, dict[str, Tensor]]


class Own(nn.Module):
    """Embeddings and a head; `build` adds what lies between."""

    n_token = N_TOKEN

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.word, self.head = nn.Embedding(self.n_token, D), nn.Linear(D, self.n_token)
        self.build()

    def build(self) -> None:
        """Add layers."""

    def first_state(self) -> dict[str, Tensor]:
        return {"h": torch.zeros(D)}


class Counting(Own):
    """A recurrence with a counter of tokens, of any dtype."""

    dtype = torch.int64

    def first_state(self) -> dict[str, Tensor]:
        return {"h": torch.zeros(D), "n": torch.zeros(1, dtype=self.dtype)}

    def scale(self, n: Tensor) -> Tensor:
        """Return what a counter (B, 1) does to the hidden state."""
        return torch.cos(n * 0.1)

    def step(self, token: Tensor, state: State) -> Result:
        h = torch.tanh(self.word(token) + state["h"].roll(1, dims=-1))
        return self.head(h * self.scale(state["n"])), {"h": h, "n": state["n"] + 1}


class Positions(Own):
    """The mean of all inputs, each with a place of its own; one state counts tokens."""

    def first_state(self) -> dict[str, Tensor]:
        return {"h": torch.zeros(D), "n": torch.zeros(1, dtype=torch.int64)}

    def place(self, n: Tensor) -> Tensor:
        """Return what places (B, S) add to the inputs (B, S, D)."""
        return torch.zeros(D)

    def embed(self, tokens: Tensor, n: Tensor) -> Tensor:
        return self.word(tokens) + self.place(n + torch.arange(tokens.shape[1]))

    def segment(self, tokens: Tensor, state: State) -> Result:
        S, x = tokens.shape[1], self.embed(tokens, state["n"])
        count = state["n"] + torch.arange(1, S + 1)  # (B, S)
        h = state["h"][:, None] * (state["n"] / count)[:, :, None] + x.cumsum(dim=1) / count[:, :, None]
        return self.head(torch.tanh(h)), {"h": h[:, -1], "n": state["n"] + S}


class Recurrent(Own):
    """One recurrent layer of PyTorch."""

    layer: Callable[..., nn.Module] = nn.LSTM
    states: tuple[str, ...] = ("h", "c")

    def build(self) -> None:
        self.rnn = type(self).layer(D, D, batch_first=True)

    def first_state(self) -> dict[str, Tensor]:
        return {name: torch.zeros(1, D) for name in self.states}

    def read(self, x: Tensor, state: State) -> Result:
        before = tuple(state[name].transpose(0, 1).contiguous() for name in self.states)
        y, after = self.rnn(x, before if len(before) > 1 else before[0])
        last = after if len(before) > 1 else (after,)
        return y, {name: value.transpose(0, 1) for name, value in zip(self.states, last, strict=True)}

    def segment(self, tokens: Tensor, state: State) -> Result:
        y, after = self.read(self.word(tokens), state)
        return self.head(y), after


class Window(Own):
    """Attention to the last `rows` tokens, with keys and values as states."""

    rows, hides_old = 16, True

    def build(self) -> None:
        self.q, self.k, self.v = (nn.Linear(D, D) for _ in range(3))

    def first_state(self) -> dict[str, Tensor]:
        memory = {name: torch.zeros(self.rows, D) for name in "kv"}
        return {**memory, "n": torch.zeros(1, dtype=torch.int64)}

    def attend(self, q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
        """Return the values (B, S, D) of the keys that a mask (B, S, W + S) shows."""
        return (q @ k.mT * 0.5).masked_fill(~seen, -1e30).softmax(dim=-1) @ v

    def mask(self, S: int, n: Tensor) -> Tensor:
        query, key = torch.arange(S)[:, None] + self.rows, torch.arange(self.rows + S)
        seen = (key <= query) & (key >= self.rows - n[:, :, None])  # (B, S, W + S)
        return seen & (key > query - self.rows) if self.hides_old else seen

    def segment(self, tokens: Tensor, state: State) -> Result:
        x, S = self.word(tokens), tokens.shape[1]
        k, v = torch.cat([state["k"], self.k(x)], dim=1), torch.cat([state["v"], self.v(x)], dim=1)
        y = self.attend(self.q(x), k, v, self.mask(S, state["n"]))
        return self.head(x + y), {"k": k[:, -self.rows :], "v": v[:, -self.rows :], "n": state["n"] + S}


# Right modules


class VanillaRNN(Recurrent):
    layer, states = nn.RNN, ("h",)


class OldWeightNorm(Recurrent):
    def build(self) -> None:
        super().build()
        nn.utils.weight_norm(self.rnn, "weight_hh_l0")


class DroppedWeights(nn.Module):
    """The weight drop of AWD-LSTM: each call sets a plain tensor that it computes from a parameter."""

    def __init__(self, rnn: Any) -> None:
        super().__init__()
        self.rnn, self.raw = rnn, rnn._parameters.pop("weight_hh_l0")
        self.drop()

    def drop(self) -> None:
        self.rnn.weight_hh_l0 = functional.dropout(self.raw, 0.5, self.training)

    def forward(self, *inputs: Any) -> Any:
        self.drop()
        return self.rnn(*inputs)


class WeightDrop(Recurrent):
    def build(self) -> None:
        super().build()
        self.rnn = DroppedWeights(self.rnn)


class MixtureOfSoftmaxes(Recurrent):
    def build(self) -> None:
        super().build()
        self.prior, self.latent = nn.Linear(D, 3), nn.Linear(D, 3 * D)

    def segment(self, tokens: Tensor, state: State) -> Result:
        y, after = self.read(self.word(tokens), state)
        parts = self.head(torch.tanh(self.latent(y)).unflatten(2, (3, D))).softmax(dim=-1)  # (B, S, 3, V)
        return (self.prior(y).softmax(dim=-1)[..., None] * parts).sum(dim=2).log(), after


class AdaptiveSoftmax(Recurrent):
    def build(self) -> None:
        super().build()
        self.softmax = nn.AdaptiveLogSoftmaxWithLoss(D, N_TOKEN, [6, 12], div_value=2.0)

    def segment(self, tokens: Tensor, state: State) -> Result:
        y, after = self.read(self.word(tokens), state)
        B, S, _ = y.shape
        return self.softmax.log_prob(y.reshape(B * S, D)).reshape(B, S, N_TOKEN), after


class PaddedVocabulary(Recurrent):
    def segment(self, tokens: Tensor, state: State) -> Result:
        logits, after = super().segment(tokens, state)
        return logits.masked_fill(torch.arange(N_TOKEN) >= N_TOKEN - 2, -math.inf), after


class ThreeAxes(Window):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=seen)


class NothingToSee(Window):
    """A token sees the memory alone; PyTorch gives zeros to the first of a document."""

    def step(self, token: Tensor, state: State) -> Result:
        x, (B,) = self.word(token), token.shape
        seen = (torch.arange(self.rows) >= self.rows - state["n"]).reshape(B, 1, 1, self.rows)
        q, k, v = self.q(x)[:, None, None], state["k"][:, None], state["v"][:, None]
        y = functional.scaled_dot_product_attention(q, k, v + 1, attn_mask=seen)[:, 0, 0]
        new = {"k": self.k(x), "v": self.v(x)}
        rows = {name: torch.cat([state[name][:, 1:], row[:, None]], dim=1) for name, row in new.items()}
        return self.head(x + y), {**rows, "n": state["n"] + 1}

    segment = None  # type: ignore[assignment]


class Window1000(Window):
    rows = 1000


class LongConvolution(Own):
    """A convolution over the whole segment by Fourier transforms, whose kernel decays."""

    def build(self) -> None:
        self.rate = nn.Parameter(torch.rand(D) * 0.5 + 0.1)

    def segment(self, tokens: Tensor, state: State) -> Result:
        x, S = self.word(tokens), tokens.shape[1]
        kernel = torch.exp(-self.rate[:, None] * torch.arange(S))  # (D, S)
        product = torch.fft.rfft(x.mT, n=2 * S) * torch.fft.rfft(kernel, n=2 * S)
        y = torch.fft.irfft(product, n=2 * S)[..., :S].mT
        y = y + state["h"][:, None] * torch.exp(-self.rate * torch.arange(1, S + 1)[:, None])
        return self.head(y), {"h": y[:, -1]}


class LogSpaceScan(Own):
    """h = a h + b in logarithms, over all tokens at once, as Heinsen (2023) computes it."""

    def build(self) -> None:
        self.gate, self.value = nn.Linear(D, D), nn.Linear(D, D)

    def first_state(self) -> dict[str, Tensor]:
        return {"log_h": torch.full((D,), -20.0)}

    def segment(self, tokens: Tensor, state: State) -> Result:
        x = self.word(tokens)
        decay = functional.logsigmoid(-4 * self.gate(x)).cumsum(dim=1)
        rows = functional.logsigmoid(4 * self.gate(x)) + functional.logsigmoid(self.value(x)) - decay
        log_h = decay + torch.cat([state["log_h"][:, None], rows], dim=1).logcumsumexp(dim=1)[:, 1:]
        return self.head(log_h.exp()), {"log_h": log_h[:, -1]}


class ZeroOrderHold(Own):
    def build(self) -> None:
        self.a, self.b = nn.Parameter(-torch.rand(D) - 0.5), nn.Parameter(torch.randn(D) * 300)

    def step(self, token: Tensor, state: State) -> Result:
        h = torch.exp(self.a * 1e-4) * state["h"] + torch.expm1(self.a * 1e-4) / self.a * self.b * self.word(token)
        return self.head(torch.tanh(h)), {"h": h}


class ComplexDiagonal(Own):
    """A linear recurrent unit (Orvieto et al. 2023), its state in real and imaginary parts."""

    def build(self) -> None:
        self.size, self.angle = nn.Parameter(torch.rand(D)), nn.Parameter(torch.rand(D) * 3)

    def first_state(self) -> dict[str, Tensor]:
        return {"real": torch.zeros(D), "imaginary": torch.zeros(D)}

    def step(self, token: Tensor, state: State) -> Result:
        decay = torch.polar(torch.exp(-torch.exp(self.size)), self.angle)
        h = torch.complex(state["real"], state["imaginary"]) * decay + self.word(token)
        return self.head(h.real), {"real": h.real, "imaginary": h.imag}


class OnlineSoftmax(Own):
    """Attention to all tokens before, with keys of any size: the normaliser is a state of its own."""

    def build(self) -> None:
        self.k, self.v = nn.Linear(D, D), nn.Linear(D, D)
        self.k.weight.data.mul_(40)

    def first_state(self) -> dict[str, Tensor]:
        return {"log_sum": torch.full((D,), -50.0), "mean": torch.zeros(D)}

    def step(self, token: Tensor, state: State) -> Result:
        x, before = self.word(token), state["log_sum"] - 0.1
        k = self.k(x)
        log_sum = torch.logaddexp(before, k)
        mean = state["mean"] * torch.exp(before - log_sum) + self.v(x) * torch.exp(k - log_sum)
        return self.head(mean), {"log_sum": log_sum, "mean": mean}


class Normalised(Own):
    """Linear attention with a numerator, a denominator and a largest exponent, as in RWKV-4."""

    def build(self) -> None:
        self.k, self.v = nn.Linear(D, D), nn.Linear(D, D)
        self.k.weight.data.mul_(30)

    def first_state(self) -> dict[str, Tensor]:
        return {"num": torch.zeros(D), "den": torch.zeros(D), "most": torch.full((D,), -1e30)}

    def step(self, token: Tensor, state: State) -> Result:
        k, v = self.k(self.word(token)), self.v(self.word(token))
        most = torch.maximum(state["most"] - 0.2, k)
        old, new = torch.exp(state["most"] - 0.2 - most), torch.exp(k - most)
        num, den = old * state["num"] + new * v, old * state["den"] + new
        return self.head(num / den), {"num": num, "den": den, "most": most}


class ExponentialGates(Own):
    """The gates of an mLSTM (Beck et al. 2024): a forget gate in logarithms, and a stabiliser."""

    def build(self) -> None:
        self.i, self.f, self.v = (nn.Linear(D, D) for _ in range(3))
        self.f.weight.data.mul_(10)

    def first_state(self) -> dict[str, Tensor]:
        return {name: torch.zeros(D) for name in ("cell", "normaliser", "stabiliser")}

    def step(self, token: Tensor, state: State) -> Result:
        x = self.word(token)
        forget, write = functional.logsigmoid(self.f(x) - 30) + state["stabiliser"], self.i(x)
        most = torch.maximum(forget, write)
        forget, write = torch.exp(forget - most), torch.exp(write - most)
        cell, normaliser = forget * state["cell"] + write * self.v(x), forget * state["normaliser"] + write
        new = {"cell": cell, "normaliser": normaliser, "stabiliser": most}
        return self.head(cell / normaliser.clamp(min=1e-6)), new


class IntegerClock(Counting):
    def scale(self, n: Tensor) -> Tensor:
        return torch.cos((n - 64 * torch.div(n, 64, rounding_mode="floor")) * 0.1 + (n % 7))


class Phase(Positions):
    def place(self, n: Tensor) -> Tensor:
        rate = 1 / 10 ** (torch.arange(D) / D)
        return torch.sin(torch.remainder(n[:, :, None] * rate, 2 * math.pi))


class LastPlace(Positions):
    def build(self) -> None:
        self.table = nn.Embedding(50, D)

    def place(self, n: Tensor) -> Tensor:
        return self.table(n.clamp(max=49))


class NamedLimit(Positions):
    max_positions = 3000

    def build(self) -> None:
        self.table = nn.Embedding(3000, D)

    def place(self, n: Tensor) -> Tensor:
        return self.table(n)


class Ring(Own):
    """The newest inputs, written round and round."""

    def first_state(self) -> dict[str, Tensor]:
        return {"rows": torch.zeros(7, D), "n": torch.zeros(1, dtype=torch.int64)}

    def step(self, token: Tensor, state: State) -> Result:
        place = (torch.arange(7) == state["n"] % 7)[:, :, None]  # (B, 7, 1)
        rows = torch.where(place, self.word(token)[:, None], state["rows"])
        return self.head(rows.mean(dim=1) + rows.amax(dim=1)), {"rows": rows, "n": state["n"] + 1}


class Counts(Own):
    """How often each token was read, up to 255, and whether at all."""

    def first_state(self) -> dict[str, Tensor]:
        count, seen = torch.zeros(N_TOKEN, dtype=torch.uint8), torch.zeros(N_TOKEN, dtype=torch.bool)
        return {"count": count, "seen": seen}

    def step(self, token: Tensor, state: State) -> Result:
        one = functional.one_hot(token, N_TOKEN)
        count = (state["count"].int() + one).clamp(max=255).to(torch.uint8)
        seen = state["seen"] | one.bool()
        return self.head(self.word(token)) + torch.log1p(count.float()) + seen.float(), {"count": count, "seen": seen}


class CausalConvolution(Own):
    def build(self) -> None:
        self.taps = nn.utils.weight_norm(nn.Conv1d(D, D, 3))

    def first_state(self) -> dict[str, Tensor]:
        return {"x": torch.zeros(D, 2)}

    def segment(self, tokens: Tensor, state: State) -> Result:
        x = torch.cat([state["x"], self.word(tokens).mT], dim=2)  # (B, D, 2 + S)
        return self.head(torch.relu(self.taps(x)).mT), {"x": x[:, :, -2:]}


def _cell(x: Tensor, h: Tensor) -> Tensor:
    return torch.tanh(x + h)


class ScriptedFunction(Own):
    def build(self) -> None:
        self.cell = torch.jit.script(_cell)

    def step(self, token: Tensor, state: State) -> Result:
        h = self.cell(self.word(token), state["h"].roll(1, dims=-1))
        return self.head(h), {"h": h}


def _compiled() -> nn.Module:
    model: Any = torch.compile(Recurrent())
    return model


RIGHT: dict[str, Callable[[], Any]] = {
    **{
        kind.__name__: kind
        for kind in (
            *(VanillaRNN, Recurrent, OldWeightNorm, WeightDrop, MixtureOfSoftmaxes, AdaptiveSoftmax, PaddedVocabulary),
            *(Window, ThreeAxes, NothingToSee, Window1000, LongConvolution, LogSpaceScan, ZeroOrderHold),
            *(ComplexDiagonal, OnlineSoftmax, Normalised, ExponentialGates, IntegerClock, Phase, LastPlace),
            *(NamedLimit, Ring, Counts, CausalConvolution, ScriptedFunction),
        )
    },
    "compiled": _compiled,
}


# Wrong modules; test_wrong_modules.py and test_horizon.py have further ones


class OldKeysStay(Window):
    rows, hides_old = 1000, False


class ForgetsWithin(Window):
    """A mask of a fixed size: queries behind its end see only themselves."""

    def mask(self, S: int, n: Tensor) -> Tensor:
        seen = super().mask(S, n)
        query, key = torch.arange(S)[:, None], torch.arange(self.rows + S) - self.rows
        return seen & ((query < 1024) | (key == query))


class LateLook(Positions):
    """From token 600 on, each token sees the next."""

    def embed(self, tokens: Tensor, n: Tensor) -> Tensor:
        x, late = self.word(tokens), (n + torch.arange(tokens.shape[1]) > 600)[:, :, None]
        return x + late * torch.cat([x[:, 1:], x[:, -1:]], dim=1)


class LateMix(Counting):
    """From token 600 on, rows of a batch mix."""

    def step(self, token: Tensor, state: State) -> Result:
        logits, after = super().step(token, state)
        return torch.where(state["n"] > 600, logits.mean(dim=0), logits), after


class StateEnds(Counting):
    """From token 600 on, the state is not read."""

    def step(self, token: Tensor, state: State) -> Result:
        return super().step(token, {**state, "h": state["h"] * (state["n"] < 600)})


class NaNRow(Counting):
    def build(self) -> None:
        self.word.weight.data[17] = math.nan


class DecidesByState(Own):
    def step(self, token: Tensor, state: State) -> Result:
        h = self.word(token) + (state["h"] * 0.5 if state["h"].sum() > 0 else state["h"])
        return self.head(h), {"h": torch.tanh(h)}


class DecayUnderflows(Own):
    """A recurrence in numbers that shrink with every token, and are scaled up again: 0 / 0 once they underflow."""

    def first_state(self) -> dict[str, Tensor]:
        return {"weight": torch.ones(D), "h": torch.zeros(D)}

    def step(self, token: Tensor, state: State) -> Result:
        weight = state["weight"] * 0.99
        h = state["h"] * 0.9 + weight * self.word(token)
        return self.head(torch.tanh(h / weight)), {"weight": weight, "h": h}


WRONG: dict[str, tuple[str, Callable[[], Any]]] = {
    "old keys stay": (r"after 4,160 tokens of a document, segments of 64 and 513 tokens differ", OldKeysStay),
    "mask of a fixed size": (r"segments of 513 and 1,090 tokens differ: .* from token 1,024", ForgetsWithin),
    "late look ahead": (r"after 4,160 tokens .*, token 16 changes earlier logits, so the module looks ahead", LateLook),
    "late mix of rows": (r"after 4,160 tokens of a document, row 0 of a batch of 3 depends on the other rows", LateMix),
    "state that ends": (r"after 4,160 tokens of a document, the logits do not depend on the state", StateEnds),
    "decay that underflows": (r"at most 1\d,\d{3} tokens; then ", DecayUnderflows),
    "undefined weight": (r"infinite or undefined weights in word.weight", NaNRow),
    "Python decides": (r"own_modules.py:\d+ decides by the value of h, once for all rows", DecidesByState),
}
