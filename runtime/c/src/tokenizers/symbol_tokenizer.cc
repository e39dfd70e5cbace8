// The longest symbol at each place of a text: RWKV World's vocabulary, and others of texts.
#include <algorithm>
#include <utility>

#include "../errors.h"
#include "../unicode.h"
#include "symbol_set.h"
#include "vocabulary_tokenizer.h"

namespace xlruntime {

namespace {

bool continues(std::string_view text, std::size_t place) {
  return place < text.size() && (static_cast<unsigned char>(text[place]) & 0xc0) == 0x80;
}

class SymbolTokenizer : public VocabularyTokenizer {
 public:
  explicit SymbolTokenizer(Vocabulary vocabulary)
      : VocabularyTokenizer(std::move(vocabulary)), is_trie_(vocabulary_.kind == VocabularyKind::trie) {
    for (std::size_t id = 0; id < vocabulary_.size(); ++id) {
      std::string bytes = vocabulary_.bytes_of(id);
      if (!bytes.empty()) symbols_.add(std::move(bytes), static_cast<std::int64_t>(id));
    }
    symbols_.finish();  // equal bytes are equal symbols
  }

  bool needs_utf8() const override { return !is_trie_; }

  std::size_t settled(std::string_view text) const override {
    std::size_t settled = 0;
    for (std::size_t place = 0; place <= text.size();) {
      if (is_trie_ || !continues(text, place)) settled = place;
      if (place == text.size()) break;
      const SymbolSet::Match match = symbols_.find(text, place);
      const bool waits = !is_trie_ && match.length == 0 && text[place] == '\r' && place + 1 == text.size();
      if (match.open || waits) break;
      place += length(match, text, place);
    }
    return settled;
  }

  TokenPart encode(std::string_view text, TextPlace& at, bool ends) const override {
    TokenPart part;
    std::int64_t chars = 0;  // that begin before the place; bytes of a trie
    at.line_open = at.line_open || !text.empty();
    for (std::size_t place = 0; place < text.size();) {
      const SymbolSet::Match match = symbols_.find(text, place);
      const std::size_t size = length(match, text, place);
      const std::string_view unit = text.substr(place, size);
      const std::int64_t start = chars;
      chars += is_trie_ ? static_cast<std::int64_t>(size) : characters(unit);
      const bool is_newline = !is_trie_ && match.length == 0 && newline_length(text, place, true) > 0;
      const auto number = match.length > 0 ? std::optional(match.id) : is_newline ? newline_ : unk_;
      if (!number && !is_newline) throw unknown(unit, at);
      if (number && part.ids.empty()) {
        part.first_bytes = static_cast<std::int64_t>(size);
        part.first_chars = characters(unit);
      }
      if (number) {
        part.add(*number, start, chars);
      } else {
        part.dropped_bytes += static_cast<std::int64_t>(size);
        part.dropped_chars += characters(unit);
      }
      place += size;
      at.line_begun = true;
      at.line += std::count(unit.begin(), unit.end(), '\n');
      if (is_newline) at.line_open = place < text.size();
    }
    if (ends) end_line(chars, at, part);
    return part;
  }

 private:
  std::string text_of(std::size_t id) const override {
    return is_trie_ ? vocabulary_.bytes_of(id) : vocabulary_.symbols[id];
  }

  // The bytes of the token at a place.
  std::size_t length(const SymbolSet::Match& match, std::string_view text, std::size_t place) const {
    if (match.length > 0) return match.length;
    if (is_trie_) return 1;
    const std::size_t newline = newline_length(text, place, true);
    return newline > 0 ? newline : character_length(text, place);
  }

  bool is_trie_;
  SymbolSet symbols_;
};

}  // namespace

std::unique_ptr<Tokenizer> make_symbol_tokenizer(Vocabulary vocabulary) {
  return std::make_unique<SymbolTokenizer>(std::move(vocabulary));
}

}  // namespace xlruntime
