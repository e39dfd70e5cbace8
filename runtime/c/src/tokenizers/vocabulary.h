// A vocabulary (vocabulary.json): the symbol of each token id.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "../json.h"
#include "tokenizer.h"

namespace xlruntime {

enum class VocabularyKind {
  words,       // text between white space
  characters,  // one character each
  bytes,       // decimal numbers of bytes, "32" for a space
  trie,        // the hexadecimal digits of some bytes each; "" is an id without text
  symbols,     // one or more characters each
};

class Vocabulary {
 public:
  // Throws XLR_ERROR_VOCABULARY: the file is not a vocabulary, or its parts do not fit together.
  static Vocabulary read(const std::filesystem::path& path);
  static Vocabulary from_json(const json::Value& value, const std::string& where);

  Vocabulary(const Vocabulary&) = delete;
  Vocabulary& operator=(const Vocabulary&) = delete;
  Vocabulary(Vocabulary&&) = default;
  Vocabulary& operator=(Vocabulary&&) = default;

  std::size_t size() const { return symbols.size(); }
  std::optional<std::int64_t> id_of(std::string_view symbol) const;
  std::optional<std::int64_t> id_of_role(const std::optional<std::string>& symbol) const;
  const char* kind_name() const;
  std::string text_of(std::size_t id) const;  // what a symbol stands for, which need not be UTF-8
  bool is_text(std::size_t id) const;         // whether a place of a text may have it, but not of words

  VocabularyKind kind = VocabularyKind::words;
  std::vector<std::string> symbols;
  std::optional<std::string> unk;         // for text that the vocabulary lacks; none: such text is refused
  std::optional<std::string> line_start;  // before the tokens of every line
  std::optional<std::string> line_end;    // after the tokens of every line
  std::optional<std::string> space;       // for characters: symbol for a space
  bool lower_case = false;                // whether text is lower-cased first

 private:
  Vocabulary() = default;

  // The keys are views of `symbols`, which stay where they are if the object is moved.
  std::unordered_map<std::string_view, std::int64_t> index_;
};

std::unique_ptr<Tokenizer> make_vocabulary_tokenizer(Vocabulary vocabulary);

}  // namespace xlruntime
