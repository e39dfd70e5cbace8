// Text to the ids of a vocabulary.
//
// A line ends with a newline, a carriage return or both. A byte-order mark at the beginning of a text of words or
// characters is skipped. White space between words belongs to the word or line end after it.
#pragma once

#include <memory>

#include "../errors.h"
#include "tokenizer.h"
#include "vocabulary.h"

namespace xlruntime {

std::unique_ptr<Tokenizer> make_vocabulary_tokenizer(Vocabulary vocabulary);

// That of a vocabulary of a trie or of symbols.
std::unique_ptr<Tokenizer> make_symbol_tokenizer(Vocabulary vocabulary);

// What all vocabularies have.
class VocabularyTokenizer : public Tokenizer {
 public:
  explicit VocabularyTokenizer(Vocabulary vocabulary);

  bool begins_line(std::int64_t token) const override { return token != line_end_; }
  std::string decode(const std::vector<std::int64_t>& ids) const override;
  std::optional<std::int64_t> unk_id() const override { return unk_; }
  std::optional<std::int64_t> size() const override { return static_cast<std::int64_t>(vocabulary_.size()); }

 protected:
  // The text of symbols, one after the other, which may not be UTF-8.
  virtual std::string joined(const std::vector<std::int64_t>& ids) const;
  virtual std::string text_of(std::size_t id) const { return vocabulary_.symbols[id]; }

  // Add the tokens of the end of a document, `chars` after the part begins.
  void end_line(std::int64_t chars, TextPlace& place, TokenPart& part) const;
  Error unknown(std::string_view symbol, const TextPlace& place) const;

  Vocabulary vocabulary_;
  std::optional<std::int64_t> unk_, line_start_, line_end_;
  std::optional<std::int64_t> newline_;  // for a line end: its symbol, or line_end
  bool has_newline_ = false;             // the vocabulary has a symbol for it
};

// The length of the line end at a place of a text, or 0. `pairs`: a carriage return and a newline are one.
std::size_t newline_length(std::string_view text, std::size_t place, bool pairs);

std::int64_t characters(std::string_view text);

}  // namespace xlruntime
