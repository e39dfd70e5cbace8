#include "vocabulary_tokenizer.h"

#include <algorithm>
#include <array>
#include <utility>

#include "../errors.h"
#include "../unicode.h"
#include "held_text.h"

namespace xlruntime {

namespace {

constexpr std::int64_t kDropped = -1, kUnknown = -2;
constexpr const char* kHint = "Prepare the text as the training text was, or replace them.";

// The place after the last white space of a text, or 0.
std::size_t after_last_space(std::string_view text) {
  for (std::size_t place = text.size(); place > 0;) {
    std::size_t begin = place - 1;
    while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xc0) == 0x80) --begin;
    if (is_space(code_point(text, begin))) return place;
    place = begin;
  }
  return 0;
}

// Words or characters.
class TextTokenizer : public VocabularyTokenizer {
 public:
  explicit TextTokenizer(Vocabulary vocabulary)
      : VocabularyTokenizer(std::move(vocabulary)),
        words_(vocabulary_.kind == VocabularyKind::words),
        splits_line_ends_(!words_ && vocabulary_.id_of("\r").has_value()),
        has_mark_(vocabulary_.id_of(kByteOrderMark).has_value()),
        space_(vocabulary_.id_of_role(vocabulary_.space)) {}

  bool skips_mark() const override { return true; }

  std::size_t settled(std::string_view text) const override {
    if (!text.empty() && text.back() == '\r') text.remove_suffix(1);  // a newline may follow
    return words_ ? after_last_space(text) : text.size();
  }

  TokenPart encode(std::string_view text, TextPlace& at, bool ends) const override {
    TokenPart part;
    std::size_t place = 0;
    if (at.is_first && !has_mark_ && text.substr(0, kByteOrderMark.size()) == kByteOrderMark) {
      place = kByteOrderMark.size();
      if (!words_) drop(kByteOrderMark, part);
    }
    std::int64_t chars = place > 0 ? 1 : 0;
    at.line_open = at.line_open || place < text.size();
    while (place < text.size()) {
      const std::size_t before = place;
      const std::string_view unit = next_unit(text, place);
      if (unit.empty()) break;
      const auto begin = static_cast<std::size_t>(unit.data() - text.data());
      std::int64_t start = chars + characters(text.substr(before, begin - before));
      const std::int64_t end = start + characters(unit);
      chars = end;
      const bool is_newline = newline_length(unit, 0, true) == unit.size() && !vocabulary_.id_of(unit);
      if (!at.line_begun && line_start_) part.add(*line_start_, start, start);
      at.line_begun = !is_newline;
      if (is_newline && newline_) {
        part.add(*newline_, start, end);
      } else if (is_newline) {
        if (!words_) drop(unit, part);
      } else {
        add(unit, start, end, at, part);
      }
      if (!is_newline) continue;
      ++at.line;
      at.line_open = place < text.size();
    }
    if (ends) end_line(characters(text), at, part);
    count_first(text, at, part);
    return part;
  }

 private:
  std::string joined(const std::vector<std::int64_t>& ids) const override {
    return words_ ? joined_words(ids) : VocabularyTokenizer::joined(ids);
  }

  // Words joined by spaces. A symbol that both starts and ends lines starts one if no line has begun.
  std::string joined_words(const std::vector<std::int64_t>& ids) const {
    std::string text;
    bool begun = false;
    for (const std::int64_t id : ids) {
      const std::string& symbol = vocabulary_.symbols[static_cast<std::size_t>(id)];
      if (symbol == vocabulary_.line_start && !begun) {
        begun = true;
      } else if (symbol == vocabulary_.line_end) {
        text += '\n';
        begun = false;
      } else {
        if (!text.empty() && text.back() != '\n') text += ' ';
        text += symbol;
        begun = true;
      }
    }
    return text;
  }

  // The next word, character or line end from `place` on, which moves behind it; empty if there is none.
  std::string_view next_unit(std::string_view text, std::size_t& place) const {
    while (place < text.size()) {
      const std::size_t begin = place, newline = newline_length(text, begin, words_ || !splits_line_ends_);
      if (!words_ || newline > 0) {
        place += std::max(newline, character_length(text, begin));
        return text.substr(begin, place - begin);
      }
      while (place < text.size() && !is_space(code_point(text, place))) place += character_length(text, place);
      if (place > begin) return text.substr(begin, place - begin);
      place += character_length(text, place);  // white space between words
    }
    return {};
  }

  // Add the tokens of a word or a character.
  void add(std::string_view unit, std::int64_t start, std::int64_t end, const TextPlace& at, TokenPart& part) const {
    std::string lowered;
    if (vocabulary_.lower_case) {
      lowered = lower(unit);
      unit = lowered;
    }
    for (std::size_t place = 0; place < unit.size();) {
      const std::string_view symbol = words_ ? unit : unit.substr(place, character_length(unit, place));
      place += symbol.size();
      auto number = vocabulary_.id_of(symbol);
      if (!number && symbol == " ") number = space_;
      if (!number) number = unk_;
      if (!number) throw unknown(symbol, at);
      part.add(*number, start, end);
      start = end;  // lower-casing may turn one character into two
    }
  }

  static void drop(std::string_view text, TokenPart& part) {
    part.dropped_chars += characters(text);
    part.dropped_bytes += static_cast<std::int64_t>(text.size());
  }

  // Text before the first word has no token of its own, so the word covers it.
  void count_first(std::string_view text, const TextPlace& at, TokenPart& part) const {
    if (part.ids.empty()) return;
    const std::size_t begin = words_ ? 0 : first_characters(text, static_cast<std::size_t>(part.starts[0])).size();
    const std::size_t end = first_characters(text, static_cast<std::size_t>(part.ends[0])).size();
    const std::string_view covered = text.substr(begin, end - begin);
    part.first_bytes = static_cast<std::int64_t>(covered.size()) + (words_ ? at.bytes : 0);
    part.first_chars = characters(covered) + (words_ ? at.chars : 0);
  }

  bool words_;
  bool splits_line_ends_;  // whether a carriage return is a symbol, and so \r\n are two
  bool has_mark_;          // whether a byte-order mark is a symbol
  std::optional<std::int64_t> space_;
};

// Bytes.
class NumberTokenizer : public VocabularyTokenizer {
 public:
  explicit NumberTokenizer(Vocabulary vocabulary) : VocabularyTokenizer(std::move(vocabulary)) {
    for (std::size_t byte = 0; byte < table_.size(); ++byte) {
      table_[byte] = vocabulary_.id_of(std::to_string(byte)).value_or(unk_.value_or(kUnknown));
    }
    if (!has_newline_) table_['\n'] = line_end_.value_or(kDropped);
  }

  bool needs_utf8() const override { return false; }

  TokenPart encode(std::string_view text, TextPlace& at, bool ends) const override {
    TokenPart part;
    for (std::size_t i = 0; i < text.size(); ++i) {
      const std::int64_t number = table_[static_cast<unsigned char>(text[i])];
      const auto start = static_cast<std::int64_t>(i);
      if (number == kUnknown) {
        throw Error(XLR_ERROR_TOKEN,
                    at.name + ": the byte " + std::to_string(static_cast<unsigned char>(text[i])) + " at " +
                        std::to_string(at.bytes + start) +
                        " is not in the vocabulary of bytes, which has no token for unknown ones.",
                    kHint);
      }
      if (number != kDropped) part.add(number, start, start + 1);
    }
    const auto size = static_cast<std::int64_t>(text.size()), kept = static_cast<std::int64_t>(part.ids.size());
    part.dropped_bytes = part.dropped_chars = size - kept;  // newlines, so characters too
    if (kept > 0) {
      const auto first = static_cast<unsigned char>(text[static_cast<std::size_t>(part.starts[0])]);
      part.first_bytes = 1;
      part.first_chars = (first & 0xc0) != 0x80 ? 1 : 0;
    }
    if (!text.empty()) at.line_open = text.back() != '\n';
    if (ends && at.line_open && line_end_) part.add(*line_end_, size, size);
    return part;
  }

 private:
  std::string text_of(std::size_t id) const override {
    const std::string& symbol = vocabulary_.symbols[id];
    if (!is_byte_symbol(symbol)) return symbol;
    return std::string(1, static_cast<char>(static_cast<unsigned char>(std::stoi(symbol))));
  }

  std::array<std::int64_t, 256> table_;  // token of each byte
};

}  // namespace

VocabularyTokenizer::VocabularyTokenizer(Vocabulary vocabulary)
    : vocabulary_(std::move(vocabulary)),
      unk_(vocabulary_.id_of_role(vocabulary_.unk)),
      line_start_(vocabulary_.id_of_role(vocabulary_.line_start)) {
  static constexpr const char* kNewlines[] = {nullptr, "\n", "10", "0a", "\n"};  // by kind
  const char* const symbol = kNewlines[static_cast<std::size_t>(vocabulary_.kind)];
  newline_ = symbol == nullptr ? std::nullopt : vocabulary_.id_of(symbol);
  has_newline_ = newline_.has_value();
  if (!has_newline_) newline_ = line_end_ = vocabulary_.id_of_role(vocabulary_.line_end);
}

std::string VocabularyTokenizer::decode(const std::vector<std::int64_t>& ids) const {
  check_ids(ids.data(), ids.size(), static_cast<std::int64_t>(vocabulary_.size()), "the tokens");
  const std::string text = joined(ids);
  return needs_utf8() && vocabulary_.kind != VocabularyKind::trie ? text : replace_wrong_bytes(text);
}

std::string VocabularyTokenizer::joined(const std::vector<std::int64_t>& ids) const {
  std::string text;
  for (const std::int64_t id : ids) {
    const auto place = static_cast<std::size_t>(id);
    const std::string& symbol = vocabulary_.symbols[place];
    text += symbol == vocabulary_.line_end ? "\n" : symbol == vocabulary_.space ? " " : text_of(place);
  }
  return text;
}

void VocabularyTokenizer::end_line(std::int64_t chars, TextPlace& place, TokenPart& part) const {
  if (!place.line_open) return;
  if (!place.line_begun && line_start_) part.add(*line_start_, chars, chars);
  if (line_end_) part.add(*line_end_, chars, chars);
  place.line_open = false;
}

Error VocabularyTokenizer::unknown(std::string_view symbol, const TextPlace& place) const {
  return Error(XLR_ERROR_TOKEN,
               place.name + ": " + shown(symbol) + " in line " + std::to_string(place.line) +
                   " is not in the vocabulary of " + vocabulary_.kind_name() +
                   ", which has no token for unknown text.",
               kHint);
}

std::size_t newline_length(std::string_view text, std::size_t place, bool pairs) {
  if (text[place] == '\n') return 1;
  if (text[place] != '\r') return 0;
  return pairs && place + 1 < text.size() && text[place + 1] == '\n' ? 2 : 1;
}

std::int64_t characters(std::string_view text) { return static_cast<std::int64_t>(count_characters(text)); }

std::unique_ptr<Tokenizer> make_vocabulary_tokenizer(Vocabulary vocabulary) {
  switch (vocabulary.kind) {
    case VocabularyKind::words:
    case VocabularyKind::characters: return std::make_unique<TextTokenizer>(std::move(vocabulary));
    case VocabularyKind::bytes: return std::make_unique<NumberTokenizer>(std::move(vocabulary));
    case VocabularyKind::trie:
    case VocabularyKind::symbols: break;
  }
  return make_symbol_tokenizer(std::move(vocabulary));
}

}  // namespace xlruntime
