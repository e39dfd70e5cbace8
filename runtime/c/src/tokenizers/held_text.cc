#include "held_text.h"

#include <utility>

#include "../errors.h"
#include "../unicode.h"

namespace xlruntime {
namespace {

constexpr std::string_view kSpaces(" \t\n\r\v\f", 6);  // ASCII white space, which is between words
constexpr std::int64_t kLongestRun = std::int64_t{16} << 20;  // characters without the end of a token

Error not_utf8(const std::string& name, std::int64_t at, char byte) {
  const bool is_control = static_cast<unsigned char>(byte) < 0xa0;  // of Latin-1
  return Error(XLR_ERROR_TEXT,
               name + ": not UTF-8 at byte " + std::to_string(at) + " (0x" +
                   hexadecimal({&byte, 1}) + "), and this bundle's tokenizer needs text.",
               "Convert it, for instance: iconv -f " + std::string(is_control ? "cp1252" : "latin1") +
                   " -t utf-8 " + name);
}

}  // namespace

void TextCounts::add(std::string_view raw) {
  bytes += static_cast<std::int64_t>(raw.size());
  chars += static_cast<std::int64_t>(count_characters(raw));
  for (const char mark : raw) {
    const bool inside = kSpaces.find(mark) == std::string_view::npos;
    words += inside && !in_word_ ? 1 : 0;
    in_word_ = inside;
  }
}

HeldText::HeldText(const Tokenizer& tokenizer, std::string name, Unsettled unsettled)
    : tokenizer_(&tokenizer), unsettled_(unsettled) {
  place_.name = std::move(name);
}

TokenPiece HeldText::take(std::string_view raw) {
  tokenizer_->require_text(place_.name);
  const std::size_t before = held_.size() - tail_;
  counts_.add(raw);
  held_ += raw;
  if (tokenizer_->needs_utf8()) check_utf8(before);
  const std::size_t whole = held_.size() - tail_;
  TokenPiece piece;
  // To look at a long held text again with each piece would take time that grows with its square.
  if (unsettled_ == Unsettled::cut || whole >= enough_) {
    piece = tokens_of(tokenizer_->settled(std::string_view(held_).substr(0, whole)), false);
    enough_ = 2 * (held_.size() - tail_);
  }
  const std::size_t left = held_.size() - tail_;
  if (unsettled_ == Unsettled::cut && left > kMostHeld) {
    piece.append(tokens_of(left, false));
    ++unsettled_cuts_;
  } else if (static_cast<std::int64_t>(left) > kLongestRun && held_places() > kLongestRun) {
    throw Error(XLR_ERROR_TEXT,
                place_.name + ": a word of more than " + std::to_string(kLongestRun) +
                    " characters, or a run of as many without the certain end of a token.",
                "Check that it is a text of words.");
  }
  return piece;
}

TokenPiece HeldText::rest(bool ends) {
  const std::size_t whole = held_.size() - tail_;
  if (tail_ > 0) throw not_utf8(place_.name, place_.bytes + static_cast<std::int64_t>(whole), held_[whole]);
  if (!ends && held_.empty()) return {};
  tokenizer_->require_text(place_.name);
  return tokens_of(whole, ends);
}

void HeldText::drop_mark() {
  counts_.add(kByteOrderMark);
  counts_.dropped_bytes += static_cast<std::int64_t>(kByteOrderMark.size());
  counts_.dropped_chars += 1;
  place_.bytes += static_cast<std::int64_t>(kByteOrderMark.size());
  place_.chars += 1;
}

bool HeldText::hold(std::string_view held) {
  held_ = held;
  tail_ = tokenizer_->needs_utf8() ? unfinished_tail(held_) : 0;
  return first_wrong_byte(held.substr(0, held.size() - tail_)) == std::string_view::npos;
}

std::int64_t HeldText::held_places() const {
  const std::string_view whole = std::string_view(held_).substr(0, held_.size() - tail_);
  return static_cast<std::int64_t>(tokenizer_->needs_utf8() ? count_characters(whole) : whole.size());
}

void HeldText::check_utf8(std::size_t from) {
  const std::string_view fresh = std::string_view(held_).substr(from);
  tail_ = unfinished_tail(fresh);
  const std::size_t wrong = first_wrong_byte(fresh.substr(0, fresh.size() - tail_));
  if (wrong == std::string_view::npos) return;
  throw not_utf8(place_.name, place_.bytes + static_cast<std::int64_t>(from + wrong), fresh[wrong]);
}

TokenPiece HeldText::tokens_of(std::size_t size, bool ends) {
  if (size == 0 && !ends) return {};
  const std::string_view text = std::string_view(held_).substr(0, size);
  TokenPart part = tokenizer_->encode(text, place_, ends);
  const std::int64_t before = taken_places();
  for (std::int64_t& start : part.starts) start += before;
  for (std::int64_t& end : part.ends) end += before;
  counts_.dropped_bytes += part.dropped_bytes;
  counts_.dropped_chars += part.dropped_chars;
  if (empty_ && !part.ids.empty()) {
    counts_.first_token_bytes = part.first_bytes;
    counts_.first_token_chars = part.first_chars;
    empty_ = false;
  }
  place_.bytes += static_cast<std::int64_t>(size);
  place_.chars += static_cast<std::int64_t>(count_characters(text));
  place_.is_first = place_.is_first && size == 0;
  held_.erase(0, size);
  return std::move(part);
}

std::vector<std::int64_t> Tokenizer::encode_whole(std::string_view text) const {
  HeldText growing(*this, "the text", HeldText::Unsettled::refuse);
  TokenPiece piece = growing.take(text);
  piece.append(growing.rest(true));
  return std::move(piece.ids);
}

}  // namespace xlruntime
