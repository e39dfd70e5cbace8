#include "unicode.h"

#include <algorithm>
#include <iterator>

namespace xlruntime {

namespace {

struct Range {
  std::int32_t first, last;
};

struct LowerRun {
  std::int32_t first, last, step, add;
};

#include "unicode_tables.inc"

constexpr std::string_view kDigits = "0123456789abcdef";
constexpr char32_t kSigma = 0x3a3, kSmallSigma = 0x3c3, kFinalSigma = 0x3c2;

template <class T, std::size_t n>
const T* find_range(const T (&table)[n], char32_t code) {
  const auto place = static_cast<std::int32_t>(code);
  const T* after = std::upper_bound(std::begin(table), std::end(table), place,
                                    [](std::int32_t wanted, const T& range) { return wanted < range.first; });
  return after != std::begin(table) && place <= (after - 1)->last ? after - 1 : nullptr;
}

// The length of the well-formed character, or of the longest beginning of one, at the front of `text`.
struct Front {
  std::size_t length;
  bool whole;
};

Front front(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  if (lead < 0x80) return {1, true};
  if (lead < 0xc2 || lead > 0xf4) return {1, false};
  const std::size_t length = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  // The second byte rules out surrogates, numbers beyond U+10FFFF, and longer forms of shorter characters.
  const unsigned char least = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
  const unsigned char most = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
  std::size_t found = 1;
  while (found < length && continues(text, found)) {
    const auto byte = static_cast<unsigned char>(text[found]);
    if (found == 1 && (byte < least || byte > most)) break;
    ++found;
  }
  return {found, found == length};
}

}  // namespace

std::size_t utf8_length(std::string_view text) {
  if (text.empty()) return 0;
  const Front found = front(text);
  return found.whole ? found.length : 0;
}

bool continues(std::string_view text, std::size_t place) {
  return place < text.size() && (static_cast<unsigned char>(text[place]) & 0xc0) == 0x80;
}

std::size_t character_before(std::string_view text, std::size_t place) {
  do --place;
  while (place > 0 && continues(text, place));
  return place;
}

std::size_t character_length(std::string_view text, std::size_t place) {
  const auto lead = static_cast<unsigned char>(text[place]);
  const std::size_t length = lead < 0xc0 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  return std::min(length, text.size() - place);
}

char32_t code_point(std::string_view text, std::size_t place) {
  const std::size_t length = character_length(text, place);
  const auto lead = static_cast<unsigned char>(text[place]);
  char32_t code = length == 1 ? lead : lead & (0xffu >> (length + 1));
  for (std::size_t i = 1; i < length; ++i) code = code << 6 | (static_cast<unsigned char>(text[place + i]) & 0x3f);
  return code;
}

void append_utf8(std::string& text, char32_t code) {
  static constexpr unsigned kLeads[] = {0, 0xc0, 0xe0, 0xf0};
  const auto byte = [&text](char32_t value) { text += static_cast<char>(static_cast<unsigned char>(value)); };
  unsigned more = code < 0x80 ? 0 : code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;  // bytes after the first one
  byte(kLeads[more] | code >> 6 * more);
  while (more-- > 0) byte(0x80 | (code >> 6 * more & 0x3f));
}

std::size_t count_characters(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(
      text.begin(), text.end(), [](char mark) { return (static_cast<unsigned char>(mark) & 0xc0) != 0x80; }));
}

std::string_view first_characters(std::string_view text, std::size_t n) {
  std::size_t place = 0;
  while (n-- > 0 && place < text.size()) place += character_length(text, place);
  return text.substr(0, place);
}

std::size_t first_wrong_byte(std::string_view text) {
  for (std::size_t place = 0; place < text.size();) {
    const Front found = front(text.substr(place));
    if (!found.whole) return place;
    place += found.length;
  }
  return std::string_view::npos;
}

std::size_t unfinished_tail(std::string_view text) {
  for (std::size_t back = 1; back <= std::min<std::size_t>(3, text.size()); ++back) {
    const std::string_view tail = text.substr(text.size() - back);
    if (continues(tail, 0)) continue;
    const Front found = front(tail);
    const auto lead = static_cast<unsigned char>(tail[0]);
    return !found.whole && found.length == back && lead >= 0xc2 && lead <= 0xf4 ? back : 0;
  }
  return 0;
}

std::string replace_wrong_bytes(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const Front found = front(text);
    result += found.whole ? text.substr(0, found.length) : std::string_view("\xef\xbf\xbd");
    text.remove_prefix(found.length);
  }
  return result;
}

std::string hexadecimal(std::string_view bytes) {
  std::string digits;
  for (const char mark : bytes) {
    const auto byte = static_cast<unsigned char>(mark);
    digits += {kDigits[byte >> 4], kDigits[byte & 15]};
  }
  return digits;
}

std::optional<std::string> bytes_of_hexadecimal(std::string_view digits) {
  if (digits.size() % 2 != 0) return std::nullopt;
  std::string bytes;
  for (std::size_t i = 0; i < digits.size(); i += 2) {
    const std::size_t high = kDigits.find(digits[i]), low = kDigits.find(digits[i + 1]);
    if (high == std::string_view::npos || low == std::string_view::npos) return std::nullopt;
    bytes += static_cast<char>(static_cast<unsigned char>(high << 4 | low));
  }
  return bytes;
}

bool is_space(char32_t code) { return find_range(kSpaces, code) != nullptr; }
bool is_control(char32_t code) { return find_range(kControls, code) != nullptr; }

std::string lower(std::string_view text) {
  std::u32string codes;
  for (std::size_t place = 0; place < text.size(); place += character_length(text, place)) {
    codes += code_point(text, place);
  }
  // A sigma is final if a letter with case is before it, and none after it in the same word.
  const auto is_final = [&codes](std::size_t place) {
    std::size_t before = place;
    while (before > 0 && find_range(kCaseIgnored, codes[before - 1]) != nullptr) --before;
    if (before == 0 || find_range(kCased, codes[before - 1]) == nullptr) return false;
    std::size_t after = place + 1;
    while (after < codes.size() && find_range(kCaseIgnored, codes[after]) != nullptr) ++after;
    return after == codes.size() || find_range(kCased, codes[after]) == nullptr;
  };
  std::string result;
  for (std::size_t i = 0; i < codes.size(); ++i) {
    const char32_t code = codes[i];
    const LowerRun* run = find_range(kLower, code);
    if (code == 0x130) {
      result += "i\xcc\x87";
    } else if (code == kSigma) {
      append_utf8(result, is_final(i) ? kFinalSigma : kSmallSigma);
    } else if (run != nullptr && (static_cast<std::int32_t>(code) - run->first) % run->step == 0) {
      append_utf8(result, static_cast<char32_t>(static_cast<std::int32_t>(code) + run->add));
    } else {
      append_utf8(result, code);
    }
  }
  return result;
}

}  // namespace xlruntime
