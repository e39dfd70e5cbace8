"""The tokens that begin and end a text: what files of a checkpoint, the tokenizer and the user say of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.tokenizer_kinds import sentence_pieces
from xlexport.errors import CheckpointError, ExportError
from xlexport.text_ends import Ends, TokenNames, find_ends, sentencepiece_names, text_ends_note, tokenizers_names
from xlruntime.tokenizer_entry import TextToken

NAMES = {"<unk>": 0, "<s>": 1, "</s>": 2, "<|im_end|>": 3, "a": 4}
TEMPLATE = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}]}
CLASSIFIER = {"type": "RobertaProcessing", "cls": ["<s>", 1], "sep": ["</s>", 2]}
TWICE = {**TEMPLATE, "single": [{"SpecialToken": {"id": "<s>"}}, *TEMPLATE["single"]]}


def found(folder: Path, processor: Any = None, **files: dict[str, Any]) -> Ends:
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content), "utf-8")
    fields = {"model": {"vocab": NAMES}, "post_processor": processor}
    return find_ends(tokenizers_names(fields, 5), [folder])


def test_each_file_is_read_and_named_as_the_source(tmp_path: Path) -> None:
    ends = found(tmp_path, config={"bos_token_id": 1, "eos_token_id": 2})
    assert ends == Ends(TextToken(1, "<s>", "config.json"), False, (TextToken(2, "</s>", "config.json"),))
    ends = found(tmp_path, generation_config={"eos_token_id": [2, 3]})
    assert [(token.id, token.source) for token in ends.ends] == [(n, "generation_config.json") for n in (2, 3)]
    named = {"bos_token": {"content": "a"}, "eos_token": "<|im_end|>"}
    ends = found(tmp_path, special_tokens_map=named)
    assert ends.begin == TextToken(4, "a", "special_tokens_map.json")
    assert [token.id for token in ends.ends] == [3, 2]
    (end,) = found(tmp_path, tokenizer_config={"eos_token": "</s>"}).ends[:1]
    assert end == TextToken(2, "</s>", "tokenizer_config.json")


@pytest.mark.parametrize(
    ("processor", "tokenizer_config", "adds"),
    [
        (None, {"bos_token": "<s>"}, False),
        (None, {"bos_token": "<s>", "add_bos_token": True}, True),
        (None, {"bos_token": "<s>", "tokenizer_class": "LlamaTokenizer"}, True),
        (None, {"bos_token": "<s>", "tokenizer_class": "LlamaTokenizer", "add_bos_token": False}, False),
        (None, {"add_bos_token": True}, False),
        (TEMPLATE, {}, True),
        (TEMPLATE, {"add_bos_token": False}, False),
        (TEMPLATE, {"bos_token": "a"}, True),  # the template's own is put there
        (CLASSIFIER, {}, True),
        ({"type": "Sequence", "processors": [{"type": "ByteLevel"}, TEMPLATE]}, {}, True),
        ({**TEMPLATE, "single": [{"Sequence": {"id": "A"}}, {"SpecialToken": {"id": "</s>"}}]}, {}, False),
    ],
)
def test_begin_is_put_there_by_the_tokenizers_rule(
    tmp_path: Path, processor: Any, tokenizer_config: dict[str, Any], adds: bool
) -> None:
    ends = found(tmp_path, processor, tokenizer_config=tokenizer_config)
    assert ends.adds_begin == adds
    assert not adds or (ends.begin is not None and ends.begin.name == "<s>")


def test_template_and_vocabulary_stand_in_where_no_file_speaks(tmp_path: Path) -> None:
    assert found(tmp_path, CLASSIFIER).ends == (TextToken(2, "</s>", "template of tokenizer.json"),)
    assert found(tmp_path).ends == ()
    fields = {"model": {"vocab": NAMES}, "added_tokens": [{"id": 2, "content": "</s>", "special": True}]}
    assert find_ends(tokenizers_names(fields, 5), []).ends == (TextToken(2, "</s>", "vocabulary"),)
    assert found(tmp_path, CLASSIFIER, config={"eos_token_id": 3}).ends[0].id == 3
    twice = found(tmp_path, TWICE)
    assert not twice.adds_begin
    assert twice.notes[0].startswith("The tokenizer puts <s>, <s> before each text")


def test_control_pieces_of_sentencepiece() -> None:
    for ids, expected in (({}, ("<s>", "</s>")), ({"bos_id": -1, "eos_id": -1}, (None, None))):
        ends = find_ends(sentencepiece_names(sentence_pieces(14, ["a b c d e f g"] * 20, **ids), 20), [])
        last = next(iter(ends.ends), None)
        assert (ends.begin and ends.begin.name, last and last.name) == expected


@pytest.mark.parametrize("value", [5, -1, True, 2.0, "</s>", {"id": 2}, [[2]], 10**30])
def test_values_that_are_no_token_are_left_out_and_said(tmp_path: Path, value: Any) -> None:
    ends = found(tmp_path, config={"eos_token_id": value})
    assert ends.ends == ()
    assert len(ends.notes) == 1
    assert ends.notes[0].startswith("config.json: eos_token_id is ")
    assert (
        found(tmp_path, tokenizer_config={"eos_token": "gone"}).notes[0].startswith("tokenizer_config.json: eos_token")
    )


def test_damaged_files_and_links_are_refused(tmp_path: Path) -> None:
    (folder := tmp_path / "model").mkdir()
    (folder / "generation_config.json").write_text("{", "utf-8")
    with pytest.raises(CheckpointError, match=r"generation_config\.json: not valid JSON"):
        found(folder)
    (folder / "generation_config.json").unlink()
    (tmp_path / "outside.json").write_text("{}", "utf-8")
    (folder / "generation_config.json").symlink_to(tmp_path / "outside.json")
    with pytest.raises(CheckpointError, match="leads out of the folder"):
        found(folder)


def test_ids_of_text_end_no_text(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"bos_token_id": 0, "eos_token_id": 2}', "utf-8")
    assert find_ends(TokenNames({}, 258, text=range(2, 258)), [tmp_path]).ends == ()
    line_end = TokenNames({"<eos>": 0, "the": 1, "</s>": 2}, 3, text=[2])
    assert find_ends(line_end, [tmp_path]) == Ends(TextToken(0, "<eos>", "config.json"))


def test_choices_of_the_user_come_first(tmp_path: Path) -> None:
    names = tokenizers_names({"model": {"vocab": NAMES}, "post_processor": TEMPLATE}, 5)
    ends = find_ends(names, [], bos="a", eos="<|im_end|>")
    assert ends == Ends(TextToken(4, "a", "--set bos"), False, (TextToken(3, "<|im_end|>", "--set eos"),))
    assert find_ends(names, [], bos="<s>").adds_begin
    assert find_ends(names, [], bos="none", eos="none") == Ends()
    assert find_ends(TokenNames({}, 258), [], eos="1").ends[0].id == 1
    for vocabulary, name in ((names, "b"), (names, "1"), (TokenNames({}, 258), "258")):
        with pytest.raises(ExportError, match=f"--set eos={name}: no such token, expected "):
            find_ends(vocabulary, [], eos=name)


def test_note_says_tokens_and_sources() -> None:
    begin, end = TextToken(1, "<s>", "config.json"), TextToken(2, "</s>", "vocabulary")
    assert text_ends_note(begin, True, [end]) == "begin with <s> (id 1, config.json); end with </s> (id 2, vocabulary)"
    assert text_ends_note(begin, False, []).startswith("may begin with <s> (id 1, config.json); no token is known to")
    assert text_ends_note(None, False, [end]).startswith("begin with no token of their own; end with")
