"""Vocabularies on the command line: `convert --tokenizer`, then `score` and `generate`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.invoking import Invoke

WORDS = ("<eos>", "<unk>", "the", "of", "a", "to", "is", "and", "in", "sea")
LETTERS = tuple("_abcdefghijklmnopqrstuvwxyz")


@pytest.fixture
def bundle_of(reuse_export: None, checkpoint: Path, invoke: Invoke, tmp_path: Path) -> Callable[..., tuple[Path, str]]:
    """Return `bundle_of(symbols, *options)`, which gives a bundle filled up to 256 symbols and `convert`'s messages."""

    def made(symbols: tuple[str, ...], *options: str) -> tuple[Path, str]:
        fillers = (f"<{number}>" for number in range(256 - len(symbols)))
        (tmp_path / "vocab.txt").write_text("\n".join((*symbols, *fillers)), "utf-8")
        output = tmp_path / "words.bundle"
        arguments = ("convert", checkpoint, "-o", output, "--tokenizer", tmp_path / "vocab.txt", "--segments", "2")
        return output, invoke(*arguments, *options).succeeded().err

    return made


BundleOf = Callable[..., tuple[Path, str]]


@pytest.mark.full
def test_words(bundle_of: BundleOf, invoke: Invoke, tmp_path: Path) -> None:
    bundle, said = bundle_of(WORDS)
    assert "Vocabulary of 256 words, between white space, in text that is tokenized already, <eos> after" in said
    (tmp_path / "it.txt").write_text("the deep sea\nof the sea\n", "utf-8")
    shown = invoke("score", bundle, tmp_path / "it.txt", "--json").succeeded()
    found = shown.object
    assert (found["tokens"], found["unknown_tokens"], found["dropped_bytes"]) == (8, 1, 0)
    assert found["bits_per_byte"] == pytest.approx(found["bits"] / (24 - len("the")))
    assert (
        f"{tmp_path / 'it.txt'}: 1 of 8 tokens replace text that the vocabulary lacks, so the bits do not encode"
        in shown.err
    )
    per_token = invoke("score", bundle, tmp_path / "it.txt", "--per", "token").succeeded()
    assert [entry["token"] for entry in per_token.objects] == ["<unk>", "sea", "\n", "of", "the", "sea", "\n"]
    assert "vocabulary lacks" in per_token.err


@pytest.mark.release
def test_style_is_passed_on(bundle_of: BundleOf) -> None:
    assert "Vocabulary of 256 words, lower-cased, between" in bundle_of(WORDS, "--set=vocab_style=ptb")[1]


@pytest.mark.full
def test_text_without_a_symbol_is_reported_once_for_each_document(
    bundle_of: BundleOf, invoke: Invoke, tmp_path: Path
) -> None:
    bundle, said = bundle_of(LETTERS, "--set=vocab_style=text8")
    assert "_ for a space, newlines left out, refuses what is unknown." in said
    for name, content in (("a", "To be\r\nor not\n"), ("b", "one line")):
        (tmp_path / name).write_bytes(content.encode())
    shown = invoke("score", bundle, tmp_path / "a", tmp_path / "b", "--json").succeeded()
    first, second = shown.objects
    assert (first["bytes"], first["dropped_bytes"], second["dropped_bytes"]) == (14, 3, 0)
    assert first["bits_per_byte"] == first["bits_per_token"]
    assert shown.err.count("have no symbol in the vocabulary") == 1
    assert f"{tmp_path / 'a'}: 3 bytes have no symbol in the vocabulary (newlines), so they were left out" in shown.err
    (tmp_path / "c").write_text("fine\nbut, alas", "utf-8")
    refused = invoke("score", bundle, tmp_path / "c")
    assert f"{tmp_path / 'c'}: ',' in line 2 not in the vocabulary of 256 characters" in refused.error


@pytest.mark.release
def test_newlines_that_are_read_as_spaces_are_reported(bundle_of: BundleOf, invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "it.txt").write_text("the sea\nof the sea\n", "utf-8")
    said = "The tokenizer reads newlines as spaces"
    for symbols, told in ((WORDS, False), (WORDS[1:], True)):
        bundle, _ = bundle_of(symbols, "--force")
        assert (said in invoke("score", bundle, tmp_path / "it.txt").succeeded().err) == told


@pytest.mark.full
def test_generated_words_go_on_with_the_prompt(bundle_of: BundleOf, invoke: Invoke) -> None:
    bundle, _ = bundle_of(WORDS)
    options = ("--max-tokens", "3", "--seed", "1")
    found = invoke("generate", bundle, "the sea", *options, "--json").succeeded().object
    assert len(found["ids"]) == 3
    assert found["text"][0] in " \n"  # or it would run into the prompt's last word
    shown = invoke("generate", bundle, "the sea", *options).succeeded()
    assert shown.out == f"the sea{found['text']}\n"
