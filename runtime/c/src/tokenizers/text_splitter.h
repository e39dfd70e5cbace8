// Split documents, of text and of bytes, by the rules of a vocabulary.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer.h"
#include "vocabulary.h"

namespace xlruntime {

// Splits a document of words or characters.
//
// A line ends with a newline, a carriage return or both. A byte-order mark at the beginning of a text is skipped. White
// space between words belongs to the word or line end after it.
class TextSplitter {
 public:
  // `previous` is the last token before the text; none: the text is the beginning of a document.
  TextSplitter(const Vocabulary& vocabulary, std::string name, TextCounts& counts,
               std::optional<std::int64_t> previous);

  // Take the next characters, whole ones, and return the tokens that they complete.
  TokenPiece take(std::string_view text);

  // Return the tokens of the held text.
  TokenPiece flush();

  // Return the tokens that end a last line without newline.
  TokenPiece end();

 private:
  TokenPiece tokens(std::string_view text);
  std::string_view next_unit(std::string_view text, std::size_t& place) const;
  std::size_t skip_mark(std::string_view text);
  std::vector<std::int64_t> newline_ids(std::string_view newline);
  std::vector<std::int64_t> ids_of(std::string_view unit) const;
  void drop(std::string_view text);

  const Vocabulary& vocabulary_;
  std::string name_;
  TextCounts& counts_;
  bool words_;
  bool splits_line_ends_;  // whether a carriage return is a symbol, and so \r\n are two
  std::optional<std::int64_t> unk_, line_start_, line_end_, newline_, space_;
  std::string held_;             // text whose tokens depend on what follows
  std::int64_t held_chars_ = 0;  // characters of it since the last token
  std::int64_t chars_ = 0, bytes_ = 0;  // before the held text; bytes only until the first token
  std::int64_t line_ = 1;
  bool begun_;         // the line's line_start, if there is one, was returned
  bool open_ = false;  // the line has text, and no newline yet
  bool first_;         // no text yet
  bool empty_;         // no token yet
};

// Splits a document of bytes.
class ByteSplitter {
 public:
  ByteSplitter(const Vocabulary& vocabulary, std::string name, TextCounts& counts);

  TokenPiece take(std::string_view raw);
  TokenPiece end();

 private:
  std::string name_;
  TextCounts& counts_;
  std::array<std::int64_t, 256> table_;  // token of each byte
  std::optional<std::int64_t> line_end_;
  std::int64_t bytes_ = 0;
  bool open_ = false;
  bool empty_ = true;
};

}  // namespace xlruntime
