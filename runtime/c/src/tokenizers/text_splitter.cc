#include "text_splitter.h"

#include <algorithm>
#include <utility>

#include "../errors.h"
#include "../unicode.h"

namespace xlruntime {

namespace {

constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
constexpr std::int64_t kLongestWord = std::int64_t{16} << 20;  // characters
constexpr std::int64_t kDropped = -1, kUnknown = -2;
constexpr const char* kHint = "Prepare the text as the training text was, or replace them.";

bool is_newline_text(std::string_view unit) { return unit == "\n" || unit == "\r" || unit == "\r\n"; }

std::int64_t characters(std::string_view text) { return static_cast<std::int64_t>(count_characters(text)); }

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

}  // namespace

TextSplitter::TextSplitter(const Vocabulary& vocabulary, std::string name, TextCounts& counts,
                   std::optional<std::int64_t> previous)
    : vocabulary_(vocabulary),
      name_(std::move(name)),
      counts_(counts),
      words_(vocabulary.kind == VocabularyKind::words),
      splits_line_ends_(!words_ && vocabulary.id_of("\r").has_value()),
      unk_(vocabulary.id_of_role(vocabulary.unk)),
      line_start_(vocabulary.id_of_role(vocabulary.line_start)),
      space_(vocabulary.id_of_role(vocabulary.space)),
      first_(!previous),
      empty_(!previous) {
  const auto newline = words_ ? std::nullopt : vocabulary.id_of("\n");
  line_end_ = newline ? std::nullopt : vocabulary.id_of_role(vocabulary.line_end);
  newline_ = newline ? newline : line_end_;
  begun_ = previous && previous != line_end_;
}

TokenPiece TextSplitter::take(std::string_view text) {
  std::size_t end = text.size();
  if (end > 0 && text[end - 1] == '\r') --end;  // a newline may follow
  if (words_) end = after_last_space(text.substr(0, end));
  TokenPiece piece;
  if (end > 0) {
    held_ += text.substr(0, end);
    piece = flush();
  }
  held_ += text.substr(end);
  held_chars_ += characters(text.substr(end));
  if (held_chars_ > kLongestWord) {
    throw Error(XLR_ERROR_TEXT, name_ + ": a word of more than " + std::to_string(kLongestWord) + " characters.",
                "Check that it is a text of words.");
  }
  return piece;
}

TokenPiece TextSplitter::flush() {
  const std::string text = std::exchange(held_, std::string());
  held_chars_ = 0;
  TokenPiece piece = tokens(text);
  const std::int64_t before = chars_;
  if (empty_ && !piece.ids.empty()) {
    // Text before the first word has no token of its own, so the word covers it.
    const std::size_t begin = words_ ? 0 : first_characters(text, static_cast<std::size_t>(piece.starts[0])).size();
    const std::size_t end = first_characters(text, static_cast<std::size_t>(piece.ends[0])).size();
    const std::string_view covered = std::string_view(text).substr(begin, end - begin);
    counts_.first_token_bytes = static_cast<std::int64_t>(covered.size()) + (words_ ? bytes_ : 0);
    counts_.first_token_chars = characters(covered) + (words_ ? chars_ : 0);
    empty_ = false;
  } else if (empty_) {
    bytes_ += static_cast<std::int64_t>(text.size());
  }
  chars_ += characters(text);
  for (std::int64_t& start : piece.starts) start += before;
  for (std::int64_t& end : piece.ends) end += before;
  return piece;
}

TokenPiece TextSplitter::end() {
  TokenPiece piece;
  if (!open_) return piece;
  if (!begun_ && line_start_) piece.add(*line_start_, chars_, chars_);
  if (line_end_) piece.add(*line_end_, chars_, chars_);
  return piece;
}

// The tokens of a text, with places in characters of the text.
TokenPiece TextSplitter::tokens(std::string_view text) {
  TokenPiece piece;
  std::size_t place = skip_mark(text);
  std::int64_t chars = place > 0 ? 1 : 0;
  open_ = open_ || place < text.size();
  while (place < text.size()) {
    const std::size_t before = place;
    const std::string_view unit = next_unit(text, place);
    if (unit.empty()) break;
    const auto begin = static_cast<std::size_t>(unit.data() - text.data());
    std::int64_t start = chars + characters(text.substr(before, begin - before));
    const std::int64_t end = start + characters(unit);
    chars = end;
    const bool is_newline = is_newline_text(unit) && !vocabulary_.id_of(unit);
    const std::vector<std::int64_t> numbers = is_newline ? newline_ids(unit) : ids_of(unit);
    if (!begun_ && line_start_) piece.add(*line_start_, start, start);
    begun_ = !is_newline;
    for (const std::int64_t number : numbers) {
      piece.add(number, start, end);
      start = end;  // lower-casing may turn one character into two
    }
    if (is_newline) {
      ++line_;
      open_ = place < text.size();
    }
  }
  return piece;
}

// The next word, character or line end from `place` on, which moves behind it; empty if there is none.
std::string_view TextSplitter::next_unit(std::string_view text, std::size_t& place) const {
  const auto at = [text](std::size_t i) { return i < text.size() ? text[i] : '\0'; };
  while (place < text.size()) {
    const std::size_t begin = place;
    const bool is_pair = at(begin) == '\r' && at(begin + 1) == '\n';
    if (!words_) {
      place += is_pair && !splits_line_ends_ ? 2 : character_length(text, begin);
      return text.substr(begin, place - begin);
    }
    if (at(begin) == '\r' || at(begin) == '\n') {
      place += is_pair ? 2 : 1;
      return text.substr(begin, place - begin);
    }
    while (place < text.size() && !is_space(code_point(text, place))) place += character_length(text, place);
    if (place > begin) return text.substr(begin, place - begin);
    place += character_length(text, place);  // white space between words
  }
  return {};
}

// Where the text begins: after a byte-order mark.
std::size_t TextSplitter::skip_mark(std::string_view text) {
  const bool is_first = first_;
  first_ = first_ && text.empty();
  if (!is_first || text.substr(0, kByteOrderMark.size()) != kByteOrderMark || vocabulary_.id_of(kByteOrderMark)) {
    return 0;
  }
  if (!words_) drop(kByteOrderMark);
  return kByteOrderMark.size();
}

std::vector<std::int64_t> TextSplitter::newline_ids(std::string_view newline) {
  if (newline_) return {*newline_};
  if (!words_) drop(newline);
  return {};
}

void TextSplitter::drop(std::string_view text) {
  counts_.dropped_chars += characters(text);
  counts_.dropped_bytes += static_cast<std::int64_t>(text.size());
}

std::vector<std::int64_t> TextSplitter::ids_of(std::string_view unit) const {
  std::string lowered;
  if (vocabulary_.lower_case) {
    lowered = lower(unit);
    unit = lowered;
  }
  std::vector<std::int64_t> numbers;
  for (std::size_t place = 0; place < unit.size();) {
    const std::string_view symbol = words_ ? unit : unit.substr(place, character_length(unit, place));
    place += symbol.size();
    auto number = vocabulary_.id_of(symbol);
    if (!number && symbol == " ") number = space_;
    if (!number) number = unk_;
    if (!number) {
      throw Error(XLR_ERROR_TOKEN,
                  name_ + ": " + shown(symbol) + " in line " + std::to_string(line_) + " is not in the vocabulary of " +
                      vocabulary_.kind_name() + ", which has no token for unknown text.",
                  kHint);
    }
    numbers.push_back(*number);
  }
  return numbers;
}

ByteSplitter::ByteSplitter(const Vocabulary& vocabulary, std::string name, TextCounts& counts)
    : name_(std::move(name)), counts_(counts) {
  const std::int64_t unknown = vocabulary.id_of_role(vocabulary.unk).value_or(kUnknown);
  for (std::size_t byte = 0; byte < table_.size(); ++byte) {
    table_[byte] = vocabulary.id_of(std::to_string(byte)).value_or(unknown);
  }
  if (!vocabulary.id_of("10")) {
    line_end_ = vocabulary.id_of_role(vocabulary.line_end);
    table_['\n'] = line_end_.value_or(kDropped);
  }
}

TokenPiece ByteSplitter::take(std::string_view raw) {
  TokenPiece piece;
  for (std::size_t i = 0; i < raw.size(); ++i) {
    const std::int64_t number = table_[static_cast<unsigned char>(raw[i])];
    if (number == kUnknown) {
      throw Error(XLR_ERROR_TOKEN,
                  name_ + ": the byte " + std::to_string(static_cast<unsigned char>(raw[i])) + " at " +
                      std::to_string(bytes_ + static_cast<std::int64_t>(i)) +
                      " is not in the vocabulary of bytes, which has no token for unknown ones.",
                  kHint);
    }
    const std::int64_t start = bytes_ + static_cast<std::int64_t>(i);
    if (number != kDropped) piece.add(number, start, start + 1);
  }
  const auto size = static_cast<std::int64_t>(raw.size()), kept = static_cast<std::int64_t>(piece.ids.size());
  counts_.dropped_bytes += size - kept;
  counts_.dropped_chars += size - kept;  // newlines, so characters too
  if (empty_ && kept > 0) {
    const auto first = static_cast<unsigned char>(raw[static_cast<std::size_t>(piece.starts[0] - bytes_)]);
    counts_.first_token_bytes = 1;
    counts_.first_token_chars = (first & 0xc0) != 0x80 ? 1 : 0;
    empty_ = false;
  }
  bytes_ += size;
  if (!raw.empty()) open_ = raw.back() != '\n';
  return piece;
}

TokenPiece ByteSplitter::end() {
  TokenPiece piece;
  if (open_ && line_end_) piece.add(*line_end_, bytes_, bytes_);
  return piece;
}

}  // namespace xlruntime
