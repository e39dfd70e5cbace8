// Convert text to the ids of a vocabulary, piece by piece, with offsets into the original text.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer.h"
#include "vocabulary.h"

namespace xlruntime {

class VocabularyTokenizer : public Tokenizer {
 public:
  explicit VocabularyTokenizer(Vocabulary vocabulary);

  const Vocabulary& vocabulary() const { return vocabulary_; }

  std::unique_ptr<DocumentReader> read(const std::string& name) const override;
  std::vector<std::int64_t> encode_piece(std::string_view text, std::optional<std::int64_t> previous) const override;

  // Words joined by spaces, with a newline for each line end; or the original bytes or characters.
  std::string decode(const std::vector<std::int64_t>& ids) const override;

  std::optional<std::int64_t> unk_id() const override { return vocabulary_.id_of_role(vocabulary_.unk); }

 private:
  Vocabulary vocabulary_;
};

}  // namespace xlruntime
