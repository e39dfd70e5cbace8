#include "vocabulary_tokenizer.h"

#include <algorithm>
#include <utility>

#include "../errors.h"
#include "../unicode.h"
#include "text_splitter.h"

namespace xlruntime {

namespace {

Error not_utf8(const std::string& name, std::int64_t at, char byte) {
  static const char* const digits = "0123456789abcdef";
  const auto value = static_cast<unsigned char>(byte);
  return Error(XLR_ERROR_TEXT,
               name + ": not UTF-8 at byte " + std::to_string(at) + " (0x" + digits[value >> 4] + digits[value & 15] +
                   "), and this bundle's tokenizer needs text.",
               "Convert it, for instance: iconv -f latin1 -t utf-8 " + name);
}

class TextReader : public DocumentReader {
 public:
  TextReader(const Vocabulary& vocabulary, const std::string& name)
      : splitter_(vocabulary, name, counts, std::nullopt), name_(name) {}

  TokenPiece take(std::string_view raw) override {
    counts.add(raw);
    std::string joined;
    std::string_view text = raw;
    if (!tail_.empty()) {
      joined = std::exchange(tail_, std::string());
      joined += raw;
      text = joined;
    }
    const std::size_t unfinished = unfinished_tail(text);
    tail_ = text.substr(text.size() - unfinished);
    text.remove_suffix(unfinished);
    const std::size_t wrong = first_wrong_byte(text);
    if (wrong != std::string_view::npos) {
      throw not_utf8(name_, decoded_ + static_cast<std::int64_t>(wrong), text[wrong]);
    }
    decoded_ += static_cast<std::int64_t>(text.size());
    return splitter_.take(text);
  }

  TokenPiece end() override {
    if (!tail_.empty()) throw not_utf8(name_, decoded_, tail_[0]);
    TokenPiece piece = splitter_.flush();
    piece.append(splitter_.end());
    return piece;
  }

 private:
  TextSplitter splitter_;
  std::string name_;
  std::string tail_;  // the beginning of a character
  std::int64_t decoded_ = 0;
};

class ByteSymbolReader : public DocumentReader {
 public:
  ByteSymbolReader(const Vocabulary& vocabulary, const std::string& name) : splitter_(vocabulary, name, counts) {}

  TokenPiece take(std::string_view raw) override {
    counts.add(raw);
    return splitter_.take(raw);
  }

  TokenPiece end() override { return splitter_.end(); }

 private:
  ByteSplitter splitter_;
};

// Join words to a text. A symbol that both starts and ends lines starts one if no line has begun.
std::string joined_words(const Vocabulary& vocabulary, const std::vector<const std::string*>& symbols) {
  std::string text;
  bool begun = false;
  for (const std::string* symbol : symbols) {
    if (*symbol == vocabulary.line_start && !begun) {
      begun = true;
    } else if (*symbol == vocabulary.line_end) {
      text += '\n';
      begun = false;
    } else {
      if (!text.empty() && text.back() != '\n') text += ' ';
      text += *symbol;
      begun = true;
    }
  }
  return text;
}

}  // namespace

VocabularyTokenizer::VocabularyTokenizer(Vocabulary vocabulary) : vocabulary_(std::move(vocabulary)) {}

std::unique_ptr<DocumentReader> VocabularyTokenizer::read(const std::string& name) const {
  if (vocabulary_.kind == VocabularyKind::bytes) return std::make_unique<ByteSymbolReader>(vocabulary_, name);
  return std::make_unique<TextReader>(vocabulary_, name);
}

std::vector<std::int64_t> VocabularyTokenizer::encode_piece(std::string_view text,
                                                            std::optional<std::int64_t> previous) const {
  TextCounts counts;
  if (vocabulary_.kind == VocabularyKind::bytes) return ByteSplitter(vocabulary_, "the text", counts).take(text).ids;
  if (const std::size_t wrong = first_wrong_byte(text); wrong != std::string_view::npos) {
    throw not_utf8("the text", static_cast<std::int64_t>(wrong), text[wrong]);
  }
  TextSplitter splitter(vocabulary_, "the text", counts, previous);
  TokenPiece piece = splitter.take(text);
  piece.append(splitter.flush());
  return std::move(piece.ids);
}

std::string VocabularyTokenizer::decode(const std::vector<std::int64_t>& ids) const {
  const auto size = static_cast<std::int64_t>(vocabulary_.size());
  check_ids(ids.data(), ids.size(), size, "the tokens");
  std::vector<const std::string*> symbols;
  for (const std::int64_t id : ids) symbols.push_back(&vocabulary_.symbols[static_cast<std::size_t>(id)]);
  if (vocabulary_.kind == VocabularyKind::words) return joined_words(vocabulary_, symbols);
  std::string text;
  for (const std::string* symbol : symbols) {
    if (*symbol == vocabulary_.line_end) {
      text += '\n';
    } else if (*symbol == vocabulary_.space) {
      text += ' ';
    } else if (vocabulary_.kind == VocabularyKind::bytes && is_byte_symbol(*symbol)) {
      text += static_cast<char>(static_cast<unsigned char>(std::stoi(*symbol)));
    } else {
      text += *symbol;
    }
  }
  return vocabulary_.kind == VocabularyKind::bytes ? replace_wrong_bytes(text) : text;
}

}  // namespace xlruntime
