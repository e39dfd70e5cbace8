// A vocabulary (vocabulary.json): the symbol of each token id, and the rules by which text becomes ids, piece by piece.
//
// A line ends with a newline, a carriage return or both. A byte-order mark at the beginning of a text is skipped. White
// space between words belongs to the word or line end after it.
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
};

class Vocabulary {
 public:
  // Throws XLR_ERROR_VOCABULARY: the file is not a vocabulary, or its parts do not fit together.
  static Vocabulary read(const std::filesystem::path& path);
  static Vocabulary from_json(json::Value value, const std::string& where);

  Vocabulary(const Vocabulary&) = delete;
  Vocabulary& operator=(const Vocabulary&) = delete;
  Vocabulary(Vocabulary&&) = default;
  Vocabulary& operator=(Vocabulary&&) = default;

  std::size_t size() const { return symbols.size(); }
  std::optional<std::int64_t> id_of(std::string_view symbol) const;
  std::optional<std::int64_t> id_of_role(const std::optional<std::string>& symbol) const;
  const char* kind_name() const;

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

// Converts text to the ids of a vocabulary, piece by piece, with offsets into the original text.
class VocabularyTokenizer : public Tokenizer {
 public:
  explicit VocabularyTokenizer(Vocabulary vocabulary) : vocabulary_(std::move(vocabulary)) {}

  std::unique_ptr<DocumentReader> read(const std::string& name) const override;
  std::vector<std::int64_t> encode_piece(std::string_view text, std::optional<std::int64_t> previous) const override;

  // Words joined by spaces, with a newline for each line end; or the original bytes or characters.
  std::string decode(const std::vector<std::int64_t>& ids) const override;

  std::optional<std::int64_t> unk_id() const override { return vocabulary_.id_of_role(vocabulary_.unk); }

 private:
  Vocabulary vocabulary_;
};

}  // namespace xlruntime
