"""`xlexport picture`: drawn images and completed photographs, and the scores of a bundle that has learned images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.helpers.invoking import Invoke
from tests.helpers.paths import ROOT
from xlruntime import Sampling, load
from xlruntime.images import draw_image, image_ids, png
from xltraining.checkpoint import build_model, load_checkpoint
from xltraining.data.photos import central_crop, read_photos

SIDE = 4
GOLDEN = ROOT / "tests/golden/reformer_band/bundle"
TRAIN = (
    *("--task", "images", f"--set=training.image_size={SIDE}"),
    *("--architecture", "reformer", "--attn-layers", "local,lsh"),
    *("--d-model", 8, "--n-head", 2, "--d-head", 4, "--d-inner", 8, "--tgt-len", 12, "--mem-len", 12),
    *("--set=model.axial_shape=4,4,3", "--set=model.axial_dims=3,3,2", "--set=model.n_buckets=4"),
    *("--set=model.chunk_length=4", "--set=model.local_chunk_length=12"),
    *("--steps", 3, "--batch-size", 2, "--threads", 1),
)


def test_output_is_a_png_file(invoke: Invoke) -> None:
    shown = invoke("picture", GOLDEN, "-o", "picture.jpg")
    assert shown.code == 2 and "'picture.jpg' does not end in .png." in shown.err


def test_bundle_of_another_kind_is_refused(invoke: Invoke, tmp_path: Path) -> None:
    shown = invoke("picture", GOLDEN, "-o", tmp_path / "picture.png")
    assert shown.code == 1 and "the model has 258 tokens and 200 positions" in shown.err
    assert not (tmp_path / "picture.png").exists()


def test_image_size_is_for_images_only(invoke: Invoke, prose: Path, tmp_path: Path) -> None:
    shown = invoke("train", prose, "-o", tmp_path / "run", "--set=training.image_size=8")
    assert shown.code == 2 and "training.image_size: only for --task images" in shown.err


@pytest.mark.full
def test_train_convert_score_and_draw(invoke: Invoke, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="photographs need Pillow, the extra images")
    pixels = np.random.default_rng(0).integers(0, 256, (6, 9, 3), dtype=np.uint8)
    photo, run, bundle, output = (tmp_path / name for name in ("photo.png", "run", "bundle", "drawn.png"))
    photo.write_bytes(png(pixels))
    invoke("train", photo, "--valid", photo, "-o", run, *TRAIN).succeeded()
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

    invoke("picture", bundle, photo, photo, "-o", output, "-n", 2, "--seed", 3, "--scale", 1).succeeded()
    with image.open(output) as found:
        sheet = np.asarray(found)
    assert sheet.shape == (4 + 2 * 8, 4 + 4 * 8, 3)
    assert np.array_equal(sheet[4:8, 4:8], crop)
    assert np.array_equal(sheet[4:6, 12:16], crop[:2]) and (sheet[6:8, 12:16] == 128).all()
    for place in range(2):
        drawn = draw_image(runtime, crop[:2], Sampling(seed=3 + place))
        assert np.array_equal(sheet[4:8, 20 + 8 * place : 24 + 8 * place], drawn)
    invoke("picture", bundle, "-o", output, "-n", 3, "--keep", 0, "--temperature", 0, "--scale", 2).succeeded()
    with image.open(output) as found:
        assert found.size == (4 + 3 * 12, 4 + 12)
