#include "vocabulary.h"

#include <algorithm>
#include <array>
#include <utility>

#include "../error.h"
#include "../messages.h"
#include "../unicode.h"

namespace xlruntime {

namespace {

constexpr const char* kFormat = "xlexport vocabulary";
constexpr const char* kRepair = "Convert the checkpoint again.";
constexpr std::array<const char*, 3> kKinds{"words", "characters", "bytes"};
constexpr std::array<const char*, 4> kRoles{"unk", "line_start", "line_end", "space"};

// Whether a symbol is a special token such as <eos>, not made from bytes or characters.
bool is_bracketed(std::string_view symbol) {
  return count_characters(symbol) > 2 && (symbol.front() == '<' || symbol.front() == '[') &&
         (symbol.back() == '>' || symbol.back() == ']');
}

bool is_of_kind(std::string_view symbol, VocabularyKind kind) {
  if (kind == VocabularyKind::words || is_bracketed(symbol)) return true;
  return kind == VocabularyKind::characters ? count_characters(symbol) == 1 : is_byte_symbol(symbol);
}

// The symbols as text, or the problem of others.
std::string read_symbols(json::Array& given, std::vector<std::string>& symbols) {
  std::vector<std::string> wrong;
  for (std::size_t i = 0; i < given.size(); ++i) {
    auto* text = given[i].as<std::string>();
    if (text == nullptr || text->empty() || first_wrong_byte(*text) != std::string_view::npos) {
      wrong.push_back(std::to_string(i) + " is " + shown_value(given[i]));
    } else {
      symbols.push_back(std::move(*text));
    }
  }
  return wrong.empty() ? "" : "symbols must be text that is not empty, but symbol " + listed(wrong);
}

std::string repeated_symbols(const std::vector<std::string>& symbols) {
  std::unordered_map<std::string_view, int> times;
  for (const std::string& symbol : symbols) ++times[symbol];
  std::vector<std::string> twice;
  for (const std::string& symbol : symbols) {
    int& found = times[symbol];
    if (found > 1) twice.push_back(shown(symbol));
    found = 0;  // each once, at its first place
  }
  return "symbols occur more than once: " + listed(twice);
}

}  // namespace

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

const char* Vocabulary::kind_name() const { return kKinds[static_cast<std::size_t>(kind)]; }

Vocabulary Vocabulary::read(const std::filesystem::path& path, Limits limits) {
  Budget budget(limits, path.string(), ErrorCode::bundle, kRepair);
  return from_json(json::parse(read_at_most(path, budget), budget), path.string());
}

Vocabulary Vocabulary::from_json(json::Value value, const std::string& where) {
  const auto broken = [&where](const std::string& problem) {
    return Error(ErrorCode::bundle, where + ": a broken vocabulary (" + one_line(problem) + ").", kRepair);
  };
  auto* fields = value.as<json::Object>();
  const json::Value* format = fields == nullptr ? nullptr : fields->find("format");
  if (format == nullptr || format->as<std::string>() == nullptr || *format->as<std::string>() != kFormat) {
    throw Error(ErrorCode::bundle, where + ": not a vocabulary that xlexport wrote.", kRepair);
  }
  Vocabulary vocabulary;
  json::Value kind, lower_case = false;
  json::Array* symbols = nullptr;
  const std::string* unknown = nullptr;
  std::array<json::Value, kRoles.size()> roles;
  bool has_kind = false;
  for (auto& [name, part] : fields->members) {
    const auto role = std::find(kRoles.begin(), kRoles.end(), name);
    if (role != kRoles.end()) {
      roles[static_cast<std::size_t>(role - kRoles.begin())] = part;
    } else if (name == "kind") {
      kind = part;
      has_kind = true;
    } else if (name == "lower_case") {
      lower_case = part;
    } else if (name == "symbols") {
      symbols = part.as<json::Array>();
    } else if (name != "format") {
      unknown = &name;
    }
  }
  if (symbols == nullptr) throw broken("its symbols are not a list");
  if (unknown != nullptr) throw broken("the field " + named(*unknown) + " is unknown");
  if (!has_kind) throw broken("its kind is missing");
  const auto known = std::find_if(kKinds.begin(), kKinds.end(), [&kind](const char* name) {
    return kind.as<std::string>() != nullptr && *kind.as<std::string>() == name;
  });
  if (known == kKinds.end()) {
    throw broken("a vocabulary of " + shown_value(kind) + "; expected one of words, characters, bytes.");
  }
  vocabulary.kind = static_cast<VocabularyKind>(known - kKinds.begin());
  if (const std::string wrong = read_symbols(*symbols, vocabulary.symbols); !wrong.empty()) throw broken(wrong + ".");

  std::vector<std::string> problems, strange;
  if (vocabulary.symbols.empty()) problems.push_back("a vocabulary without symbols");
  for (std::size_t i = 0; i < vocabulary.size(); ++i) {
    vocabulary.index_.emplace(vocabulary.symbols[i], static_cast<std::int64_t>(i));
    if (!is_of_kind(vocabulary.symbols[i], vocabulary.kind)) strange.push_back(shown(vocabulary.symbols[i]));
  }
  if (vocabulary.index_.size() < vocabulary.size()) problems.push_back(repeated_symbols(vocabulary.symbols));
  if (!strange.empty()) {
    problems.push_back("symbols that are not " + std::string(vocabulary.kind_name()) + ": " + listed(strange));
  }
  const std::array<std::optional<std::string>*, kRoles.size()> places{&vocabulary.unk, &vocabulary.line_start,
                                                                      &vocabulary.line_end, &vocabulary.space};
  for (std::size_t i = 0; i < kRoles.size(); ++i) {
    if (roles[i].is_null()) continue;
    const auto* symbol = roles[i].as<std::string>();
    if (symbol == nullptr || !vocabulary.id_of(*symbol)) {
      problems.push_back(kRoles[i] + (" is " + shown_value(roles[i])) + ", which is not a symbol of the vocabulary");
    } else {
      *places[i] = *symbol;
    }
  }
  for (const auto& [role, only] : {std::pair(3, VocabularyKind::characters), std::pair(1, VocabularyKind::words)}) {
    const auto place = static_cast<std::size_t>(role);
    if (roles[place].is_null() || vocabulary.kind == only) continue;
    problems.push_back(kRoles[place] + (" is " + shown_value(roles[place])) + ", expected None for " +
                       vocabulary.kind_name());
  }
  if (const auto* flag = lower_case.as<bool>()) {
    vocabulary.lower_case = *flag;
  } else {
    problems.push_back("lower_case is " + shown_value(lower_case) + ", expected true or false");
  }
  if (!problems.empty()) throw broken(joined(problems, "; ") + ".");
  return vocabulary;
}

}  // namespace xlruntime
