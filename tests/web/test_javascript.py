"""The JavaScript runtime: its own tests, the conformance kit in Node and in browsers, states that cross, samples.

They need Node and what `npm ci` installs in `runtime/js`, and skip without it.
"""

from __future__ import annotations

import functools
import http.server
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest

from tests.conformance.run import run_case
from tests.helpers.paths import EMPTY, ROOT, golden_bundle
from tests.web_site.javascript import BROWSERS, WEB, Quiet, build, needs_chromium, needs_node, prepared, served
from xlruntime import load

WASM = WEBGPU = 5e-5  # nats: both round otherwise. With sines of a GPU, WebGPU would be off by 1e-3
FLOAT, DOUBLE = onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE
ROUNDING = 1e-15  # of sums in float64: scores, which are float32, are equal


@pytest.fixture(scope="module")
def compiled() -> None:
    build()


def run(*command: object, folder: Path = WEB) -> str:
    result = subprocess.run(
        list(map(str, command)), cwd=folder, capture_output=True, text=True, timeout=900, check=False
    )
    assert result.returncode == 0, result.stdout[-8000:] + result.stderr[-2000:]
    return result.stdout


def test_the_lock_names_no_host() -> None:
    lock = json.loads((WEB / "package-lock.json").read_text("utf-8"))
    assert [name for name, package in lock["packages"].items() if "resolved" in package] == []


@pytest.mark.native
@needs_node
def test_own_tests_pass() -> None:
    assert "# fail 0" in run("npm", "test")


@pytest.mark.native
@needs_node
@pytest.mark.usefixtures("compiled")
def test_node_passes_the_kit_and_python_goes_on_from_its_states(kit: Path, tmp_path: Path) -> None:
    run("node", "conformance/run.mjs", kit, "--keep", tmp_path, "--within", ROUNDING, "--not", "eager_")
    run("node", "conformance/run.mjs", kit, "--only", "eager_", "--within", "1e-4")  # compared with PyTorch
    names = [name for name in json.loads((kit / "kit.json").read_text("utf-8"))["cases"] if name.startswith("state_")]
    assert sum(not state.name.startswith("held_") for state in tmp_path.iterdir()) == 2 * len(names)
    for name in names:
        assert run_case(kit, name, 1e-4, states=tmp_path).problems == []


@pytest.mark.native
@needs_node
@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("browser", BROWSERS)
def test_browsers_pass_the_kit_and_python_goes_on_from_their_states(browser: str, kit: Path, tmp_path: Path) -> None:
    if not BROWSERS[browser]:
        pytest.skip(f"needs {browser}")
    run("node", "conformance/run.mjs", kit, "--browser", browser, "--keep", tmp_path, "--within", WASM)
    for name in (f"state_{EMPTY}", "state_reformer_band", "state_two_rings"):
        assert run_case(kit, name, 1e-4, states=tmp_path).problems == []


@pytest.mark.native
@needs_chromium
@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("name", [EMPTY, "pre_lnorm_empty", "reformer_band", "two_rings", "late_reader"])
def test_webgpu_passes_streams_and_states(name: str, kit: Path) -> None:
    for what in ("stream", "state"):
        device = ("--browser", "chromium", "--device", "webgpu")
        run("node", "conformance/run.mjs", kit, *device, "--only", f"{what}_{name}", "--within", WEBGPU)


@pytest.mark.native
@needs_chromium
@pytest.mark.usefixtures("compiled")
def test_webgpu_names_an_operator_that_it_lacks(tmp_path: Path) -> None:
    shutil.copytree(golden_bundle("reformer_band"), tmp_path / "bundle")
    graph = onnx.load(tmp_path / "bundle/score.onnx", load_external_data=False)
    (last,) = (node for node in graph.graph.node if "log_prob" in node.output)
    last.output[0] = "narrow"
    for name, to, given, gives in (("widen", DOUBLE, "narrow", "wide"), ("narrow", FLOAT, "wide", "log_prob")):
        graph.graph.node.append(onnx.helper.make_node("Cast", [given], [gives], name=name, to=to))
    onnx.save(graph, tmp_path / "bundle/score.onnx")
    (tmp_path / "look.mjs").write_text(
        f"""
        import {{ FOLDERS, openBrowser, page as pageWith }} from {json.dumps(str(WEB / "conformance/browser.mjs"))};
        import {{ serve }} from {json.dumps(str(WEB / "conformance/server.mjs"))};
        const server = await serve({{ ...FOLDERS, bundle: "bundle" }}, {{ "/": pageWith() }});
        const browser = await openBrowser(true);
        const page = await browser.newPage();
        await page.goto(server.address);
        const said = await page.evaluate(async () => {{
          const {{ load }} = await import("xlruntime");
          const options = {{ device: "webgpu", checkFiles: false }};
          return load("bundle", options).then(() => "opened", (error) => `${{error.name}}: ${{error.message}}`);
        }});
        console.log(said);
        await browser.close();
        await server.close();
        """,
        "utf-8",
    )
    assert run("node", "look.mjs", folder=tmp_path).splitlines()[-1] == (
        "ProviderError: bundle/score.onnx: ONNX Runtime cannot open it, as the device webgpu lacks the operator Cast "
        "of node 'narrow'. Choose another device."
    )


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Return a folder in which programs find the package, its peers and a bundle."""
    (tmp_path / "bundle").symlink_to(golden_bundle(EMPTY))
    return prepared(tmp_path)


@pytest.mark.native
@needs_node
def test_samples_for_node(package: Path) -> None:
    for sample in (ROOT / "samples/node").iterdir():
        assert len(sample.read_text("utf-8").splitlines()) <= 40
        shutil.copyfile(sample, package / sample.name)
    (package / "river.txt").write_text("The river was low and the boats lay on the mud", "utf-8")
    said = run("node", "score_a_file.mjs", "bundle", "river.txt", folder=package)
    model = load(golden_bundle(EMPTY))
    (score,) = model.score([package / "river.txt"])
    assert said.startswith(
        f"river.txt: 45 tokens, {score.bits:.1f} bits, {score.bits_per_byte:.4f} bits per byte\ntoken "
    )
    said = run("node", "save_and_generate.mjs", folder=package)
    assert said.count("bits for") == 2
    assert model.restore(package / "stream.safetensors").position == 25


@pytest.fixture
def address(package: Path) -> Iterator[str]:
    """Serve the sample of a page as it says."""
    shutil.copyfile(ROOT / "samples/browser/index.html", package / "index.html")
    (package / "xlruntime").symlink_to(WEB / "dist")
    (package / "onnxruntime").symlink_to(WEB / "node_modules/onnxruntime-web/dist")
    handler = functools.partial(Quiet, directory=str(package))
    with served(http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)) as found:
        yield found


@pytest.mark.native
@needs_chromium
def test_sample_for_browsers(address: str, package: Path) -> None:
    assert len((ROOT / "samples/browser/index.html").read_text("utf-8").splitlines()) <= 40
    (package / "look.mjs").write_text(
        f"""
        import {{ openBrowser }} from {json.dumps(str(WEB / "conformance/browser.mjs"))};
        const browser = await openBrowser();
        const page = await browser.newPage();
        page.on("console", (message) => console.log(message.text()));
        page.on("pageerror", (error) => console.log(error.message));
        await page.goto({json.dumps(address)});
        await page.waitForFunction(() => document.querySelector("#found").textContent === "Ready.");
        await page.fill("#text", "The river");
        await page.waitForFunction(() => document.querySelectorAll("#found span").length === 8);
        console.log(await page.textContent("#found"));
        await browser.close();
        """,
        "utf-8",
    )
    assert run("node", "look.mjs", folder=package) == "he river\n"


@pytest.mark.native
@needs_node
def test_javascript_of_the_page(package: Path) -> None:
    """Run the blocks of the page as one module; comments show what the last one prints."""
    page = (ROOT / "docs/javascript.md").read_text("utf-8")
    (package / "policy.mjs").write_text(
        f"""
        import {{ mkdirSync, writeFileSync }} from "node:fs";
        import {{ counting }} from {json.dumps(str(WEB / "test/step_bundle.mjs"))};
        mkdirSync("policy");
        for (const [name, content] of counting()) writeFileSync(`policy/${{name}}`, content);
        """,
        "utf-8",
    )
    run("node", "policy.mjs", folder=package)
    blocks = re.findall(r"```js\n(.*?)```", page, re.DOTALL)
    (package / "page.mjs").write_text("".join(blocks), "utf-8")
    printed = re.findall(r"^ +// (\w+: .*\n)", page, re.MULTILINE)
    assert len(blocks) == 6 and run("node", "page.mjs", folder=package) == "".join(printed)
