"""Drawn images and completed photographs, and the scores of a bundle that has learned images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result

from experiments import picture
from experiments.__main__ import main
from experiments.photos import central_crop, read_photos
from experiments.pixels import draw_image, image_ids, png
from tests.helpers.invoking import Invoke
from tests.helpers.paths import ROOT
from xlruntime import Sampling, load
from xltraining.checkpoint import build_model, load_checkpoint

SIDE = 4
GOLDEN = ROOT / "tests/golden/reformer_band/bundle"
RECIPE = f"""architecture = "reformer"
[model]
attn_layers = ["local", "lsh"]
n_head = 2
d_model = 8
d_head = 4
d_inner = 8
tgt_len = 12
mem_len = 12
axial_shape = [{SIDE}, {SIDE}, 3]
axial_dims = [3, 3, 2]
n_buckets = [4]
chunk_length = 4
local_chunk_length = 12
[training]
steps = 3
batch_size = 2
threads = 1
"""


def draw(*arguments: object) -> Result:
    return CliRunner().invoke(picture.main, [*map(str, arguments), "--threads", "1"])


def test_output_is_a_png_file() -> None:
    shown = draw(GOLDEN, "-o", "picture.jpg")
    assert shown.exit_code == 2 and "'picture.jpg' does not end in .png." in shown.stderr


def test_bundle_of_another_kind_is_refused(tmp_path: Path) -> None:
    shown = draw(GOLDEN, "-o", tmp_path / "picture.png")
    assert shown.exit_code == 1 and "the model has 258 tokens and 200 positions" in shown.stderr
    assert not (tmp_path / "picture.png").exists()


@pytest.mark.release
def test_train_convert_score_and_draw(invoke: Invoke, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="photographs need Pillow, the extra images")
    pixels = np.random.default_rng(0).integers(0, 256, (6, 9, 3), dtype=np.uint8)
    photo, run, bundle, output = (tmp_path / name for name in ("photo.png", "run", "bundle", "drawn.png"))
    photo.write_bytes(png(pixels))
    (tmp_path / "recipe.toml").write_text(RECIPE, "utf-8")
    train = ["images", str(photo), "--valid", str(photo), "--settings", str(tmp_path / "recipe.toml")]
    CliRunner().invoke(main, [*train, "--out", str(run)], catch_exceptions=False)
    invoke("convert", run / "checkpoint.pt", "-o", bundle, "--segments", 4, "--threads", 1).succeeded()

    crop = central_crop(read_photos([photo], SIDE)[0], SIDE)
    ids = image_ids(crop)
    runtime = load(bundle, threads=1)
    scores = np.concatenate([part.log_probs for part in runtime.score_tokens([ids], bos=0)])
    eager = build_model(load_checkpoint(run / "checkpoint.pt")).eval()
    memory, expected = None, []
    tokens = torch.tensor([[0, *ids[:-1].tolist()]])
    with torch.no_grad():
        for place in range(0, len(ids), 12):
            hidden, memory = eager(tokens[:, place : place + 12], memory)
            expected.append(eager.log_probs(hidden, torch.from_numpy(ids[None, place : place + 12]))[0])
    assert len(scores) == 48  # every byte, the first one too
    assert np.abs(scores - torch.cat(expected).numpy()).max() < 1e-4  # the limit of `verify`

    assert draw(bundle, photo, photo, "-o", output, "-n", 2, "--seed", 3, "--scale", 1).exit_code == 0
    with image.open(output) as found:
        sheet = np.asarray(found)
    assert sheet.shape == (4 + 2 * 8, 4 + 4 * 8, 3)
    assert np.array_equal(sheet[4:8, 4:8], crop)
    assert np.array_equal(sheet[4:6, 12:16], crop[:2]) and (sheet[6:8, 12:16] == 128).all()
    for place in range(2):
        drawn = draw_image(runtime, crop[:2], Sampling(seed=3 + place))
        assert np.array_equal(sheet[4:8, 20 + 8 * place : 24 + 8 * place], drawn)
    assert draw(bundle, "-o", output, "-n", 3, "--keep", 0, "--temperature", 0, "--scale", 2).exit_code == 0
    with image.open(output) as found:
        assert found.size == (4 + 3 * 12, 4 + 12)
