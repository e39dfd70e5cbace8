#include "character_classes.h"

#include <algorithm>

#include "../unicode.h"

namespace xlruntime {
namespace {

constexpr std::uint32_t kLastCharacter = 0x10ffff;

}  // namespace

bool CharacterClasses::add(std::uint32_t first, std::uint32_t last, CharacterClass kind) {
  ranges_.push_back({first, last, kind});
  return first <= last && last <= kLastCharacter;
}

bool CharacterClasses::finish() {
  std::sort(ranges_.begin(), ranges_.end(), [](const Range& a, const Range& b) { return a.first < b.first; });
  for (std::size_t i = 0; i < ranges_.size(); ++i) {
    if (i > 0 && ranges_[i].first <= ranges_[i - 1].last) return false;
    for (std::size_t code = ranges_[i].first; code <= ranges_[i].last && code < small_.size(); ++code) {
      small_[code] = ranges_[i].kind;
    }
  }
  return true;
}

CharacterClass CharacterClasses::of(char32_t code) const {
  if (code < small_.size()) return small_[code];
  const auto after = std::upper_bound(ranges_.begin(), ranges_.end(), code,
                                      [](char32_t wanted, const Range& range) { return wanted < range.first; });
  return after != ranges_.begin() && code <= (after - 1)->last ? (after - 1)->kind : CharacterClass::other;
}

std::size_t piece_end(std::string_view text, std::size_t place, const CharacterClasses& classes) {
  const auto kind_at = [&](std::size_t i) { return classes.of(code_point(text, i)); };
  if (text[place] == '\'') {
    for (const std::string_view ending : {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"}) {
      if (text.substr(place, ending.size()) == ending) return place + ending.size();
    }
  }
  const std::size_t begin = place + (text[place] == ' ' && place + 1 < text.size() ? 1 : 0);
  const CharacterClass kind = kind_at(begin);
  std::size_t end = begin, last = place;  // `last` is where the last character of the run begins
  if (kind != CharacterClass::space) {
    while (end < text.size() && kind_at(end) == kind) end += character_length(text, end);
    return end;
  }
  for (end = place; end < text.size() && kind_at(end) == CharacterClass::space; end += character_length(text, end)) {
    last = end;
  }
  return end == text.size() || last == place ? end : last;  // the last one belongs to what follows
}

}  // namespace xlruntime
