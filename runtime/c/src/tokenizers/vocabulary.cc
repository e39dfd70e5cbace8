#include "vocabulary.h"

#include <algorithm>
#include <array>
#include <tuple>
#include <utility>

#include "../errors.h"
#include "../safetensors.h"
#include "../unicode.h"

namespace xlruntime {

namespace {

constexpr const char* kFormat = "xlexport vocabulary";
constexpr std::array<std::string_view, 3> kKinds{"words", "characters", "bytes"};
constexpr std::array<const char*, 4> kRoles{"unk", "line_start", "line_end", "space"};
constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
constexpr std::int64_t kLongestWord = std::int64_t{16} << 20;  // characters
constexpr std::int64_t kDropped = -1, kUnknown = -2;
constexpr const char* kHint = "Prepare the text as the training text was, or replace them.";

// Whether a symbol is a special token such as <eos>, not made from bytes or characters.
bool is_bracketed(std::string_view symbol) {
  return count_characters(symbol) > 2 && (symbol.front() == '<' || symbol.front() == '[') &&
         (symbol.back() == '>' || symbol.back() == ']');
}

// Whether a symbol is the decimal number of a byte.
bool is_byte_symbol(std::string_view symbol) {
  const bool is_number = !symbol.empty() && symbol.size() <= 3 &&
                         symbol.find_first_not_of("0123456789") == std::string_view::npos;
  return is_number && (symbol.size() == 1 || symbol[0] != '0') && std::stoi(std::string(symbol)) < 256;
}

bool is_of_kind(std::string_view symbol, VocabularyKind kind) {
  if (kind == VocabularyKind::words || is_bracketed(symbol)) return true;
  return kind == VocabularyKind::characters ? count_characters(symbol) == 1 : is_byte_symbol(symbol);
}

}  // namespace

std::optional<std::int64_t> Vocabulary::id_of(std::string_view symbol) const {
  const auto found = index_.find(symbol);
  return found == index_.end() ? std::nullopt : std::optional(found->second);
}

std::optional<std::int64_t> Vocabulary::id_of_role(const std::optional<std::string>& symbol) const {
  return symbol ? id_of(*symbol) : std::nullopt;
}

const char* Vocabulary::kind_name() const { return kKinds[static_cast<std::size_t>(kind)].data(); }

Vocabulary Vocabulary::read(const std::filesystem::path& path) {
  return from_json(json::parse(read_file(path), path.string(), XLR_ERROR_VOCABULARY), path.string());
}

Vocabulary Vocabulary::from_json(json::Value value, const std::string& where) {
  const auto broken = [&where](const std::string& problem) {
    return Error(XLR_ERROR_VOCABULARY, where + ": " + problem + ".", "Convert the checkpoint again.");
  };
  auto* fields = value.as<json::Object>();
  if (fields == nullptr) throw broken("not an object");
  Vocabulary vocabulary;
  std::array<std::optional<std::string>, kRoles.size()> roles;
  bool has_format = false, has_kind = false, has_symbols = false;
  for (auto& [name, part] : *fields) {
    auto* text = part.as<std::string>();
    const auto role = std::find(kRoles.begin(), kRoles.end(), name);
    if (role != kRoles.end()) {
      if (text != nullptr) roles[static_cast<std::size_t>(role - kRoles.begin())] = *text;
      if (text == nullptr && !part.is_null()) throw broken(name + " is not a text");
    } else if (name == "format") {
      has_format = text != nullptr && *text == kFormat;
    } else if (name == "kind") {
      const auto kind = text == nullptr ? kKinds.end() : std::find(kKinds.begin(), kKinds.end(), *text);
      if (kind == kKinds.end()) throw broken("its kind is none of words, characters and bytes");
      vocabulary.kind = static_cast<VocabularyKind>(kind - kKinds.begin());
      has_kind = true;
    } else if (name == "lower_case") {
      if (part.as<bool>() == nullptr) throw broken("lower_case is neither true nor false");
      vocabulary.lower_case = *part.as<bool>();
    } else if (name == "symbols") {
      has_symbols = part.as<json::Array>() != nullptr;
      for (json::Value& each : has_symbols ? *part.as<json::Array>() : json::Array()) {
        auto* symbol = each.as<std::string>();
        if (symbol == nullptr || symbol->empty()) throw broken("symbols must be texts that are not empty");
        vocabulary.symbols.push_back(std::move(*symbol));
      }
    } else {
      throw broken("the field " + shown(name) + " is unknown");
    }
  }
  if (!has_format || !has_kind || !has_symbols) throw broken("no vocabulary that xlexport wrote");
  if (vocabulary.symbols.empty()) throw broken("a vocabulary without symbols");
  for (std::size_t i = 0; i < vocabulary.size(); ++i) {
    const std::string& symbol = vocabulary.symbols[i];
    if (!vocabulary.index_.emplace(symbol, static_cast<std::int64_t>(i)).second) {
      throw broken("the symbol " + shown(symbol) + " occurs more than once");
    }
    if (!is_of_kind(symbol, vocabulary.kind)) {
      throw broken("the symbol " + shown(symbol) + " is not of the " + vocabulary.kind_name());
    }
  }
  for (std::size_t i = 0; i < kRoles.size(); ++i) {
    if (!roles[i]) continue;
    if (!vocabulary.id_of(*roles[i])) throw broken(kRoles[i] + (" is " + shown(*roles[i])) + ", which is not a symbol");
    const bool is_of_other_kind = (i == 3 && vocabulary.kind != VocabularyKind::characters) ||
                                  (i == 1 && vocabulary.kind != VocabularyKind::words);
    if (is_of_other_kind) throw broken(std::string(vocabulary.kind_name()) + " have no " + kRoles[i]);
  }
  std::tie(vocabulary.unk, vocabulary.line_start, vocabulary.line_end, vocabulary.space) =
      std::tie(roles[0], roles[1], roles[2], roles[3]);
  return vocabulary;
}

namespace {

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

Error not_utf8(const std::string& name, std::int64_t at, char byte) {
  static const char* const digits = "0123456789abcdef";
  const auto value = static_cast<unsigned char>(byte);
  return Error(XLR_ERROR_TEXT,
               name + ": not UTF-8 at byte " + std::to_string(at) + " (0x" + digits[value >> 4] + digits[value & 15] +
                   "), and this bundle's tokenizer needs text.",
               "Convert it, for instance: iconv -f latin1 -t utf-8 " + name);
}

// Reads documents of words or characters. Places count characters.
class TextReader : public DocumentReader {
 public:
  // `previous` is the last token before the text; none: the text is the beginning of a document.
  TextReader(const Vocabulary& vocabulary, const std::string& name, std::optional<std::int64_t> previous)
      : vocabulary_(vocabulary),
        name_(name),
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
    return split(text);
  }

  // Return the tokens of the held text, and end the text, but not its last line.
  TokenPiece flush() {
    if (!tail_.empty()) throw not_utf8(name_, decoded_, tail_[0]);
    return tokens_of_held();
  }

  TokenPiece end() override {
    TokenPiece piece = flush();
    if (!open_) return piece;
    if (!begun_ && line_start_) piece.add(*line_start_, chars_, chars_);
    if (line_end_) piece.add(*line_end_, chars_, chars_);
    return piece;
  }

 private:
  TokenPiece tokens_of_held() {
    const std::string text = std::exchange(held_, std::string());
    held_chars_ = 0;
    TokenPiece piece = tokens(text);
    const std::int64_t before = chars_;
    if (empty_ && !piece.ids.empty()) {
      // Text before the first word has no token of its own, so the word covers it.
      const std::size_t begin = words_ ? 0 : first_characters(text, static_cast<std::size_t>(piece.starts[0])).size();
      const std::size_t end = first_characters(text, static_cast<std::size_t>(piece.ends[0])).size();
      const std::string_view covered = std::string_view(text).substr(begin, end - begin);
      counts.first_token_bytes = static_cast<std::int64_t>(covered.size()) + (words_ ? bytes_ : 0);
      counts.first_token_chars = characters(covered) + (words_ ? chars_ : 0);
      empty_ = false;
    } else if (empty_) {
      bytes_ += static_cast<std::int64_t>(text.size());
    }
    chars_ += characters(text);
    for (std::int64_t& start : piece.starts) start += before;
    for (std::int64_t& end : piece.ends) end += before;
    return piece;
  }

  // Take whole characters, and return the tokens that they complete.
  TokenPiece split(std::string_view text) {
    std::size_t end = text.size();
    if (end > 0 && text[end - 1] == '\r') --end;  // a newline may follow
    if (words_) end = after_last_space(text.substr(0, end));
    TokenPiece piece;
    if (end > 0) {
      held_ += text.substr(0, end);
      piece = tokens_of_held();
    }
    held_ += text.substr(end);
    held_chars_ += characters(text.substr(end));
    if (held_chars_ > kLongestWord) {
      throw Error(XLR_ERROR_TEXT, name_ + ": a word of more than " + std::to_string(kLongestWord) + " characters.",
                  "Check that it is a text of words.");
    }
    return piece;
  }

  // The tokens of a text, with places in characters of the text.
  TokenPiece tokens(std::string_view text) {
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
  std::string_view next_unit(std::string_view text, std::size_t& place) const {
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
  std::size_t skip_mark(std::string_view text) {
    const bool is_first = first_;
    first_ = first_ && text.empty();
    if (!is_first || text.substr(0, kByteOrderMark.size()) != kByteOrderMark || vocabulary_.id_of(kByteOrderMark)) {
      return 0;
    }
    if (!words_) drop(kByteOrderMark);
    return kByteOrderMark.size();
  }

  std::vector<std::int64_t> newline_ids(std::string_view newline) {
    if (newline_) return {*newline_};
    if (!words_) drop(newline);
    return {};
  }

  void drop(std::string_view text) {
    counts.dropped_chars += characters(text);
    counts.dropped_bytes += static_cast<std::int64_t>(text.size());
  }

  std::vector<std::int64_t> ids_of(std::string_view unit) const {
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

  const Vocabulary& vocabulary_;
  const std::string name_;
  const bool words_;
  const bool splits_line_ends_;  // whether a carriage return is a symbol, and so \r\n are two
  std::optional<std::int64_t> unk_, line_start_, line_end_, newline_, space_;
  std::string tail_;              // the beginning of a character
  std::int64_t decoded_ = 0;      // bytes before it
  std::string held_;              // text whose tokens depend on what follows
  std::int64_t held_chars_ = 0;   // characters of it since the last token
  std::int64_t chars_ = 0, bytes_ = 0;  // before the held text; bytes only until the first token
  std::int64_t line_ = 1;
  bool begun_;         // the line's line_start, if there is one, was returned
  bool open_ = false;  // the line has text, and no newline yet
  bool first_;         // no text yet
  bool empty_;         // no token yet
};

// Reads documents of bytes.
class ByteReader : public DocumentReader {
 public:
  ByteReader(const Vocabulary& vocabulary, const std::string& name) : name_(name) {
    const std::int64_t unknown = vocabulary.id_of_role(vocabulary.unk).value_or(kUnknown);
    for (std::size_t byte = 0; byte < table_.size(); ++byte) {
      table_[byte] = vocabulary.id_of(std::to_string(byte)).value_or(unknown);
    }
    if (!vocabulary.id_of("10")) {
      line_end_ = vocabulary.id_of_role(vocabulary.line_end);
      table_['\n'] = line_end_.value_or(kDropped);
    }
  }

  TokenPiece take(std::string_view raw) override {
    counts.add(raw);
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
    counts.dropped_bytes += size - kept;
    counts.dropped_chars += size - kept;  // newlines, so characters too
    if (empty_ && kept > 0) {
      const auto first = static_cast<unsigned char>(raw[static_cast<std::size_t>(piece.starts[0] - bytes_)]);
      counts.first_token_bytes = 1;
      counts.first_token_chars = (first & 0xc0) != 0x80 ? 1 : 0;
      empty_ = false;
    }
    bytes_ += size;
    if (!raw.empty()) open_ = raw.back() != '\n';
    return piece;
  }

  TokenPiece end() override {
    TokenPiece piece;
    if (open_ && line_end_) piece.add(*line_end_, bytes_, bytes_);
    return piece;
  }

 private:
  const std::string name_;
  std::array<std::int64_t, 256> table_;  // token of each byte
  std::optional<std::int64_t> line_end_;
  std::int64_t bytes_ = 0;
  bool open_ = false;
  bool empty_ = true;
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

std::unique_ptr<DocumentReader> VocabularyTokenizer::read(const std::string& name) const {
  if (vocabulary_.kind == VocabularyKind::bytes) return std::make_unique<ByteReader>(vocabulary_, name);
  return std::make_unique<TextReader>(vocabulary_, name, std::nullopt);
}

std::vector<std::int64_t> VocabularyTokenizer::encode_piece(std::string_view text,
                                                            std::optional<std::int64_t> previous) const {
  if (vocabulary_.kind == VocabularyKind::bytes) return ByteReader(vocabulary_, "the text").take(text).ids;
  TextReader reader(vocabulary_, "the text", previous);
  TokenPiece piece = reader.take(text);
  piece.append(reader.flush());
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
