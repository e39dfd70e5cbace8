// A text that grows: it gives the tokens that are final, and holds the text whose tokens depend on what follows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "tokenizer.h"

namespace xlruntime {

inline constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
inline constexpr std::size_t kMostHeld = 4096;  // bytes that a stream holds, without an unfinished character

// Counts of a text, kept while it is read.
struct TextCounts {
  std::int64_t bytes = 0, chars = 0, words = 0;
  std::int64_t first_token_bytes = 0, first_token_chars = 0;  // covered by the first token, which has no score
  std::int64_t dropped_bytes = 0, dropped_chars = 0;          // covered by no token

  void add(std::string_view raw);

 private:
  bool in_word_ = false;
};

// Its tokens are those of the whole text, however it is cut. Copies are independent; the tokenizer must outlive them.
class HeldText {
 public:
  // What happens to a text that shows no end of a token for too long.
  enum class Unsettled {
    refuse,  // after 16 MiB: for documents
    cut,     // after kMostHeld, and counted: for streams
  };

  // Throws XLR_ERROR_TEXT if the bundle has no tokenizer here. `name` is for messages.
  HeldText(const Tokenizer& tokenizer, std::string name, Unsettled unsettled);

  // Take the next bytes, and return the tokens that are final now. Throws XLR_ERROR_TEXT, XLR_ERROR_TOKEN, after which
  // only a copy from before is of use.
  TokenPiece take(std::string_view raw);

  // Return the tokens of the held text, as if the text ended here; `ends`: the document does, and its last line.
  TokenPiece rest(bool ends);

  // Take a byte-order mark, which no token covers.
  void drop_mark();

  // Take a token that was given or drawn, which is no text; nothing is held.
  void follow(std::int64_t token) {
    place_.line_begun = tokenizer_->begins_line(token);
    place_.is_first = false;
  }

  // Hold a text, as a saved stream did. Return whether it is one that a text can hold.
  bool hold(std::string_view held);

  const std::string& held() const { return held_; }
  // Places of the text whose tokens were taken, and of the held one without an unfinished character.
  std::int64_t taken_places() const { return tokenizer_->needs_utf8() ? place_.chars : place_.bytes; }
  std::int64_t held_places() const;
  std::int64_t unsettled_cuts() const { return unsettled_cuts_; }
  const TextCounts& counts() const { return counts_; }

 private:
  void check_utf8(std::size_t from);
  TokenPiece tokens_of(std::size_t size, bool ends);

  const Tokenizer* tokenizer_;
  Unsettled unsettled_;
  TextPlace place_;
  TextCounts counts_;
  std::string held_;
  std::size_t tail_ = 0;     // bytes at its end that begin a character
  std::size_t enough_ = 0;   // bytes to hold before looking for settled text again
  bool empty_ = true;        // no token yet
  std::int64_t unsettled_cuts_ = 0;
};

}  // namespace xlruntime
