// Text to token ids and back, a part at a time.
#pragma once

#include <cstddef>
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

// The place in a text before which its tokens are known.
struct TextPlace {
  std::string name;                      // of the text, for messages
  std::int64_t bytes = 0, chars = 0;     // before it
  std::int64_t line = 1;
  bool is_first = true;     // no text before it
  bool line_begun = false;  // the line's first token was returned
  bool line_open = false;   // the line has text, and no line end yet
};

// The tokens of a part of a text, with places in the part, and what only the tokenizer knows of them.
struct TokenPart : TokenPiece {
  std::int64_t first_bytes = 0, first_chars = 0;      // that the first token stands for
  std::int64_t dropped_bytes = 0, dropped_chars = 0;  // covered by no token
};

// Safe to share between threads.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Whether the bundle has a tokenizer here.
  virtual bool reads_text() const { return true; }

  // Throws XLR_ERROR_TEXT if it has none. `name` is that of the text.
  virtual void require_text(const std::string& /*name*/) const {}

  // Whether texts must be UTF-8. Then `settled` and `encode` get whole characters, and places count characters.
  virtual bool needs_utf8() const { return true; }

  // Whether it skips a byte-order mark at the beginning of a text by itself.
  virtual bool skips_mark() const { return false; }

  // How many bytes of `text` have final tokens, whatever follows. It begins where earlier text was settled. The
  // settled part and the rest have, each for itself, exactly the tokens of both together.
  virtual std::size_t settled(std::string_view text) const { return text.size(); }

  // The tokens of a part of a text from `place` on; moves line and flags of `place` behind it. `ends`: the document
  // ends after it, and so does its last line. Throws XLR_ERROR_TOKEN, XLR_ERROR_TEXT.
  virtual TokenPart encode(std::string_view text, TextPlace& place, bool ends) const = 0;

  // Whether a token that was given or drawn leaves a line that has begun.
  virtual bool begins_line(std::int64_t /*token*/) const { return true; }

  // The text of token ids. Throws XLR_ERROR_TOKEN: an id is outside the vocabulary; XLR_ERROR_TEXT: no tokenizer.
  virtual std::string decode(const std::vector<std::int64_t>& ids) const = 0;

  // The id of text that the vocabulary lacks.
  virtual std::optional<std::int64_t> unk_id() const { return std::nullopt; }

  // Ids from this one on have no text; none: not known.
  virtual std::optional<std::int64_t> size() const { return std::nullopt; }

  // The tokens of a whole text, the same as a document's.
  std::vector<std::int64_t> encode_whole(std::string_view text) const;
};

// The tokenizer of a bundle in `folder`. Kinds that this runtime lacks take ids only, as `none` does. Throws
// XLR_ERROR_VOCABULARY.
std::unique_ptr<Tokenizer> make_tokenizer(const Bundle& bundle, const std::filesystem::path& folder);

// Throws XLR_ERROR_TOKEN: an id is outside the vocabulary. `first` is the place of the first of them in `name`.
void check_ids(const std::int64_t* ids, std::size_t n, std::int64_t vocab_size, const std::string& name,
               std::int64_t first = 0);

}  // namespace xlruntime
