#include "vocabulary.h"

#include "../manifest_fields.h"
#include "../safetensors.h"
#include "../unicode.h"

namespace xlruntime {

namespace {

constexpr const char* kFormat = "xlexport vocabulary";
constexpr const char* kKinds[] = {"words", "characters", "bytes", "trie", "symbols"};
constexpr std::size_t kLongestSymbol = 1000;  // bytes of one that is matched

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
  switch (kind) {
    case VocabularyKind::words: return true;
    case VocabularyKind::characters: return is_bracketed(symbol) || count_characters(symbol) == 1;
    case VocabularyKind::bytes: return is_bracketed(symbol) || is_byte_symbol(symbol);
    case VocabularyKind::symbols: return symbol.size() <= kLongestSymbol;
    case VocabularyKind::trie: return symbol.size() <= 2 * kLongestSymbol && bytes_of_hexadecimal(symbol).has_value();
  }
  return false;
}

}  // namespace

std::optional<std::int64_t> Vocabulary::id_of(std::string_view symbol) const {
  const auto found = index_.find(symbol);
  return found == index_.end() ? std::nullopt : std::optional(found->second);
}

std::optional<std::int64_t> Vocabulary::id_of_role(const std::optional<std::string>& symbol) const {
  return symbol ? id_of(*symbol) : std::nullopt;
}

const char* Vocabulary::kind_name() const { return kKinds[static_cast<std::size_t>(kind)]; }

Vocabulary Vocabulary::read(const std::filesystem::path& path) {
  return from_json(json::parse(read_file(path), path.string(), XLR_ERROR_VOCABULARY), path.string());
}

Vocabulary Vocabulary::from_json(const json::Value& value, const std::string& where) {
  Fields fields(value, where, XLR_ERROR_VOCABULARY);
  if (fields.text("format") != kFormat) throw fields.error("no vocabulary that xlexport wrote");
  Vocabulary vocabulary;
  vocabulary.kind = static_cast<VocabularyKind>(fields.choice("kind", kKinds));
  vocabulary.lower_case = fields.has("lower_case") && fields.boolean("lower_case");
  for (const json::Value& each : fields.list("symbols")) {
    const auto* symbol = each.as<std::string>();
    if (symbol == nullptr) throw fields.error("symbols must be texts");
    vocabulary.symbols.push_back(*symbol);
  }
  if (vocabulary.symbols.empty()) throw fields.error("a vocabulary without symbols");
  for (std::size_t i = 0; i < vocabulary.size(); ++i) {  // now they stay where they are
    const std::string& symbol = vocabulary.symbols[i];
    if (symbol.empty() && vocabulary.kind == VocabularyKind::trie) continue;  // an id without text
    if (symbol.empty()) throw fields.error("symbols must be texts that are not empty");
    if (!vocabulary.index_.emplace(symbol, static_cast<std::int64_t>(i)).second) {
      throw fields.error("the symbol " + shown(symbol) + " occurs more than once");
    }
    if (!is_of_kind(symbol, vocabulary.kind)) {
      throw fields.error("the symbol " + shown(symbol) + " is not of the " + vocabulary.kind_name());
    }
  }
  const auto role = [&](const char* name, bool is_of_kind) -> std::optional<std::string> {
    if (!fields.has(name)) return std::nullopt;
    const std::string& symbol = fields.text(name);
    if (!vocabulary.id_of(symbol)) throw fields.error(name + (" is " + shown(symbol)) + ", which is not a symbol");
    if (!is_of_kind) throw fields.error(std::string(vocabulary.kind_name()) + " have no " + name);
    return symbol;
  };
  vocabulary.unk = role("unk", true);
  vocabulary.line_start = role("line_start", vocabulary.kind == VocabularyKind::words);
  vocabulary.line_end = role("line_end", true);
  vocabulary.space = role("space", vocabulary.kind == VocabularyKind::characters);
  const bool is_matched = vocabulary.kind == VocabularyKind::trie || vocabulary.kind == VocabularyKind::symbols;
  if (is_matched && vocabulary.lower_case) {
    throw fields.error(std::string(vocabulary.kind_name()) + " have no lower_case");
  }
  fields.end();
  return vocabulary;
}

std::string Vocabulary::text_of(std::size_t id) const {
  const std::string& symbol = symbols[id];
  if (kind == VocabularyKind::trie) return *bytes_of_hexadecimal(symbol);
  if (kind != VocabularyKind::bytes || !is_byte_symbol(symbol)) return symbol;
  return std::string(1, static_cast<char>(static_cast<unsigned char>(std::stoi(symbol))));
}

bool Vocabulary::is_text(std::size_t id) const {
  const std::string& symbol = symbols[id];
  switch (kind) {
    case VocabularyKind::words: return false;
    case VocabularyKind::characters: return count_characters(symbol) == 1;
    case VocabularyKind::bytes: return is_byte_symbol(symbol);
    case VocabularyKind::trie: return !symbol.empty();
    case VocabularyKind::symbols: return symbol != unk && symbol != line_end;
  }
  return false;
}

}  // namespace xlruntime
