"""Find the tokens that begin and end a text, by what the files of a checkpoint say, or by the tokenizer itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from xlexport.checkpoints.files import CONFIG, inside, read_json
from xlexport.errors import ExportError
from xlruntime.messages import listed, named, shown
from xlruntime.tokenizer_entry import TextToken

__all__ = ["Ends", "TokenNames", "find_ends", "sentencepiece_names", "text_ends_note", "tokenizers_names"]

GENERATION, TOKENIZER, SPECIAL = "generation_config.json", "tokenizer_config.json", "special_tokens_map.json"
TEMPLATE, VOCABULARY = "template of tokenizer.json", "vocabulary"
SOURCES = {  # of the tokens of a role; the first one counts most
    "bos": (TOKENIZER, SPECIAL, TEMPLATE, CONFIG, GENERATION, VOCABULARY),
    "eos": (TOKENIZER, SPECIAL, GENERATION, CONFIG, TEMPLATE, VOCABULARY),
}
MOST_ENDS = 32
# Classes of transformers that put the begin token before each text unless their file says otherwise.
ADDS_BEGIN = {f"{name}Tokenizer{fast}" for name in ("Llama", "CodeLlama", "Gemma") for fast in ("", "Fast")}
# Special tokens that end a text by their name, where no file says which does.
COMMON_ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>")
NONE = "none"


@dataclass(frozen=True)
class Ends:
    """The tokens that begin and end a text, as fields of the bundle's tokenizer, and notes for people."""

    begin: TextToken | None = None
    adds_begin: bool = False
    ends: tuple[TextToken, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class TokenNames:
    """The tokens of a tokenizer by name, and what it says of them itself.

    Attributes:
        ids: token id of each name; empty: tokens have no names, only numbers.
        size: number of tokens of the model.
        text: ids that stand for text or for the end of a line, whatever a file says of them.
        before, after: names of the tokens that the tokenizer's template puts before and after each text.
        begins, ends: names of tokens that the vocabulary itself marks as the begin or end of a text.
        special: ids of tokens that stand for something else than a piece of text.
    """

    ids: Mapping[str, int]
    size: int
    text: range | Sequence[int] = ()
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    begins: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()
    special: tuple[int, ...] = ()
    _names: dict[int, str] = field(default_factory=dict, init=False, repr=False, compare=False)

    def name_of(self, number: int) -> str:
        """Return the name of a token, or its number if it has none."""
        if not self._names:
            self._names.update({token: name for name, token in self.ids.items()})
        return self._names.get(number) or str(number)

    def chosen(self, text: str, option: str) -> TextToken:
        """Return the token that the user names.

        Raises:
            ExportError: there is no such token.
        """
        number = self.ids.get(text)
        if number is None and not self.ids and text.isdecimal() and len(text) < 10 and int(text) < self.size:
            number = int(text)
        if number is None:
            expected = f"one of the {len(self.ids):,} of the tokenizer" if self.ids else f"an id below {self.size:,}"
            raise ExportError(f"{option}={named(text)}: no such token, expected {expected}.", hint="Check its name.")
        return TextToken(number, text, option)


def find_ends(names: TokenNames, folders: Sequence[Path], bos: str | None = None, eos: str | None = None) -> Ends:
    """Return the tokens that begin and end a text, with where each comes from.

    Args:
        folders: of the checkpoint and of its tokenizer's file, where these are folders of Hugging Face's form.
        bos, eos: names of tokens that the user chose, or `none`; None: what the files say.

    Raises:
        ExportError: the tokenizer has no token of a chosen name.
        CheckpointError: a file is damaged, or leads out of its folder.
    """
    files, notes = _files(folders), list[str]()
    ends, begins = (_tokens(role, names, files, notes) for role in ("eos", "bos"))
    begin, tokenizer = next(iter(begins), None), files.get(TOKENIZER, {})
    adds = tokenizer.get("add_bos_token")
    if not isinstance(adds, bool):
        adds = bool(names.before) or tokenizer.get("tokenizer_class") in ADDS_BEGIN
    if adds and names.before and (added := names.ids.get(names.before[0])) is not None:
        begin = next(token for token in begins if token.id == added)  # whatever the other files call the begin
    if len(names.before) > 1:
        adds, several = False, listed(map(named, names.before))
        notes.append(f"The tokenizer puts {several} before each text, the bundle does not: give them yourself.")
    if bos is not None:
        rule = begin.id if begin is not None and adds else None
        begin = None if bos == NONE else names.chosen(bos, "--set bos")
        adds = begin is not None and begin.id == rule
    if eos is not None:
        ends = [] if eos == NONE else [names.chosen(eos, "--set eos")]
    return Ends(begin, adds and begin is not None, tuple(ends[:MOST_ENDS]), tuple(notes))


def text_ends_note(begin: TextToken | None, adds_begin: bool, ends: Sequence[TextToken]) -> str:
    """Return one line about the tokens that begin and end a text, for people."""
    first = "begin with no token of their own"
    if begin is not None:
        first = f"{'begin' if adds_begin else 'may begin'} with {_said(begin)}"
    last = f"end with {listed(map(_said, ends))}" if ends else "no token is known to end them (--set eos=NAME)"
    return f"{first}; {last}"


def tokenizers_names(fields: Mapping[str, Any], size: int) -> TokenNames:
    """Return the tokens of a tokenizer.json that `read_tokenizer_json` has checked."""
    vocabulary = fields["model"]["vocab"]
    if isinstance(vocabulary, list):  # of Unigram: text and score of each
        vocabulary = {entry[0]: number for number, entry in enumerate(vocabulary)}
    added = {token["content"]: token for token in fields.get("added_tokens") or () if type(token.get("id")) is int}
    ids = {**vocabulary, **{name: token["id"] for name, token in added.items()}}
    ids = {name: number for name, number in ids.items() if type(number) is int and 0 <= number < size}
    before, after = _template(fields.get("post_processor"))
    ends = [name for name in COMMON_ENDS if name in ids and name in added and added[name].get("special")]
    special = tuple(ids[name] for name in added if name in ids)
    return TokenNames(ids, size, before=before, after=after, ends=tuple(ends[:1]), special=special)


def sentencepiece_names(content: bytes, size: int) -> TokenNames:
    """Return the pieces of a SentencePiece model that `read_sentencepiece` has checked."""
    from sentencepiece import SentencePieceProcessor

    model = SentencePieceProcessor(model_proto=content)
    pieces = {model.id_to_piece(number): number for number in range(model.vocab_size())}
    marks = [(model.id_to_piece(number),) if number >= 0 else () for number in (model.bos_id(), model.eos_id())]
    special = [number for number in pieces.values() if model.is_control(number) or model.is_unknown(number)]
    return TokenNames(pieces, size, begins=marks[0], ends=marks[1], special=tuple(special))


def _template(processor: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of the tokens that the post-processor of a tokenizer.json puts before and after each text."""
    match processor:
        case {"type": "Sequence", "processors": list(parts)}:
            sides = [_template(part) for part in parts]
            return sum((before for before, _ in reversed(sides)), ()), sum((after for _, after in sides), ())
        case {"type": "RobertaProcessing" | "BertProcessing", "cls": [str(first), *_], "sep": [str(last), *_]}:
            return (first,), (last,)
        case {"type": "TemplateProcessing", "single": list(pieces)}:
            return _around_text(pieces)
    return (), ()


def _around_text(pieces: Iterable[Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    sides: tuple[list[str], list[str]] = ([], [])
    after = False
    for piece in pieces:
        match piece:
            case {"SpecialToken": {"id": str(name)}}:
                sides[after].append(name)
            case {"Sequence": _}:
                after = True
    return tuple(sides[0]), tuple(sides[1])


def _said(token: TextToken) -> str:
    return f"{named(token.name)} (id {token.id}, {named(token.source)})"


def _files(folders: Sequence[Path]) -> dict[str, dict[str, Any]]:
    """Return the contents of the files that say something of tokens; the first folder that has one counts."""
    found: dict[str, dict[str, Any]] = {}
    for folder in dict.fromkeys(folders):
        for name in (CONFIG, GENERATION, TOKENIZER, SPECIAL):
            if name not in found and (folder / name).exists():
                found[name] = read_json(inside(folder, name))
    return found


def _tokens(role: str, names: TokenNames, files: Mapping[str, Mapping[str, Any]], notes: list[str]) -> list[TextToken]:
    """Return the tokens of a role by the order of their sources, each once; note those that cannot be meant."""
    own = {TEMPLATE: names.before, VOCABULARY: names.begins}
    if role == "eos":
        own = {TEMPLATE: names.after[:1], VOCABULARY: names.ends}
    sources: dict[int, str] = {}
    for source in SOURCES[role]:
        if source not in own:
            numbers = list(_numbers(names, source, files.get(source, {}), role, notes))
        else:  # the tokenizer itself; what it says of ends counts if nothing else does
            numbers = [names.ids[name] for name in own[source] if name in names.ids and not (role == "eos" and sources)]
        for number in numbers:
            if number not in names.text:
                sources.setdefault(number, source)
    return [TextToken(number, names.name_of(number), source) for number, source in sources.items()]


def _numbers(names: TokenNames, file: str, content: Mapping[str, Any], role: str, notes: list[str]) -> Iterator[int]:
    """Yield the ids that a file gives to a role; tokenizers name tokens, models number them."""
    by_name = file in (TOKENIZER, SPECIAL)
    key = f"{role}_token" if by_name else f"{role}_token_id"
    value = content.get(key)
    if by_name and isinstance(value, dict):
        value = value.get("content")
    for one in value[:MOST_ENDS] if isinstance(value, list) and not by_name else [value]:
        if by_name and isinstance(one, str):
            number = names.ids.get(one)
        else:
            number = one if not by_name and type(one) is int and 0 <= one < names.size else None
        if number is not None:
            yield number
        elif one is not None and (names.ids or not by_name):
            notes.append(f"{file}: {key} is {shown(one)}, which is not a token, so the bundle leaves it out.")
