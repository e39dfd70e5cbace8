// Text to token ids and back: bytes, vocabularies, and bundles without a tokenizer.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "../bundle.h"

namespace xlruntime {

// Consecutive tokens of a document. `starts` and `ends` are their places in it: bytes if tokens are
// bytes, else characters.
struct TokenPiece {
  std::vector<std::int64_t> ids, starts, ends;

  void add(std::int64_t id, std::int64_t start, std::int64_t end) {
    ids.push_back(id);
    starts.push_back(start);
    ends.push_back(end);
  }
  void append(const TokenPiece& other);
};

// Counts of a document, kept while it is read.
struct TextCounts {
  std::int64_t bytes = 0, chars = 0, words = 0;
  std::int64_t first_token_bytes = 0, first_token_chars = 0;  // covered by the first token, which has no score
  std::int64_t dropped_bytes = 0, dropped_chars = 0;          // covered by no token

  void add(std::string_view raw);

 private:
  bool in_word_ = false;
};

// The tokens of one document, piece by piece at constant memory. The same tokens come out however it is cut.
class DocumentReader {
 public:
  virtual ~DocumentReader() = default;

  // Take the next bytes, and return the tokens that they complete. Throws XLR_ERROR_TEXT, XLR_ERROR_TOKEN.
  virtual TokenPiece take(std::string_view raw) = 0;

  // Return the tokens of the end of the document.
  virtual TokenPiece end() = 0;

  TextCounts counts;
};

// Safe to share between threads.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // A reader for one document; `name` is for messages. Throws XLR_ERROR_TEXT if the bundle has no tokenizer here.
  virtual std::unique_ptr<DocumentReader> read(const std::string& name) const = 0;

  // The tokens of the next piece of a stream, which does not end its last line. `previous` is the last token before
  // it; none: the piece begins a text. Throws XLR_ERROR_TEXT, XLR_ERROR_TOKEN.
  virtual std::vector<std::int64_t> encode_piece(std::string_view text,
                                                 std::optional<std::int64_t> previous) const = 0;

  // The text of token ids, which must be of the vocabulary.
  virtual std::string decode(const std::vector<std::int64_t>& ids) const = 0;

  // The id of text that the vocabulary lacks.
  virtual std::optional<std::int64_t> unk_id() const { return std::nullopt; }

  // The tokens of a whole text, the same as `read` returns.
  std::vector<std::int64_t> encode(std::string_view text) const;
};

// The tokenizer of a bundle in `folder`. The kinds `tokenizers` and `sentencepiece` need libraries that this runtime
// does not have: such a tokenizer takes and gives ids only, as `none` does. Throws XLR_ERROR_VOCABULARY.
std::unique_ptr<Tokenizer> make_tokenizer(const Tokenization& entry, const std::filesystem::path& folder);

// Throws XLR_ERROR_TOKEN: an id is outside the vocabulary. `first` is the place of the first of them in `name`.
void check_ids(const std::int64_t* ids, std::size_t n, std::int64_t vocab_size, const std::string& name,
               std::int64_t first = 0);

}  // namespace xlruntime
