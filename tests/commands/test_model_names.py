"""Names of models: paths, code in files, installed models and cached ones; what runs, and what is refused."""

from __future__ import annotations

import functools
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tests.helpers.hub import put_into_cache
from tests.helpers.invoking import Invoke
from tests.helpers.paths import GOLDEN
from xlexport.errors import CheckpointError
from xlexport.model_names import ModelCode, bundle_path, load_source, resolve

COMMIT = "1" * 40
CACHED = {"org--tiny.v1": COMMIT, "plain": f"{COMMIT}\n", "org--hostile": f"../../models--plain/snapshots/{COMMIT}"}
BUNDLE = GOLDEN / "post_lnorm_same_length_empty" / "bundle"
EMBED, BIAS = torch.full((256, 4), 2.0), torch.zeros(256)
TINY = """
import pathlib
import torch
from sibling import WIDTH

pathlib.Path("it ran").touch()
print("while it is made")


class Tiny(torch.nn.Module):
    segment_len = 8

    def __init__(self):
        super().__init__()
        self.embed, self.head = torch.nn.Embedding(256, WIDTH), torch.nn.Linear(WIDTH, 256)

    def first_state(self):
        return {"last": torch.zeros(WIDTH)}

    def segment(self, tokens, state):
        inputs = torch.cat([state["last"][:, None], self.embed(tokens)], dim=1)
        return self.head((inputs[:, 1:] + inputs[:, :-1]).tanh()), {"last": inputs[:, -1]}


def raises(): raise ValueError("no\\nsuch size")
def leaves(): raise SystemExit("bye")
def interrupted(): raise KeyboardInterrupt
instance, tied, settings = Tiny(), Tiny(), {}
tied.head.weight = tied.embed.weight
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the current folder, with a model of each kind: installed ones and cached ones are outside."""
    packages, here = tmp_path / "packages", tmp_path / "here"
    for path in (packages / "tiny_zoo-0.1.dist-info", here / "models", here / "plain"):
        path.mkdir(parents=True)
    for path, beside in ((packages / "tiny_zoo.py", "zoo_sibling"), (here / "models" / "tiny.py", "sibling")):
        path.write_text(TINY.replace("sibling", beside))
        path.with_name(f"{beside}.py").write_text("WIDTH = 4")
    (packages / "tiny_zoo-0.1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny_zoo\nVersion: 0.1")
    entries = "[xlexport.models]\nzoo = tiny_zoo:Tiny\ntaken = tiny_zoo:Tiny"
    (packages / "tiny_zoo-0.1.dist-info" / "entry_points.txt").write_text(entries)
    for name, main in CACHED.items():
        (tmp_path / "hub" / f"models--{name}" / "snapshots" / COMMIT).mkdir(parents=True)
        (tmp_path / "hub" / f"models--{name}" / "refs").mkdir()
        (tmp_path / "hub" / f"models--{name}" / "refs" / "main").write_text(main)
    (tmp_path / "hub" / "models--linked").symlink_to("models--plain")
    for name in ("one.pt", "taken"):
        (here / name).touch()
    monkeypatch.chdir(here)
    monkeypatch.syspath_prepend(packages)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    yield here
    for name in ("sibling", "tiny_zoo", "zoo_sibling"):
        sys.modules.pop(name, None)


def has_run(folder: Path) -> bool:
    return (folder / "it ran").exists() or "tiny_zoo" in sys.modules


@pytest.mark.parametrize(
    ("name", "what", "output"),
    [
        ("one.pt", "one.pt", "one.bundle"),
        ("./taken", "taken", "taken.bundle"),
        ("models/tiny.py:tied", "tiny.py:tied", "tiny.bundle"),
        ("zoo", "tiny_zoo:zoo", "zoo.bundle"),
        ("tiny_zoo:taken", "tiny_zoo:taken", "taken.bundle"),
        ("org/tiny.v1", f"models--org--tiny.v1/snapshots/{COMMIT}", "tiny.v1.bundle"),
        (f"org/hostile@{COMMIT}", f"models--org--hostile/snapshots/{COMMIT}", "hostile.bundle"),
    ],
)
def test_name_means_one_model(name: str, what: str, output: str, folder: Path) -> None:
    model = resolve(name)
    assert str(model.name if isinstance(model, ModelCode) else model).endswith(what)
    assert bundle_path(name) == Path(output)
    assert not has_run(folder)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("taken", r"taken: 2 models have this name\. Give \./taken or tiny_zoo:taken\.$"),
        ("plain", r"Give \./plain or plain@main\.$"),
        ("zooo", r"no such file or folder, no installed model .*, and none in .*hub\)\. Did you mean zoo\?"),
        ("org/tiny", r"Did you mean org/tiny\.v1 .*, run `hf download org/tiny`\."),
        ("org/tiny.v1", r"not complete .*: no model\.safetensors or .*\. Run `hf download org/tiny\.v1`"),
        ("linked", r"models--linked/snapshots/1+: behind a link, .* Run `hf download linked`\."),
        ("/absent.pt", r"^/absent.pt: no such file or folder\. Check the path\.$"),
        ("models/tiny.pt", r"^models/tiny.pt: no such file or folder\. Did you mean models/tiny\.py\?$"),
        ("modles", r"hub\)\. Did you mean models\?"),
        ("org/tiny.v1@dev", rf"hub\)\. Did you mean org/tiny\.v1@{COMMIT}\? .* org/tiny\.v1 --revision dev`\."),
        ("org/hostile", f"Did you mean org/hostile@{COMMIT}"),
        ("models/tiny.py", r"Python code\. Give models/tiny.py:Tiny or models/tiny.py:raises or"),
        ("models/sibling.py:", "Give models/sibling.py:NAME, of a function without arguments that returns a model"),
        ("absent.py:model", "absent.py: no such file of Python code. Check the path."),
    ],
)
def test_name_that_means_several_or_nothing(name: str, message: str, folder: Path) -> None:
    with pytest.raises(CheckpointError, match=message):
        load_source(name, trust=True)
    assert not has_run(folder)


@pytest.mark.parametrize("before", ["convert", "inspect", f"verify {BUNDLE}", f"bench {BUNDLE} --against"])
def test_code_does_not_run_without_trust(before: str, invoke: Invoke, folder: Path) -> None:
    for name, what in [
        ("models/tiny.py:Tiny", r"/.*/models/tiny.py \(SHA-256 [0-9a-f]{64}\)"),
        ("zoo", "tiny_zoo:Tiny of the package tiny_zoo 0.1"),
    ]:
        shown = invoke(*before.split(), name)
        assert (shown.code, shown.out) == (2, "")
        assert re.search(rf"^Error: {name}: would run {what}; nothing was run\. .* add --trust", shown.err)
    assert not has_run(folder)


@pytest.mark.parametrize("name", ["json", "difflib", "tiny_zoo", "time"])
def test_module_that_is_also_elsewhere(name: str, folder: Path) -> None:
    (folder / f"{name}.py").touch()  # of the current folder, which the code does not mean
    (folder / "models" / "sibling.py").write_text(f"def later():\n    import {name}.part\nWIDTH = 4")
    load_source("models/tiny.py:Tiny", trust=True)
    sys.modules.pop("sibling")
    (folder / "models" / f"{name}.py").write_text("raise AssertionError")
    own, other = re.escape(str(folder / "models" / f"{name}.py")), rf"(\S+/{name}(/__init__)?\.py|built-in)"
    with pytest.raises(CheckpointError, match=rf"^models/tiny.py: imports {name}, which is {own}, and also {other}\."):
        load_source("models/tiny.py:Tiny", trust=True)


def test_code_makes_a_model(invoke: Invoke, folder: Path) -> None:
    path = list(sys.path)
    shown = invoke("inspect", "models/tiny.py:instance", "--trust", "--json").succeeded()
    assert (shown.object["architecture"], shown.object["parameters"]) == ("recurrent", 256 * 4 * 2 + 256)
    assert shown.object["files"].keys() == {"tiny.py"}
    assert "while it is made" in shown.err and sys.path == path and has_run(folder)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("tiny.py:absent", "", "tiny.py: no absent in it. Give models/tiny.py:Tiny"),
        ("tiny.py:settings", "", "tiny.py:settings: makes a dict, expected a torch.nn.Module."),
        ("tiny.py:raises", "", "tiny.py, line 25: ValueError: no. Correct this code"),
        ("tiny.py:leaves", "", "tiny.py, line 26: SystemExit: bye."),
        ("broken.py:model", "", "broken.py:model: SyntaxError: '(' was never closed (broken.py, line 2)."),
        ("tiny.py:Tiny", "--set checkpoint_format=nvidia", "--set checkpoint_format and --config are for checkpoints"),
        ("tiny.py:Tiny", "--weights models/sibling.py", "sibling.py: its pickle has an operation at byte 0"),
        ("../one.pt", "--weights models/tiny.py", "--weights is for models that code makes. Leave it out."),
    ],
)
def test_code_that_makes_no_model(name: str, options: str, message: str, invoke: Invoke, folder: Path) -> None:
    (folder / "models" / "broken.py").write_text("\nmodel = (1,")
    shown = invoke("inspect", f"models/{name}", "--trust", *options.split())
    assert (shown.code, shown.out) == (1, "")
    assert message in shown.err.splitlines()[-1]


def test_ctrl_c_in_the_code_is_ctrl_c(invoke: Invoke) -> None:
    assert invoke("inspect", "models/tiny.py:interrupted", "--trust").code == 130


def test_weights() -> None:
    load = functools.partial(load_source, weights=Path("w.pt"), trust=True)
    torch.save({"embed.weight": EMBED, "head.bias": BIAS}, "w.pt")  # one name of two tied ones
    module = load("models/tiny.py:tied").build_model().module
    assert module.embed.weight.equal(EMBED) and module.head.weight.equal(EMBED)
    torch.save({"x": EMBED, "head.weight": EMBED[:9], "head.bias": BIAS}, "w.pt")
    said = r"embed\.weight is missing; head\.weight is \(9, 4\) in the file, \(256, 4\) in the model; x is unexpected\."
    with pytest.raises(CheckpointError, match=rf"^w\.pt: .*{said}"):
        load("models/tiny.py:Tiny")


@pytest.mark.usefixtures("cached_exports")
@pytest.mark.release
def test_convert_and_verify_an_installed_model(invoke: Invoke, folder: Path) -> None:
    embed, head, bias = torch.randn(3, 256, 4, generator=torch.manual_seed(1)).unbind()
    save_file({"embed.weight": embed, "head.weight": head, "head.bias": bias[:, 0].contiguous()}, "w.safetensors")
    options = ("--weights", "w.safetensors", "--trust")
    invoke("convert", "zoo", *options, "--tokenizer", "bytes", "--segments", "5", "--threads", "1").succeeded()
    provenance = json.loads((folder / "zoo.bundle" / "bundle.json").read_text())["provenance"]
    assert (provenance["format"], provenance["options"]) == ("module", {"model": "tiny_zoo:zoo"})
    assert provenance["sources"].keys() == {"tiny_zoo.py", "w.safetensors"}
    assert not list((folder / "zoo.bundle").glob("*.py"))
    assert "zoo.bundle was converted from tiny_zoo:zoo." in invoke("verify", "zoo.bundle").err
    shown = invoke("verify", "zoo.bundle", "tiny_zoo:zoo", *options, "--segments", "20", "--json").succeeded()
    assert shown.object["passed"] and shown.object["max_abs_log_prob_diff"] < 1e-5
    assert re.search(r"^converted from +tiny_zoo:zoo$", invoke("inspect", "zoo.bundle").out, re.M)


def test_commands_take_bundles_of_the_cache(invoke: Invoke, folder: Path, tmp_path: Path) -> None:
    put_into_cache(BUNDLE, tmp_path / "hub", "me/bundle")
    (folder / "text.txt").write_text("A short text.", "utf-8")
    for arguments in ("score me/bundle text.txt", "verify me/bundle", "configure me/bundle -o new --mem-len 3",
                      "inspect me/bundle", "inspect me/bundle --operators"):  # fmt: skip
        shown = invoke(*arguments.split())
        assert shown.code == 0 or "Missing argument 'CHECKPOINT'" in shown.err, arguments
    assert "already a bundle" in invoke("convert", "me/bundle").error
