"""Bad input gives one line with problem, place and hint, and exit status 1; nothing is written or run."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.helpers.invoking import Invoke
from tests.helpers.manifests import edit_manifest
from xlruntime.bundle import FORMAT
from xlruntime.bundle_files import digest_file

PROSE = b"It was the best of times, it was the worst of times.\n"


# Checkpoints.


class Payload:
    """An object whose unpickling creates a folder."""

    def __init__(self, witness: Path) -> None:
        self.witness = witness

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return os.mkdir, (str(self.witness),)


def missing(path: Path) -> None:
    pass


def a_folder(path: Path) -> None:
    path.mkdir()


def empty(path: Path) -> None:
    path.touch()


def text(path: Path) -> None:
    path.write_bytes(PROSE)


def hostile(path: Path) -> None:
    torch.save({"format": "xltraining", "model": Payload(path.parent / "it ran")}, path)


def hostile_pickle(path: Path) -> None:
    path.write_bytes(pickle.dumps(Payload(path.parent / "it ran")))


def of_another_kind(path: Path) -> None:
    torch.save({"epoch": 3, "model": {"weight": torch.zeros(2)}}, path)


CHECKPOINTS = [
    (missing, "no such file or folder. Check the path."),
    (a_folder, "a folder without a checkpoint. Give a checkpoint of a known format"),
    (empty, "the file is empty. Copy or save the checkpoint again."),
    (text, "not a PyTorch checkpoint. Give a checkpoint of a known format"),
    (hostile, "holds Python objects that could run code"),
    (hostile_pickle, "holds Python objects that could run code"),
    (of_another_kind, "no Transformer-XL or Reformer weights in it (tensors: model.weight). Give a checkpoint"),
]


@pytest.mark.parametrize("command", ["convert", "verify", "bench"])
@pytest.mark.parametrize(("make", "what"), CHECKPOINTS)
def test_checkpoint_that_is_none(
    make: Callable[[Path], None], what: str, command: str, bundle: Path, refuse: Callable[..., str], tmp_path: Path
) -> None:
    path = tmp_path / "model.pt"
    make(path)
    arguments = {
        "convert": ("convert", path),
        "verify": ("verify", bundle, path),
        "bench": ("bench", bundle, "--against", path),
    }
    assert f"{path}: {what}" in refuse(*arguments[command])
    assert not (tmp_path / "it ran").exists()


def test_truncated_checkpoint(checkpoint: Path, refuse: Callable[..., str], tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    whole = checkpoint.read_bytes()
    for length in (len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        assert "cut off or damaged" in refuse("convert", path)


# The output path of a bundle.


def test_output_that_is_taken(
    checkpoint: Path, own_bundle: Path, prose: Path, refuse: Callable[..., str], tmp_path: Path
) -> None:
    assert "Add --force to replace it" in refuse("convert", checkpoint, "-o", own_bundle)
    for force in ((), ("--force",)):
        for taken in (prose, tmp_path):
            error = refuse("convert", checkpoint, "-o", taken, *force)
            assert "is not a bundle, so it is never replaced. Give another path." in error
    assert "no such folder to write" in refuse("convert", checkpoint, "-o", tmp_path / "absent" / "bundle")


# Bundles.


def flip_a_byte(folder: Path) -> None:
    with (folder / "weights.data").open("r+b") as file:
        file.seek(1000)
        byte = file.read(1)[0]
        file.seek(1000)
        file.write(bytes([byte ^ 1]))


def cut_a_file(folder: Path) -> None:
    os.truncate(folder / "score.onnx", 1000)


def remove_a_file(folder: Path) -> None:
    (folder / "weights.data").unlink()


def remove_the_manifest(folder: Path) -> None:
    (folder / "bundle.json").unlink()


def change_manifest(folder: Path, **changes: Any) -> None:
    """Change the manifest, and its digest."""
    edit_manifest(folder, lambda manifest: manifest.update(changes))


def make_it_newer(folder: Path) -> None:
    change_manifest(folder, format=FORMAT + 1)


def make_it_older(folder: Path) -> None:
    edit_manifest(folder, lambda manifest: manifest.update(format_version=manifest.pop("format") - 1))


def lose_a_field(folder: Path) -> None:
    change_manifest(folder, document={})


def scribble(folder: Path) -> None:
    (folder / "bundle.json").write_text("{")
    (folder / "bundle.json.sha256").unlink()


def leave_the_folder(folder: Path) -> None:
    change_manifest(folder, files={"../outside": {"sha256": "0" * 64, "size": 0}})


def change_a_graph(folder: Path) -> None:
    """Write a model that has a version and no graph, with a digest to match: only ONNX Runtime can notice."""
    (folder / "score.onnx").write_bytes(b"\x08\x08")
    digest = digest_file(folder / "score.onnx")
    files = json.loads((folder / "bundle.json").read_text())["files"]
    change_manifest(folder, files={**files, "score.onnx": {"sha256": digest.sha256, "size": digest.size}})


SPOILED = [
    (flip_a_byte, "weights.data was changed", "Copy it again, or convert the checkpoint again."),
    (cut_a_file, "score.onnx has 1000 bytes, expected", "Copy it again, or convert the checkpoint again."),
    (remove_a_file, "weights.data is missing", "Copy it again, or convert the checkpoint again."),
    (remove_the_manifest, "no bundle.json in it, so not a bundle", "with `xlexport convert CHECKPOINT`."),
    (make_it_newer, f"is of format {FORMAT + 1}, this xlruntime reads {FORMAT}", "Convert the checkpoint again: xl"),
    (make_it_older, f"is of format {FORMAT - 1}, this xlruntime reads {FORMAT}", "Convert the checkpoint again: xl"),
    (lose_a_field, "document.segment_len is missing", "Convert the checkpoint again: xl"),
    (scribble, "not valid JSON", "Convert the checkpoint again: xl"),
    (leave_the_folder, "file names must stay inside the bundle", ""),
]
USES = {
    "score": lambda bundle, prose, checkpoint: ("score", bundle, prose),
    "generate": lambda bundle, prose, checkpoint: ("generate", bundle, "It was"),
    "verify": lambda bundle, prose, checkpoint: ("verify", bundle, checkpoint),
    "inspect": lambda bundle, prose, checkpoint: ("inspect", bundle),
    "bench": lambda bundle, prose, checkpoint: ("bench", bundle),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize(("spoil", "what", "hint"), SPOILED)
def test_bundle_that_is_spoiled(
    spoil: Callable[[Path], None],
    what: str,
    hint: str,
    use: str,
    own_bundle: Path,
    prose: Path,
    checkpoint: Path,
    refuse: Callable[..., str],
) -> None:
    spoil(own_bundle)
    error = refuse(*USES[use](own_bundle, prose, checkpoint))
    assert str(own_bundle) in error
    assert what in error
    assert hint in error


def test_graph_that_onnxruntime_cannot_load(own_bundle: Path, prose: Path, refuse: Callable[..., str]) -> None:
    change_a_graph(own_bundle)
    error = refuse("score", own_bundle, prose)
    assert "score.onnx: ONNX Runtime" in error
    assert "convert the checkpoint again" in error


@pytest.mark.parametrize("use", sorted(USES.keys() - {"inspect"}))  # `inspect` also reads checkpoints
def test_bundle_that_is_none(
    use: str, prose: Path, checkpoint: Path, refuse: Callable[..., str], tmp_path: Path
) -> None:
    for path, what in ((tmp_path / "absent", "no such folder"), (prose, "a file, expected a bundle folder")):
        error = refuse(*USES[use](path, prose, checkpoint))
        assert f"{path}: {what}. Make a bundle with `xlexport convert CHECKPOINT`." in error


# Documents.


def test_documents_that_are_missing_leave_the_others(
    bundle: Path, prose: Path, invoke: Callable[..., Any], tmp_path: Path
) -> None:
    shown = invoke("score", bundle, tmp_path / "absent", prose, tmp_path / "too", "--set=same_length=true")
    assert shown.code == 1
    assert shown.out.startswith(f"{prose}: 79 tokens, ") and len(shown.out.splitlines()) == 1
    first, second, total, failed = shown.err.splitlines()
    assert first == f"Error: {tmp_path / 'absent'}: No such file or directory. Check the path."
    assert second.startswith(f"Error: {tmp_path / 'too'}: No such file")
    assert total.startswith("1 document, 79 tokens: ")
    assert failed == "2 of 3 documents could not be scored"


@pytest.mark.parametrize("content", [b"", b"a"])
@pytest.mark.parametrize("command", [("score",), ("score", "--json"), ("score", "--per", "token")], ids=" ".join)
def test_document_too_short_to_score(
    content: bytes, command: tuple[str, ...], bundle: Path, refuse: Callable[..., str], tmp_path: Path
) -> None:
    path = tmp_path / "short.txt"
    path.write_bytes(content)
    for given, stdin in ((path, b""), ("-", content)):
        error = refuse(*command, bundle, given, stdin=stdin)
        name = "standard input" if given == "-" else path
        assert f"{name}: {len(content)} of at least 2 tokens, so nothing to score. Give a longer text." in error


def test_token_ids_outside_the_vocabulary(bundle: Path, refuse: Callable[..., str], tmp_path: Path) -> None:
    path = tmp_path / "ids.txt"
    for wrong in ("256", "-1", "99999999999"):
        path.write_text(f"1 2 3 {wrong} 4")
        error = refuse("score", bundle, path, "--ids")
        assert f"{path}: token 3 has id {wrong}, expected 0 to 255" in error
        assert "Tokenize it with the model's own vocabulary." in error


@pytest.mark.parametrize("content", ["1 2 three", "1.5 2", "1 2 " + "9" * 30])
def test_ids_that_are_no_numbers(content: str, bundle: Path, refuse: Callable[..., str], tmp_path: Path) -> None:
    path = tmp_path / "ids.txt"
    path.write_text(content)
    error = refuse("score", bundle, path, "--ids")
    assert f"{path}: not token ids separated by white space" in error
    assert "Leave out --ids for text." in error


@pytest.fixture
def words_bundle(reuse_export: None, checkpoint: Path, invoke: Invoke, tmp_path: Path) -> Path:
    """Return a bundle whose tokenizer needs text."""
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[UNK]": 0, "the": 1}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    folder = tmp_path / "words.bundle"
    invoke(
        *("convert", checkpoint, "-o", folder, "--tokenizer", tmp_path / "tokenizer.json", "--segments", "2")
    ).succeeded()
    return folder


def test_text_that_is_not_utf_8(
    words_bundle: Path, prose: Path, invoke: Invoke, refuse: Callable[..., str], tmp_path: Path
) -> None:
    invoke("score", words_bundle, prose).succeeded()
    path = tmp_path / "latin.txt"
    path.write_bytes("déjà vu".encode("latin-1"))
    error = refuse("score", words_bundle, path)
    assert f"{path}: not UTF-8 at byte 1 (0xe9)" in error
    assert "iconv -f latin1 -t utf-8" in error
    assert "not UTF-8 at byte 1" in refuse("score", words_bundle, "-", stdin=path.read_bytes())
    assert "not UTF-8 at byte 1" in refuse("generate", words_bundle, "--file", path)


def test_text_for_a_bundle_without_tokenizer(
    reuse_export: None, checkpoint: Path, prose: Path, invoke: Invoke, refuse: Callable[..., str], tmp_path: Path
) -> None:
    folder = tmp_path / "ids.bundle"
    invoke("convert", checkpoint, "-o", folder, "--tokenizer", "none", "--segments", "2").succeeded()
    for arguments in (("score", folder, prose), ("generate", folder, "It was")):
        assert "takes token ids, not text. Give ids, or convert the checkpoint with --tokenizer." in refuse(*arguments)
    assert "Leave out --text" in refuse("verify", folder, checkpoint, "--text", prose)
