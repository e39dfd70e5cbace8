"""RWKV-4 against transformers and RWKV-7 against its authors' package, over whole documents."""

from __future__ import annotations

import importlib
import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.oracles.comparison import LOG_PROB_TOLERANCE, MEMORY_TOLERANCE
from xlexport.checkpoints import load
from xlexport.errors import CheckpointError
from xlexport.families.rwkv4 import RWKV4, RWKV4Sizes
from xlexport.families.rwkv7 import RWKV7, RWKV7Sizes

V, TOKENS, CUTS = 50, 330, (1, 7, 64, 300)
State = dict[str, Tensor]
Oracle = Callable[[Tensor], tuple[Tensor, State]]
SIZES = RWKV7Sizes(V, n_layer=3, d_model=48, n_head=3, d_inner=80, rank_w=6, rank_a=5, rank_v=4, rank_g=7)


def draw(name: str, shape: tuple[int, ...]) -> Tensor:
    """Return random weights as wide as those of trained models: decays from none to the strongest, gates at work."""
    if name.endswith("time_decay"):
        return torch.empty(shape).uniform_(-8, 3)  # e^-8 to e^3 for each token
    if name.endswith("w0"):
        return torch.empty(shape).uniform_(-8, 4)
    if "time_mix" in name or ".x_" in name:
        return torch.rand(shape)
    if ".ln" in name or name.startswith("ln"):
        return torch.randn(shape) * 0.2 + name.endswith("weight")
    matrix = len(shape) == 2 and "emb" not in name
    return torch.randn(shape) * (shape[0 if re.search(r"\.[wavg][12]$", name) else 1] ** -0.5 if matrix else 0.5)


@pytest.fixture(scope="module")
def ids() -> Tensor:
    """Return random tokens, with one that is repeated 60 times: then all keys of a chunk are equal."""
    tokens = torch.randint(V, (1, TOKENS), generator=torch.Generator().manual_seed(3))
    tokens[:, 100:160] = 7
    return tokens


@torch.inference_mode()
def compare(model: Any, oracle: Oracle, ids: Tensor) -> None:
    """Read a document in segments of several lengths, and by steps, beside another one: its state is separate."""
    wanted, state_wanted = oracle(ids)
    wanted = wanted.log_softmax(dim=-1)
    assert wanted.std() > 0.5  # the predictions differ
    both = torch.cat([ids, ids.flip(1)])
    for cut in (0, *CUTS):
        state = {name: torch.stack([value, value]) for name, value in model.first_state().items()}
        logits = []
        for tokens in both.split(cut or 1, dim=1):
            before = {name: value.clone() for name, value in state.items()}
            given = state
            segment, state = model.segment(tokens, state) if cut else model.step(tokens[:, 0], state)
            logits.append(segment if cut else segment.unsqueeze(1))
            assert all(torch.equal(before[name], given[name]) for name in before)
        log_probs = torch.cat(logits, dim=1).log_softmax(dim=-1)
        assert (log_probs[:1] - wanted).abs().max() < LOG_PROB_TOLERANCE, cut
        for name, value in state_wanted.items():
            difference = (state[name][0] - value).abs() / value.abs().clamp(min=1)
            assert difference.max() < MEMORY_TOLERANCE / 10, (name, cut)


@pytest.mark.parametrize(
    "settings",
    [
        {"rescale_every": 2, "layer_norm_epsilon": 1e-4},  # transformers halves the hidden states twice
        {"rescale_every": 0, "attention_hidden_size": 32, "intermediate_size": 72, "tie_word_embeddings": True},
    ],
)
def test_rwkv4(settings: dict[str, Any], ids: Tensor) -> None:
    from transformers import RwkvConfig, RwkvForCausalLM

    config = RwkvConfig(vocab_size=V, hidden_size=48, num_hidden_layers=5, **settings)
    library = RwkvForCausalLM(config).eval()
    torch.manual_seed(1)
    for name, parameter in library.named_parameters():
        parameter.data = draw(name, tuple(parameter.shape))
    library.rwkv.blocks[4].attention.key.weight.data *= 200  # keys far below -88, where exp(key) is zero
    model = RWKV4(RWKV4Sizes.from_huggingface(config.to_dict())).eval()
    model.load_state_dict({name: value.clone() for name, value in library.state_dict().items()})
    is_wide = config.attention_hidden_size == config.hidden_size  # else transformers itself cannot return a state

    def oracle(ids: Tensor) -> tuple[Tensor, State]:
        output = library(ids, use_cache=is_wide)
        names = ("shift_ffn", "shift_att", "numerator", "denominator", "exponent") if is_wide else ()
        return output.logits, {name: value[0].T for name, value in zip(names, output.state or (), strict=True)}

    compare(model, oracle, ids)


def test_rwkv4_configurations() -> None:
    wrong = {"hidden_size": 0, "num_hidden_layers": 1 << 40, "layer_norm_epsilon": "small", "rescale_every": 0.5}
    problems = r"hidden_size is 0, .*layers is 1099511627776, .*epsilon is 'small', .*rescale_every is 0\.5, expected"
    with pytest.raises(CheckpointError, match=problems):
        RWKV4Sizes.from_huggingface(wrong)
    sizes = RWKV4Sizes.from_huggingface({"hidden_size": 8, "intermediate_size": None, "rescale_every": -1})
    assert (sizes.d_attention, sizes.d_inner, sizes.n_token, sizes.epsilon_scale(9)) == (8, 32, 50277, 1.0)


@pytest.fixture(scope="module")
def package() -> Iterator[Any]:
    """Import the authors' package, which reads its settings from the environment and prints while it is imported."""
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it compiles its functions with TorchScript
        for name, value in {"RWKV_V7_ON": "1", "RWKV_JIT_ON": "0", "RWKV_CUDA_ON": "0"}.items():
            patch.setenv(name, value)
        yield importlib.import_module("rwkv.model")


def file_tensors(sizes: RWKV7Sizes = SIZES) -> State:
    """Return tensors as in the authors' files; the first layer has some that it does not use."""
    torch.manual_seed(2)
    tensors = {name: draw(name, tuple(value.shape)) for name, value in RWKV7(sizes).state_dict().items()}
    unused = {f"blocks.0.att.{name}": torch.randn(shape) for name, shape in (("v0", (1, 1, 48)), ("v1", (48, 4)))}
    return {name: value.bfloat16() for name, value in (tensors | unused).items()}


def test_rwkv7(package: Any, ids: Tensor, tmp_path: Path) -> None:
    torch.save(file_tensors(), tmp_path / "model.pth")
    source = load(tmp_path / "model.pth")
    assert (source.architecture, source.format, source.tokenizer) == ("recurrent", "rwkv", "none")
    assert source.config["n_token"] == V and {**source.config, **vars(SIZES)} == source.config
    assert source.parameters == sum(value.numel() for value in RWKV7(SIZES).parameters())
    assert [note[:20] for note in source.notes] == ["Weights are bfloat16", "No tokenizer.json li"]
    model = source.build_model().module

    def oracle(ids: Tensor) -> tuple[Tensor, State]:
        library = package.RWKV(str(tmp_path / "model"), "cpu fp32")
        logits, states = library.forward(ids[0].tolist(), None, full_output=True)
        names = ("shift_att", "wkv", "shift_ffn")
        return logits[None], {name: torch.stack(states[place::3]) for place, name in enumerate(names)}

    compare(model, oracle, ids)


def test_tokenizer_next_to_the_file(tmp_path: Path) -> None:
    torch.save({"state_dict": file_tensors()}, tmp_path / "model.pth")
    (tmp_path / "tokenizer.json").write_text("{}", "utf-8")
    source = load(tmp_path / "model.pth")
    assert source.tokenizer == tmp_path / "tokenizer.json" and source.tokenizer in source.files
    assert len(source.notes) == 1


class Hostile:
    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("touched"),)


ATT = "blocks.1.att."
OTHER = {"emb.weight": torch.zeros(V, 4), "blocks.0.att.time_decay": torch.zeros(4)}
WRONG: dict[str, tuple[Callable[[], dict[str, Any]], str]] = {
    "version 4": (lambda: OTHER, r"RWKV-4 by the names of its tensors, expected RWKV-7\. RWKV-4 converts from the Hug"),
    "version 5": (lambda: {**OTHER, "blocks.0.att.ln_x.weight": torch.zeros(4)}, r"RWKV-5 by the names"),
    "version 6": (lambda: {**OTHER, "blocks.0.att.time_maa_x": torch.zeros(4)}, r"RWKV-6 by the names"),
    "missing": (lambda: without(f"{ATT}k_k", "blocks.2.ffn.x_k"), r"blocks\.1\.att\.k_k is missing; blocks\.2\.ffn"),
    "no size": (lambda: without("emb.weight"), r"missing or of an impossible shape: emb\.weight\. Copy"),
    "no layer": (lambda: without("blocks.0.ln1.weight"), r"impossible shape: blocks\.0\.ln1\.weight"),
    "more layers": (lambda: changed("blocks.7.ln1.weight", torch.zeros(48)), r"blocks\.7\.ln1\.weight is unexpected"),
    "heads": (lambda: changed("blocks.0.att.r_k", torch.zeros(5, 16)), r"impossible shape: blocks\.0\.att\.r_k"),
    "shape": (lambda: changed(f"{ATT}w2", torch.zeros(48, 6)), r"att\.w2 is \(48, 6\) in the file, \(6, 48\) by"),
    "no numbers": (lambda: changed(f"{ATT}w0", torch.zeros(1, 1, 48).int()), r"att\.w0 is not a tensor of floats"),
    "infinite": (lambda: changed(f"{ATT}w0", torch.full((1, 1, 48), torch.inf)), r"undefined weights in blocks\.1"),
    "hostile": (lambda: {**file_tensors(), "x": Hostile()}, r"pathlib\.Path\.touch|getattr"),
}


def without(*names: str) -> State:
    return {name: value for name, value in file_tensors().items() if name not in names}


def changed(name: str, value: Tensor) -> State:
    return {**file_tensors(), name: value}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_files(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    content, message = WRONG[case]
    torch.save(content(), tmp_path / "model.pth")
    with pytest.raises(CheckpointError, match=rf"model\.pth: .*{message}"):
        load(tmp_path / "model.pth")
    assert [file.name for file in tmp_path.iterdir()] == ["model.pth"]


def test_settings_are_refused(tmp_path: Path) -> None:
    torch.save(file_tensors(), tmp_path / "model.pth")
    with pytest.raises(CheckpointError, match=r"shows all of its settings itself\. Leave out --config"):
        load(tmp_path / "model.pth", config={"n_layer": 2})
