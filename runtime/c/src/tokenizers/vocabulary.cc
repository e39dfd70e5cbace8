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
constexpr std::array<std::string_view, 5> kKinds{"words", "characters", "bytes", "trie", "symbols"};
constexpr std::array<const char*, 4> kRoles{"unk", "line_start", "line_end", "space"};
constexpr std::size_t kLongestSymbol = 1000;  // bytes of one that is matched

// Whether a symbol is a special token such as <eos>, not made from bytes or characters.
bool is_bracketed(std::string_view symbol) {
  return count_characters(symbol) > 2 && (symbol.front() == '<' || symbol.front() == '[') &&
         (symbol.back() == '>' || symbol.back() == ']');
}

// The bytes of a symbol of a trie; none: it is not lower-case hexadecimal.
std::optional<std::string> bytes_of_hex(std::string_view symbol) {
  static constexpr std::string_view kDigits = "0123456789abcdef";
  if (symbol.size() % 2 != 0) return std::nullopt;
  std::string bytes;
  for (std::size_t i = 0; i < symbol.size(); i += 2) {
    const std::size_t high = kDigits.find(symbol[i]), low = kDigits.find(symbol[i + 1]);
    if (high == std::string_view::npos || low == std::string_view::npos) return std::nullopt;
    bytes += static_cast<char>(static_cast<unsigned char>(high << 4 | low));
  }
  return bytes;
}

bool is_of_kind(std::string_view symbol, VocabularyKind kind) {
  switch (kind) {
    case VocabularyKind::words: return true;
    case VocabularyKind::characters: return is_bracketed(symbol) || count_characters(symbol) == 1;
    case VocabularyKind::bytes: return is_bracketed(symbol) || is_byte_symbol(symbol);
    case VocabularyKind::symbols: return symbol.size() <= kLongestSymbol;
    case VocabularyKind::trie: return symbol.size() <= 2 * kLongestSymbol && bytes_of_hex(symbol).has_value();
  }
  return false;
}

}  // namespace

// Whether a symbol is the decimal number of a byte.
bool is_byte_symbol(std::string_view symbol) {
  const bool is_number = !symbol.empty() && symbol.size() <= 3 &&
                         symbol.find_first_not_of("0123456789") == std::string_view::npos;
  return is_number && (symbol.size() == 1 || symbol[0] != '0') && std::stoi(std::string(symbol)) < 256;
}

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
      if (kind == kKinds.end()) {
        throw broken("its kind is none of words, characters, bytes, trie and symbols");
      }
      vocabulary.kind = static_cast<VocabularyKind>(kind - kKinds.begin());
      has_kind = true;
    } else if (name == "lower_case") {
      if (part.as<bool>() == nullptr) throw broken("lower_case is neither true nor false");
      vocabulary.lower_case = *part.as<bool>();
    } else if (name == "symbols") {
      has_symbols = part.as<json::Array>() != nullptr;
      for (json::Value& each : has_symbols ? *part.as<json::Array>() : json::Array()) {
        auto* symbol = each.as<std::string>();
        if (symbol == nullptr) throw broken("symbols must be texts");
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
    if (symbol.empty() && vocabulary.kind == VocabularyKind::trie) continue;  // an id without text
    if (symbol.empty()) throw broken("symbols must be texts that are not empty");
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
  const bool is_matched = vocabulary.kind == VocabularyKind::trie || vocabulary.kind == VocabularyKind::symbols;
  if (is_matched && vocabulary.lower_case) throw broken(std::string(vocabulary.kind_name()) + " have no lower_case");
  std::tie(vocabulary.unk, vocabulary.line_start, vocabulary.line_end, vocabulary.space) =
      std::tie(roles[0], roles[1], roles[2], roles[3]);
  return vocabulary;
}

std::string Vocabulary::bytes_of(std::size_t id) const {
  if (kind == VocabularyKind::symbols) return symbols[id] == unk || symbols[id] == line_end ? "" : symbols[id];
  return *bytes_of_hex(symbols[id]);
}

}  // namespace xlruntime
