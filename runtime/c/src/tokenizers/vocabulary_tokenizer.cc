#include <algorithm>
#include <utility>

#include "../errors.h"
#include "../unicode.h"
#include "held_text.h"
#include "symbol_set.h"
#include "vocabulary.h"

namespace xlruntime {

namespace {

std::int64_t characters(std::string_view text) { return static_cast<std::int64_t>(count_characters(text)); }

// The place after the last white space of a text, or 0.
std::size_t after_last_space(std::string_view text) {
  for (std::size_t place = text.size(); place > 0;) {
    const std::size_t begin = character_before(text, place);
    if (is_space(code_point(text, begin))) return place;
    place = begin;
  }
  return 0;
}

// A word, a symbol, a line end, or a character or byte that is none.
struct Unit {
  std::size_t size = 0;  // in bytes; 0: there is only white space left
  std::optional<std::int64_t> id;
  bool is_newline = false;  // and not a symbol itself
  bool is_open = false;     // a longer one could still follow
};

// A line ends with a newline, a carriage return or both. A byte-order mark at the beginning of a text of words or
// characters is skipped. White space between words belongs to the word or line end after it.
class VocabularyTokenizer : public Tokenizer {
 public:
  explicit VocabularyTokenizer(Vocabulary vocabulary)
      : vocabulary_(std::move(vocabulary)),
        are_words_(vocabulary_.kind == VocabularyKind::words),
        are_bytes_(vocabulary_.kind == VocabularyKind::bytes || vocabulary_.kind == VocabularyKind::trie),
        has_mark_(vocabulary_.id_of(kByteOrderMark).has_value()),
        unk_(vocabulary_.id_of_role(vocabulary_.unk)),
        line_start_(vocabulary_.id_of_role(vocabulary_.line_start)) {
    static constexpr const char* kNewlines[] = {nullptr, "\n", "10", "0a", "\n"};  // by kind
    const char* const symbol = kNewlines[static_cast<std::size_t>(vocabulary_.kind)];
    newline_ = symbol == nullptr ? std::nullopt : vocabulary_.id_of(symbol);
    if (!newline_) newline_ = line_end_ = vocabulary_.id_of_role(vocabulary_.line_end);
    for (std::size_t id = 0; id < vocabulary_.size(); ++id) {
      if (vocabulary_.is_text(id)) symbols_.add(vocabulary_.text_of(id), static_cast<std::int64_t>(id));
    }
    const auto space = vocabulary_.id_of_role(vocabulary_.space);
    if (space && !vocabulary_.id_of(" ")) symbols_.add(" ", *space);
    symbols_.finish();  // equal texts are equal symbols
  }

  bool needs_utf8() const override { return !are_bytes_; }

  bool skips_mark() const override { return are_words_ || vocabulary_.kind == VocabularyKind::characters; }

  std::size_t settled(std::string_view text) const override {
    if (are_words_) {
      if (!text.empty() && text.back() == '\r') text.remove_suffix(1);  // a newline may follow
      return after_last_space(text);
    }
    std::size_t place = 0;
    while (place < text.size()) {
      const Unit unit = unit_at(text, place);
      if (unit.is_open) break;
      place += unit.size;
    }
    return place;
  }

  TokenPart encode(std::string_view text, TextPlace& at, bool ends) const override {
    TokenPart part;
    std::size_t place = 0;
    if (skips_mark() && at.is_first && !has_mark_ && text.substr(0, kByteOrderMark.size()) == kByteOrderMark) {
      place = kByteOrderMark.size();
      drop(kByteOrderMark, part);
    }
    std::int64_t end = place > 0 ? 1 : 0;
    at.line_open = at.line_open || place < text.size();
    while (place < text.size()) {
      std::size_t begin = place;
      while (are_words_ && begin < text.size() && is_between_words(text, begin)) begin += character_length(text, begin);
      if (begin == text.size()) break;
      const Unit unit = unit_at(text, begin);
      const std::string_view content = text.substr(begin, unit.size);
      const std::int64_t start = end + places(text.substr(place, begin - place));
      end = start + places(content);
      place = begin + unit.size;
      if (!at.line_begun && line_start_) part.add(*line_start_, start, start);
      at.line_begun = !unit.is_newline;
      if (!unit.is_newline) {
        add(content, unit, start, end, at, part);
        at.line += std::count(content.begin(), content.end(), '\n');
        continue;
      }
      if (newline_) {
        part.add(*newline_, start, end);
      } else {
        drop(content, part);
      }
      ++at.line;
      at.line_open = place < text.size();
    }
    count_first(text, at, part);
    if (ends) end_line(places(text), at, part);
    return part;
  }

  bool begins_line(std::int64_t token) const override { return token != line_end_; }

  std::string decode(const std::vector<std::int64_t>& ids) const override {
    check_ids(ids.data(), ids.size(), *size(), "the tokens");
    if (are_words_) return joined_words(ids);
    std::string text;
    for (const std::int64_t id : ids) {
      const std::string& symbol = vocabulary_.symbols[static_cast<std::size_t>(id)];
      text += symbol == vocabulary_.line_end ? "\n"
              : symbol == vocabulary_.space  ? " "
                                             : vocabulary_.text_of(static_cast<std::size_t>(id));
    }
    return are_bytes_ ? replace_wrong_bytes(text) : text;
  }

  std::optional<std::int64_t> unk_id() const override { return unk_; }
  std::optional<std::int64_t> size() const override { return static_cast<std::int64_t>(vocabulary_.size()); }

 private:
  // Places of a text are bytes or characters.
  std::int64_t places(std::string_view text) const {
    return are_bytes_ ? static_cast<std::int64_t>(text.size()) : characters(text);
  }

  // The length of the line end at a place of a text, or 0.
  std::size_t newline_length(std::string_view text, std::size_t place) const {
    if (text[place] == '\n') return vocabulary_.kind == VocabularyKind::trie ? 0 : 1;
    if (text[place] != '\r' || are_bytes_) return 0;
    return place + 1 < text.size() && text[place + 1] == '\n' ? 2 : 1;
  }

  bool is_between_words(std::string_view text, std::size_t place) const {
    return newline_length(text, place) == 0 && is_space(code_point(text, place));
  }

  Unit unit_at(std::string_view text, std::size_t place) const {
    const SymbolSet::Match match = are_words_ ? SymbolSet::Match{} : symbols_.find(text, place);
    if (match.length > 0) return {match.length, match.id, false, match.open};
    if (const std::size_t newline = newline_length(text, place); newline > 0) {
      const auto word = are_words_ ? vocabulary_.id_of(text.substr(place, newline)) : std::nullopt;
      const bool is_open = match.open || (text[place] == '\r' && place + 1 == text.size());
      return {newline, word, !word, is_open};
    }
    if (!are_words_) return {are_bytes_ ? 1 : character_length(text, place), unk_, false, match.open};
    std::size_t end = place;
    while (end < text.size() && !is_space(code_point(text, end))) end += character_length(text, end);
    const std::string_view word = text.substr(place, end - place);
    const auto id = vocabulary_.id_of(vocabulary_.lower_case ? lower(word) : word);
    return {end - place, id ? id : unk_};
  }

  // Add the tokens of a unit.
  void add(std::string_view content, const Unit& unit, std::int64_t start, std::int64_t end, const TextPlace& at,
           TokenPart& part) const {
    if (vocabulary_.lower_case && !are_words_) {
      const std::string lowered = lower(content);  // perhaps two characters
      for (std::size_t i = 0; i < lowered.size(); i += character_length(lowered, i)) {
        add_one(content, unit_at(lowered, i).id, start, end, at, part);
        start = end;
      }
    } else {
      add_one(content, unit.id, start, end, at, part);
    }
  }

  void add_one(std::string_view content, std::optional<std::int64_t> id, std::int64_t start, std::int64_t end,
               const TextPlace& at, TokenPart& part) const {
    if (id) return part.add(*id, start, end);
    const std::string what = are_bytes_ ? "the byte " + std::to_string(static_cast<unsigned char>(content[0])) + " at " +
                                              std::to_string(at.bytes + start)
                                        : shown(content) + " in line " + std::to_string(at.line);
    throw Error(XLR_ERROR_TOKEN,
                at.name + ": " + what + " is not in the vocabulary of " + vocabulary_.kind_name() +
                    ", which has no token for unknown text.",
                "Prepare the text as the training text was, or replace them.");
  }

  // Count text without a token, unless the next word covers it.
  void drop(std::string_view text, TokenPart& part) const {
    if (are_words_) return;
    part.dropped_chars += characters(text);
    part.dropped_bytes += static_cast<std::int64_t>(text.size());
  }

  // Add the tokens of the end of a document, `end` places after the part begins.
  void end_line(std::int64_t end, TextPlace& at, TokenPart& part) const {
    if (!at.line_open) return;
    if (!at.line_begun && line_start_) part.add(*line_start_, end, end);
    if (line_end_) part.add(*line_end_, end, end);
    at.line_open = false;
  }

  // Text before the first word has no token of its own, so the word covers it.
  void count_first(std::string_view text, const TextPlace& at, TokenPart& part) const {
    if (part.ids.empty()) return;
    const auto byte_of = [&](std::int64_t place) {
      const auto n = static_cast<std::size_t>(place);
      return are_bytes_ ? n : first_characters(text, n).size();
    };
    const std::size_t begin = are_words_ ? 0 : byte_of(part.starts[0]);
    const std::string_view covered = text.substr(begin, byte_of(part.ends[0]) - begin);
    part.first_bytes = static_cast<std::int64_t>(covered.size()) + (are_words_ ? at.bytes : 0);
    part.first_chars = characters(covered) + (are_words_ ? at.chars : 0);
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

  Vocabulary vocabulary_;
  bool are_words_, are_bytes_;
  bool has_mark_;      // whether a byte-order mark is a symbol
  SymbolSet symbols_;  // but not of words
  std::optional<std::int64_t> unk_, line_start_;
  std::optional<std::int64_t> line_end_;  // if the vocabulary has no symbol of the newline itself
  std::optional<std::int64_t> newline_;   // for a line end: its symbol, or line_end
};

}  // namespace

std::unique_ptr<Tokenizer> make_vocabulary_tokenizer(Vocabulary vocabulary) {
  return std::make_unique<VocabularyTokenizer>(std::move(vocabulary));
}

}  // namespace xlruntime
