"""The tokenizer that a bundle gets, its fit to the model, and the text that verifies the bundle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.helpers.tokenizer_kinds import sentence_pieces
from xlexport.checkpoints.source import SourceCheckpoint
from xlexport.commands import execute
from xlexport.conversion import convert
from xlexport.conversion_options import ConversionOptions
from xlexport.errors import CheckpointError, ExportError
from xlexport.tokenizer_choice import choose_tokenizer, tokenizer_library
from xlexport.verification.text import verify_ids
from xlruntime import load as load_bundle
from xlruntime.bundle import FileDigest, TextToken, TokenizerEntry
from xlruntime.bundle_files import read_bundle
from xlruntime.tokenizers.vocabulary import Vocabulary
from xlruntime.tokenizers.vocabulary_tokenizer import VocabularyTokenizer

if TYPE_CHECKING:
    from tests.helpers.bundles import Converted

LETTERS = tuple("_abcdefghijklmnopqrstuvwxyz")
COMMON = ("<eos>", "<unk>", "the", "of", "a", "to", "is", "and", "in", "an")  # in any English text


def words(n: int, *first: str) -> tuple[str, ...]:
    return (*first, *(f"word{number}" for number in range(n - len(first))))


def source_of(n_token: int, tokenizer: str | Vocabulary | None) -> SourceCheckpoint:
    return SourceCheckpoint("transformer_xl", "mine", {"n_token": n_token}, tokenizer, {}, lambda: None)


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str], str]:
    def written(name: str, content: str) -> str:
        (tmp_path / name).write_text(content, "utf-8")
        return str(tmp_path / name)

    return written


Write = Callable[[str, str], str]


def test_checkpoint_that_says_bytes() -> None:
    for chosen in (None, "bytes"):
        assert choose_tokenizer(source_of(256, "bytes"), chosen).spec == TokenizerEntry("bytes")
        with pytest.raises(
            ExportError, match=r"1,000 tokens, a byte tokenizer needs 256\. Give --tokenizer with a voc"
        ) as caught:
            choose_tokenizer(source_of(1000, "bytes"), chosen)
        assert "--tokenizer bytes" not in str(caught.value)
        with pytest.raises(ExportError, match="--set vocab_style=ptb is for vocabularies, but the tokenizer is bytes"):
            choose_tokenizer(source_of(256, "bytes"), chosen, "ptb")


def test_checkpoint_with_its_own_vocabulary() -> None:
    vocabulary = Vocabulary("words", words(20, "<eos>"), line_end="<eos>")
    choice = choose_tokenizer(source_of(20, vocabulary))
    assert choice.spec == TokenizerEntry("vocabulary", "vocabulary.json")
    assert Vocabulary.from_json((choice.content or b"").decode(), "it") == vocabulary
    (note,) = choice.notes
    assert note.startswith("Vocabulary of 20 words")
    restyled = choose_tokenizer(source_of(20, vocabulary), vocab_style="ptb")
    assert Vocabulary.from_json((restyled.content or b"").decode(), "it") == replace(vocabulary, lower_case=True)
    assert choose_tokenizer(source_of(20, vocabulary), "none").spec == TokenizerEntry("none")


def test_file_in_the_folder_of_the_checkpoint_is_named(tmp_path: Path) -> None:
    """Check that a checkpoint that does not say its tokenizer names the files next to it: vocabularies first."""
    digest = FileDigest("0" * 64, 1)
    source = replace(source_of(267_735, None), files={tmp_path / "model.pt": digest})
    for name in ("tokenizer.json", "cache.pt"):
        (tmp_path / name).touch()
        with pytest.raises(ExportError) as caught:
            choose_tokenizer(source)
        assert str(caught.value).startswith(
            f"{tmp_path / 'model.pt'}: does not say what its 267,735 tokens are. "
            f"Give --tokenizer {tmp_path / name}, which is in its folder, or --tokenizer with a vocab.txt, "
        )


@pytest.mark.parametrize(
    ("files", "chosen", "library"),
    [
        (["tokenizer.json"], None, ["tokenizers"]),
        (["spiece.model", "tokenizer.json"], None, ["sentencepiece"]),
        (["vocab.txt", "tokenizer.json"], None, []),
        (["vocab.txt", "tokenizer.json"], "tokenizer.json", ["tokenizers"]),
        (["tokenizer.json"], "bytes", []),
        (["tokenizer.json"], "none", []),
        ([], "absent.json", []),
        ([], None, []),
    ],
)
def test_library_of_a_tokenizer_is_known_before_the_checkpoint_is_read(
    files: list[str], chosen: str | None, library: list[str], tmp_path: Path, write: Write
) -> None:
    for name in files:
        write(name, "{}" if name.endswith(".json") else "a\n")
    given = str(tmp_path / chosen) if chosen not in (None, "bytes", "none") else chosen
    assert tokenizer_library(tmp_path, given) == library


def test_missing_library_is_named_with_the_other_packages(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Check that one try is enough to learn everything that must be installed."""
    monkeypatch.setattr("xlexport.extras.is_installed", lambda name: name not in ("onnxscript", "tokenizers"))
    write("tokenizer.json", "{}")
    assert execute(["convert", str(tmp_path), "-o", str(tmp_path / "bundle")]) == 1
    assert capsys.readouterr().err == (
        "Error: onnxscript, tokenizers not installed, needed here. Install them: pip install onnxscript tokenizers.\n"
    )


def test_checkpoint_that_does_not_say_lists_the_choices() -> None:
    with pytest.raises(
        ExportError, match=r"^the checkpoint: does not say what its 267,735 tokens.*vocab\.txt.*none for"
    ):
        choose_tokenizer(source_of(267_735, None))
    with pytest.raises(ExportError, match=r"256 tokens are.*--tokenizer bytes, or --tokenizer none"):
        choose_tokenizer(source_of(256, None))
    assert choose_tokenizer(source_of(256, None), "bytes").spec == TokenizerEntry("bytes")


@pytest.mark.parametrize("size", [19, 21])
def test_vocabulary_of_another_size_is_refused(size: int, write: Write) -> None:
    path = write("vocab.txt", "\n".join(words(size)))
    with pytest.raises(
        ExportError, match=rf"vocab\.txt: {size} symbols, but the model has 20 tokens\. Give the model's"
    ):
        choose_tokenizer(source_of(20, None), path)
    with pytest.raises(ExportError, match=f"the vocabulary in the checkpoint: {size} symbols"):
        choose_tokenizer(source_of(20, Vocabulary("words", words(size))))


def test_kind_of_tokenizer_follows_from_the_content_of_the_file(write: Write, tmp_path: Path) -> None:
    vocabulary = Vocabulary("words", words(20), lower_case=True)
    for name in ("vocabulary.json", "odd name"):
        choice = choose_tokenizer(source_of(20, None), write(name, vocabulary.to_json()))
        assert Vocabulary.from_json((choice.content or b"").decode(), "it") == vocabulary
    choice = choose_tokenizer(source_of(20, None), write("vocab.txt", "\n".join(words(20))), "ptb")
    assert Vocabulary.from_json((choice.content or b"").decode(), "it") == vocabulary
    with pytest.raises(CheckpointError, match="style 'morse' is unknown"):
        choose_tokenizer(source_of(20, None), str(tmp_path / "vocab.txt"), "morse")


def test_sentencepiece_model(tmp_path: Path) -> None:
    pytest.importorskip("sentencepiece")
    path = tmp_path / "any name"
    path.write_bytes(sentence_pieces(15, ["the cat sat on the mat"] * 5))
    choice = choose_tokenizer(source_of(15, None), str(path))
    marks = [TextToken(number, name, "vocabulary") for number, name in ((1, "<s>"), (2, "</s>"))]
    rules: dict[str, Any] = {"settled": "words", "begin": marks[0], "ends": (marks[1],)}
    expected = TokenizerEntry("sentencepiece", "tokenizer.model", size=15, **rules)
    assert choice.spec == expected
    assert choice.content == path.read_bytes()
    said = ("Texts may begin with <s> (id 1, vocabulary); end with </s> (id 2, vocabulary).",)
    assert choice.notes == said
    notes = choose_tokenizer(source_of(16, None), str(path)).notes
    assert notes == ("The tokenizer has 15 of the model's 16 tokens.", *said)
    with pytest.raises(ExportError, match=r"any name: 15 tokens, but the model has 14\. Give the model's own"):
        choose_tokenizer(source_of(14, None), str(path))
    with pytest.raises(ExportError, match="of the sentencepiece library, but --set vocab_style is for vocabularies"):
        choose_tokenizer(source_of(15, None), str(path), "ptb")


def test_path_that_is_not_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"absent: no such tokenizer file\. Give --tokenizer with"):
        choose_tokenizer(source_of(20, None), str(tmp_path / "absent"))
    with pytest.raises(ExportError, match="a folder, not a tokenizer file"):
        choose_tokenizer(source_of(20, None), str(tmp_path))


@pytest.mark.full
def test_vocabulary_becomes_part_of_the_bundle(
    reuse_export: None, bytes_bundle: Converted, write: Write, tmp_path: Path
) -> None:
    path = write("vocab.txt", "\n".join(words(256, *COMMON)))
    told: list[str] = []
    options = ConversionOptions(tokenizer=path, segments=3)
    convert(replace(bytes_bundle.source, tokenizer=None), tmp_path / "bundle", options, tell=told.append)
    Path(path).unlink()
    assert any(line.startswith("Vocabulary of 256 words") for line in told)
    manifest = read_bundle(tmp_path / "bundle")
    assert manifest.tokenizer == TokenizerEntry("vocabulary", "vocabulary.json")
    assert manifest.provenance["verified_on"].startswith("the topics of Python ")
    model = load_bundle(tmp_path / "bundle", threads=1)
    assert model.stream().feed("the word7\nTHE\n").tokens.tolist() == [17, 0, 1, 0]


def bundle_of(vocabulary: Vocabulary) -> Any:
    """Return the part of a manifest that `verify_ids` reads."""

    class Manifest:
        tokenizer = TokenizerEntry("vocabulary", "vocabulary.json")
        vocab_size = len(vocabulary)

    return Manifest()


@pytest.mark.parametrize(
    "vocabulary",
    [
        Vocabulary("words", words(500, *COMMON), unk="<unk>", line_end="<eos>"),
        Vocabulary("characters", LETTERS, space="_", lower_case=True),
        Vocabulary("bytes", tuple(str(byte) for byte in range(90, 123))),
    ],
    ids=lambda vocabulary: vocabulary.kind,
)
@pytest.mark.full
def test_real_text_verifies_as_far_as_the_vocabulary_has_it(vocabulary: Vocabulary) -> None:
    tokenizer = VocabularyTokenizer(vocabulary)
    ids = verify_ids(bundle_of(vocabulary), tokenizer, None)
    assert len(ids) > 5_000
    text = tokenizer.decode(ids)
    assert text.count("the") > 500
    if vocabulary.unk is not None:
        assert vocabulary.id_of(vocabulary.unk) not in ids


@pytest.mark.parametrize("line_end", [None, "<eos>"])
def test_random_ids_verify_a_vocabulary_that_lacks_the_words_of_the_text(line_end: str | None) -> None:
    symbols = ("<eos>", *(f"λόγος{number}" for number in range(99)))
    vocabulary = Vocabulary("words", symbols, line_end=line_end)
    ids = verify_ids(bundle_of(vocabulary), VocabularyTokenizer(vocabulary), None)
    assert set(ids.tolist()) == set(range(100))


def test_text_to_verify_on_is_read_as_documents_are(write: Write) -> None:
    vocabulary = Vocabulary("words", COMMON, unk="<unk>", line_end="<eos>")
    ids = verify_ids(bundle_of(vocabulary), VocabularyTokenizer(vocabulary), Path(write("it.txt", "the sea\nof")))
    assert ids.tolist() == [2, 1, 0, 3, 0]
