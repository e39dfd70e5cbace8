#include "character_tables.h"

#include <algorithm>
#include <utility>

#include "../unicode.h"

namespace xlruntime {
namespace {

constexpr char32_t kUnchanged = 0x300;  // characters below are in form C
constexpr char32_t kLastCharacter = 0x10ffff;
// Hangul: syllables are computed from a leading, a vowel and perhaps a trailing letter.
constexpr char32_t kSyllable = 0xac00, kLeading = 0x1100, kVowel = 0x1161, kTrailing = 0x11a7;
constexpr char32_t kLeadings = 19, kVowels = 21, kTrailings = 28, kSyllables = kLeadings * kVowels * kTrailings;

bool is_character(char32_t code) { return code <= kLastCharacter && (code >> 11) != 0x1b; }  // no surrogate

std::uint64_t key(char32_t first, char32_t second) { return std::uint64_t{first} << 32 | second; }

bool is_within(char32_t code, char32_t first, char32_t count) { return code >= first && code - first < count; }

}  // namespace

bool CharacterRanges::finish() {
  std::sort(ranges_.begin(), ranges_.end(), [](const Range& a, const Range& b) { return a.first < b.first; });
  std::int64_t last = -1;
  for (const Range& range : ranges_) {
    if (range.first <= last || range.last < range.first || range.last > kLastCharacter) return false;
    last = range.last;
    for (std::size_t code = range.first; code <= range.last && code < small_.size(); ++code) {
      small_[code] = range.number;
    }
  }
  return true;
}

std::uint8_t CharacterRanges::of(char32_t code) const {
  if (code < small_.size()) return small_[code];
  const auto after = std::upper_bound(ranges_.begin(), ranges_.end(), code,
                                      [](char32_t wanted, const Range& range) { return wanted < range.first; });
  return after != ranges_.begin() && code <= (after - 1)->last ? (after - 1)->number : 0;
}

std::size_t piece_end(std::string_view text, std::size_t place, const CharacterRanges& classes) {
  const auto kind_at = [&](std::size_t i) { return classes.of(code_point(text, i)); };
  if (text[place] == '\'') {
    for (const std::string_view ending : {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"}) {
      if (text.substr(place, ending.size()) == ending) return place + ending.size();
    }
  }
  const std::size_t begin = place + (text[place] == ' ' && place + 1 < text.size() ? 1 : 0);
  const std::uint8_t kind = kind_at(begin);
  std::size_t end = begin, last = place;  // `last` is where the last character of the run begins
  if (kind != kSpace) {
    while (end < text.size() && kind_at(end) == kind) end += character_length(text, end);
    return end;
  }
  for (end = place; end < text.size() && kind_at(end) == kSpace; end += character_length(text, end)) last = end;
  return end == text.size() || last == place ? end : last;  // the last one belongs to what follows
}

bool ComposedForm::add(char32_t code, const std::u32string& parts) {
  return code >= 0x80 && std::all_of(parts.begin(), parts.end(), is_character) &&
         decompositions_.emplace(code, parts).second;
}

bool ComposedForm::add(char32_t first, char32_t second, char32_t code) {
  seconds_.insert(second);
  return second >= 0x80 && is_character(code) && compositions_.emplace(key(first, second), code).second;
}

ComposedText ComposedForm::of(std::string_view text) const {
  ComposedText result;
  for (std::size_t place = 0; place < text.size();) {
    const char32_t first = code_point(text, place);
    std::size_t end = place + character_length(text, place);
    while (end < text.size() && !begins(code_point(text, end))) end += character_length(text, end);
    const std::string_view part = text.substr(place, end - place);
    std::string written(part);
    if (first >= kUnchanged || part.size() > character_length(part, 0)) {
      std::u32string codes;
      for (std::size_t i = 0; i < part.size(); i += character_length(part, i)) decompose(code_point(part, i), codes);
      written.clear();
      for (const char32_t code : composed(std::move(codes))) append_utf8(written, code);
    }
    const bool is_changed = written != part;
    for (std::size_t i = 0; i < written.size(); ++i) {
      result.begins.push_back(is_changed ? place : place + i);
      result.ends.push_back(is_changed && i > 0 ? end : place + i);
    }
    result.text += written;
    place = end;
  }
  result.begins.push_back(text.size());
  result.ends.push_back(text.size());
  return result;
}

bool ComposedForm::begins(char32_t code) const {
  if (code < kUnchanged) return true;
  std::u32string codes;
  decompose(code, codes);
  const char32_t first = codes.front();
  const bool is_hangul = is_within(first, kVowel, kVowels) || is_within(first, kTrailing + 1, kTrailings - 1);
  return combining.of(first) == 0 && !is_hangul && seconds_.count(first) == 0;
}

void ComposedForm::decompose(char32_t code, std::u32string& codes) const {
  if (is_within(code, kSyllable, kSyllables)) {
    const char32_t index = code - kSyllable;
    codes += kLeading + index / (kVowels * kTrailings);
    codes += kVowel + index % (kVowels * kTrailings) / kTrailings;
    if (index % kTrailings != 0) codes += kTrailing + index % kTrailings;
    return;
  }
  const auto found = decompositions_.find(code);
  codes += found == decompositions_.end() ? std::u32string(1, code) : found->second;
}

std::u32string ComposedForm::composed(std::u32string codes) const {
  for (auto begin = codes.begin(); begin != codes.end();) {
    const auto end = std::find_if(begin, codes.end(), [this](char32_t code) { return combining.of(code) == 0; });
    std::stable_sort(begin, end, [this](char32_t a, char32_t b) { return combining.of(a) < combining.of(b); });
    begin = end == codes.end() ? end : end + 1;
  }
  std::u32string result;
  std::size_t starter = std::u32string::npos;
  int last = -1;  // class of the mark after the starter that did not compose; -1: there is none
  for (const char32_t code : codes) {
    const int own = combining.of(code);
    const char32_t made = starter != std::u32string::npos && last < own ? pair(result[starter], code) : 0;
    if (made != 0) {
      result[starter] = made;
      continue;
    }
    result += code;
    last = own;
    if (own == 0) {
      starter = result.size() - 1;
      last = -1;
    }
  }
  return result;
}

char32_t ComposedForm::pair(char32_t first, char32_t second) const {
  if (is_within(first, kLeading, kLeadings) && is_within(second, kVowel, kVowels)) {
    return kSyllable + ((first - kLeading) * kVowels + (second - kVowel)) * kTrailings;
  }
  const bool is_pair = is_within(first, kSyllable, kSyllables) && (first - kSyllable) % kTrailings == 0;
  if (is_pair && is_within(second, kTrailing + 1, kTrailings - 1)) return first + (second - kTrailing);
  const auto found = compositions_.find(key(first, second));
  return found == compositions_.end() ? 0 : found->second;
}

}  // namespace xlruntime
