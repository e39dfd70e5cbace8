"""Names of models: paths, code in files, installed models and cached ones; what runs, and what is refused."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tests.helpers.invoking import Invoke
from tests.helpers.paths import GOLDEN
from xlexport.checkpoints import SourceCheckpoint
from xlexport.checkpoints.files import inside, read_json
from xlexport.errors import CheckpointError
from xlexport.model_code import ModelCode
from xlexport.model_names import bundle_path, load_source, resolve

COMMIT, OTHER = "1" * 40, "2" * 40
BUNDLE = GOLDEN / "post_lnorm_same_length_empty" / "bundle"
TINY = """
import pathlib
import torch
from sibling import WIDTH

pathlib.Path("it ran").touch()
print("while it is made")


class Tiny(torch.nn.Module):
    segment_len = 8

    def __init__(self, tied=False):
        super().__init__()
        self.embed, self.head = torch.nn.Embedding(256, WIDTH), torch.nn.Linear(WIDTH, 256)
        if tied:
            self.head.weight = self.embed.weight

    def first_state(self):
        return {"sum": torch.zeros(WIDTH)}

    def segment(self, tokens, state):
        sums = state["sum"][:, None] + self.embed(tokens).cumsum(1)
        return self.head(sums.tanh()), {"sum": sums[:, -1]}


def sized(width): return Tiny()
def tied(): return Tiny(True)
def raises(): raise ValueError("no\\nsuch size")
def leaves(): raise SystemExit("bye")
def interrupted(): raise KeyboardInterrupt
instance, settings = Tiny(), {}
"""


def offer_model(folder: Path, package: str, *names: str) -> None:
    """Write what an installed package has: its code, and metadata with entry points."""
    (folder / f"{package}.py").write_text(TINY)
    metadata = folder / f"{package}-0.1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 0.1\n")
    lines = [f"{name} = {package}:Tiny" for name in names]
    (metadata / "entry_points.txt").write_text("\n".join(["[xlexport.models]", *lines, ""]))


def cache_model(folder: Path, references: dict[str, str], *commits: str) -> None:
    """Write a model as the hub's client caches it: files are links into `blobs`."""
    (folder / "blobs").mkdir(parents=True)
    (folder / "blobs" / "abc").write_text('{"model_type": "tiny"}')
    for name, commit in references.items():
        (folder / "refs" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "refs" / name).write_text(commit)
    for commit in commits:
        (folder / "snapshots" / commit).mkdir(parents=True)
        (folder / "snapshots" / commit / "config.json").symlink_to("../../blobs/abc")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the current folder, with a model of each kind."""
    packages, hub, here = tmp_path / "packages", tmp_path / "hub", tmp_path / "here"
    for path in (packages, here, here / "models", here / "plain"):
        path.mkdir()
    offer_model(packages, "tiny_zoo", "zoo", "taken", "twice")
    offer_model(packages, "other_zoo", "twice")
    cache_model(hub / "models--org--tiny.v1", {"main": COMMIT, "pr/1": OTHER}, COMMIT, OTHER)
    cache_model(hub / "models--plain", {"main": f"{COMMIT}\n"}, COMMIT)
    cache_model(hub / "models--org--partial", {}, COMMIT)
    cache_model(hub / "models--org--hostile", {"main": f"../../models--plain/snapshots/{COMMIT}"}, COMMIT)
    (packages / "sibling.py").write_text("WIDTH = 4")
    (here / "models" / "sibling.py").write_text("WIDTH = 4")
    (here / "models" / "tiny.py").write_text(TINY)
    for name in ("one.pt", "taken"):
        (here / name).touch()
    monkeypatch.chdir(here)
    monkeypatch.syspath_prepend(packages)
    monkeypatch.setenv("HF_HUB_CACHE", str(hub))
    yield here
    for name in ("sibling", "tiny_zoo"):
        sys.modules.pop(name, None)


def has_run(folder: Path) -> bool:
    return (folder / "it ran").exists() or "tiny_zoo" in sys.modules


@pytest.mark.parametrize(
    ("name", "what", "output"),
    [
        ("one.pt", "one.pt", "one.bundle"),
        ("models", "models", "models.bundle"),
        ("./taken", "taken", "taken.bundle"),
        ("models/tiny.py:tied", "tiny.py:tied", "tiny.bundle"),
        ("zoo", "tiny_zoo:zoo", "zoo.bundle"),
        ("tiny_zoo:taken", "tiny_zoo:taken", "taken.bundle"),
        ("plain@main", f"models--plain/snapshots/{COMMIT}", "plain.bundle"),
        ("org/tiny.v1", f"models--org--tiny.v1/snapshots/{COMMIT}", "tiny.v1.bundle"),
        ("org/tiny.v1@pr/1", f"models--org--tiny.v1/snapshots/{OTHER}", "tiny.v1.bundle"),
        (f"org/tiny.v1@{OTHER}", f"models--org--tiny.v1/snapshots/{OTHER}", "tiny.v1.bundle"),
    ],
)
def test_name_means_one_model(name: str, what: str, output: str, folder: Path) -> None:
    model = resolve(name)
    assert str(model.name if isinstance(model, ModelCode) else model).endswith(what)
    assert bundle_path(name) == Path(output)
    if isinstance(model, Path) and "snapshots" in str(model):
        assert read_json(inside(model, "config.json")) == {"model_type": "tiny"}
    assert not has_run(folder)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("taken", r"taken: 2 models have this name\. Give \./taken or tiny_zoo:taken\.$"),
        ("twice", r"Give other_zoo:twice or tiny_zoo:twice\.$"),
        ("plain", r"Give \./plain or plain@main\.$"),
        ("zooo", r"no such file or folder, no installed model .*, and none in .*hub\)\. Did you mean zoo\?"),
        ("org/tiny", r"Did you mean org/tiny\.v1"),
        ("nothing like it", r"\. Check the name\."),
        ("/absent.pt", r"^/absent.pt: no such file or folder\. Check the path\.$"),
        ("org/tiny.v1@dev", f"this model, but not its revision dev. Give org/tiny.v1@{COMMIT}, org/tiny.v1@{OTHER}"),
        ("org/partial", f"not its revision main. Give org/partial@{COMMIT}."),
        ("org/hostile", "not its revision main"),
        ("models/tiny.py", r"Python code\. Give models/tiny.py:Tiny or models/tiny.py:tied or models/tiny.py:raises"),
        ("models/tiny.py:", r"Python code\. Give models/tiny.py:Tiny or"),
        ("models/sibling.py", "Give models/sibling.py:NAME, of a function without arguments that returns a model"),
        ("absent.py:model", "absent.py: no such file of Python code. Check the path."),
        ("a\0b", "no such file or folder|embedded null"),
        ("a" * 5000, "File name too long"),
    ],
    ids=lambda text: ascii(text[:20]),
)
def test_name_that_means_several_or_nothing(name: str, message: str, folder: Path) -> None:
    with pytest.raises(CheckpointError, match=message):
        load_source(name, trust=True)
    assert not has_run(folder)


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("models/tiny.py:Tiny", r"/.*/models/tiny.py \(SHA-256 [0-9a-f]{64}\)"),
        ("zoo", "tiny_zoo:Tiny of the package tiny_zoo 0.1"),
    ],
)
@pytest.mark.parametrize("before", ["convert", "inspect", f"verify {BUNDLE}", f"bench {BUNDLE} --against"])
def test_code_does_not_run_without_trust(before: str, name: str, what: str, invoke: Invoke, folder: Path) -> None:
    shown = invoke(*before.split(), name)
    assert (shown.code, shown.out) == (2, "")
    assert re.search(rf"^Error: {name}: would run {what}; nothing was run\. .* add --trust", shown.err)
    assert not has_run(folder)


@pytest.mark.parametrize("name", ["models/tiny.py:Tiny", "models/tiny.py:instance", "zoo"])
def test_code_makes_a_model(name: str, invoke: Invoke, folder: Path) -> None:
    path = list(sys.path)
    shown = invoke("inspect", name, "--trust", "--json").succeeded()
    assert shown.object["architecture"] == "recurrent" and shown.object["parameters"] == 256 * 4 * 2 + 256
    assert shown.object["files"].keys() == {"tiny_zoo.py" if name == "zoo" else "tiny.py"}
    assert "while it is made" in shown.err and sys.path == path and has_run(folder)


@pytest.mark.parametrize(
    ("source", "name", "options", "message"),
    [
        ("", "tiny.py:absent", (), "tiny.py: no absent in it. Give "),
        ("", "tiny.py:settings", (), "tiny.py:settings: makes a dict, expected a torch.nn.Module."),
        ("", "tiny.py:sized", (), "tiny.py:sized: TypeError: sized() missing 1 required positional argument: 'width'."),
        ("", "tiny.py:raises", (), "tiny.py, line 29: ValueError: no. Correct this code"),
        ("", "tiny.py:leaves", (), "tiny.py, line 30: SystemExit: bye."),
        ("\nmodel = (1,", "own.py:model", (), "own.py, line 2: SyntaxError: '(' was never closed."),
        ("import absent", "own.py:model", (), "own.py, line 1: ModuleNotFoundError: No module named 'absent'."),
        ("\0", "own.py:model", (), "source code string cannot contain null bytes"),
        ("from torch import nn\nclass A(nn.Module): ...", "own.py:A", (), "A has no method first_state."),
        ("", "tiny.py:Tiny", ("--format", "nvidia"), "--config are for checkpoints, but code makes this model. Leave"),
        ("", "tiny.py:Tiny", ("--config", "tgt_len=3"), "--format and --config are for checkpoints"),
        ("", "tiny.py:Tiny", ("--weights", "models/sibling.py"), "sibling.py: its pickle has an operation at byte 0"),
        ("", "../one.pt", ("--weights", "models/tiny.py"), "--weights is for models that code makes. Leave it out."),
    ],
)
def test_code_that_makes_no_model(
    source: str, name: str, options: tuple[str, ...], message: str, invoke: Invoke, folder: Path
) -> None:
    (folder / "models" / "own.py").write_text(source)
    shown = invoke("inspect", f"models/{name}", "--trust", *options)
    assert (shown.code, shown.out) == (1, "")
    assert message in shown.err.splitlines()[-1]


def test_ctrl_c_in_the_code_is_ctrl_c(invoke: Invoke) -> None:
    assert invoke("inspect", "models/tiny.py:interrupted", "--trust").code == 130


EMBED, HEAD, BIAS = torch.full((256, 4), 2.0), torch.full((256, 4), 3.0), torch.zeros(256)
WHOLE = {"embed.weight": EMBED, "head.weight": HEAD, "head.bias": BIAS}


@pytest.mark.parametrize(
    ("name", "tensors", "problems"),
    [
        ("Tiny", WHOLE, []),
        ("tied", {"embed.weight": EMBED, "head.bias": BIAS}, []),
        ("Tiny", {"x": HEAD, "head.weight": HEAD[:9]}, ['"embed.weight", "head.bias"', '"x"', "Size([9, 4])"]),
    ],
)
def test_weights(name: str, tensors: dict[str, torch.Tensor], problems: list[str], folder: Path) -> None:
    torch.save(tensors, folder / "w.pt")

    def read() -> SourceCheckpoint:
        return load_source(f"models/tiny.py:{name}", weights=folder / "w.pt", trust=True)

    if problems:
        with pytest.raises(CheckpointError) as caught:
            read()
        assert all(problem in str(caught.value) for problem in (f"{folder / 'w.pt'}: ", *problems))
        return
    module = read().build_model().module
    assert module.embed.weight.equal(EMBED) and module.head.weight.equal(tensors.get("head.weight", EMBED))


@pytest.mark.usefixtures("cached_exports")
def test_convert_and_verify_an_installed_model(invoke: Invoke, folder: Path) -> None:
    random = torch.manual_seed(1)
    weights = {name: torch.randn(tensor.shape, generator=random) for name, tensor in WHOLE.items()}
    save_file(weights, "w.safetensors")
    options = ("--weights", "w.safetensors", "--trust")
    invoke("convert", "zoo", *options, "--tokenizer", "bytes", "--segments", "5", "--threads", "1").succeeded()
    provenance = json.loads((folder / "zoo.bundle" / "bundle.json").read_text())["provenance"]
    assert (provenance["format"], provenance["options"]) == ("module", {"model": "tiny_zoo:zoo", "version": "0.1"})
    assert provenance["sources"].keys() == {"tiny_zoo.py", "w.safetensors"}
    assert not [path for path in (folder / "zoo.bundle").iterdir() if path.suffix == ".py"]
    assert "zoo.bundle was converted from tiny_zoo:zoo." in invoke("verify", "zoo.bundle").err
    shown = invoke("verify", "zoo.bundle", "tiny_zoo:zoo", *options, "--segments", "20", "--json").succeeded()
    assert shown.object["passed"] and shown.object["max_abs_log_prob_diff"] < 1e-5
    other_weights = invoke("verify", "zoo.bundle", "zoo", "--trust", "--segments", "3")
    assert other_weights.code == 1 and re.search("^equal +NO$", other_weights.out, re.M)
    assert re.search(r"^converted from +tiny_zoo:zoo$", invoke("inspect", "zoo.bundle").out, re.M)
