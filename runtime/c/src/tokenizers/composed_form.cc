#include "composed_form.h"

#include <algorithm>
#include <tuple>

#include "../unicode.h"

namespace xlruntime {
namespace {

constexpr char32_t kUnchanged = 0x300;  // characters below are in form C
constexpr char32_t kLastCharacter = 0x10ffff;
// Hangul: syllables are computed from a leading, a vowel and perhaps a trailing letter.
constexpr char32_t kSyllable = 0xac00, kLeading = 0x1100, kVowel = 0x1161, kTrailing = 0x11a7;
constexpr char32_t kLeadings = 19, kVowels = 21, kTrailings = 28, kSyllables = kLeadings * kVowels * kTrailings;

bool is_within(char32_t code, char32_t first, char32_t count) { return code >= first && code - first < count; }

}  // namespace

std::size_t ComposedText::origin_of_begin(std::size_t place) const {
  const auto part = std::upper_bound(parts.begin(), parts.end(), place,
                                     [](std::size_t wanted, const Part& each) { return wanted < each.begin; }) - 1;
  return part->is_changed ? part->origin : part->origin + (place - part->begin);
}

std::size_t ComposedText::origin_of_end(std::size_t place) const {
  const auto after = std::lower_bound(parts.begin(), parts.end(), place,
                                      [](const Part& each, std::size_t wanted) { return each.begin < wanted; });
  if (after == parts.begin() || after->begin == place) return after->origin;
  const Part& part = *(after - 1);
  return part.is_changed ? after->origin : part.origin + (place - part.begin);
}

bool ComposedText::is_boundary(std::size_t place) const { return origin_of_begin(place) == origin_of_end(place); }

bool ComposedForm::finish() {
  for (const Composition& each : compositions) seconds_.push_back(each.second);
  std::sort(seconds_.begin(), seconds_.end());
  const auto fits = [](std::uint32_t code) { return code >= 0x80 && code <= kLastCharacter && (code >> 11) != 0x1b; };
  for (std::size_t i = 0; i < decompositions.size(); ++i) {
    const auto& [code, parts] = decompositions[i];
    const bool is_sorted = i == 0 || decompositions[i - 1].code < code;
    const auto is_character = [&](std::uint32_t part) { return part < 0x80 || fits(part); };
    if (!is_sorted || !fits(code) || !std::all_of(parts.begin(), parts.end(), is_character)) return false;
  }
  for (std::size_t i = 0; i < compositions.size(); ++i) {
    const Composition& each = compositions[i];
    const bool is_sorted = i == 0 || std::tie(compositions[i - 1].first, compositions[i - 1].second) <
                                         std::tie(each.first, each.second);
    if (!is_sorted || !fits(each.second) || !fits(each.code) || each.first > kLastCharacter) return false;
  }
  for (std::size_t i = 0; i < classes.size(); ++i) {
    const ClassRange& each = classes[i];
    if (!fits(each.first) || each.last > kLastCharacter || each.first > each.last || each.combining == 0) return false;
    if (i > 0 && classes[i - 1].last >= each.first) return false;
  }
  return true;
}

ComposedText ComposedForm::of(std::string_view text) const {
  ComposedText result;
  const auto add = [&result](std::size_t origin, bool is_changed) {
    const bool is_new = result.parts.empty() || is_changed || result.parts.back().is_changed;
    if (is_new) result.parts.push_back({result.text.size(), origin, is_changed});
  };
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
    add(place, written != part);
    result.text += written;
    place = end;
  }
  result.parts.push_back({result.text.size(), text.size(), false});
  return result;
}

bool ComposedForm::begins(char32_t code) const {
  if (code < kUnchanged) return true;
  std::u32string codes;
  decompose(code, codes);
  const char32_t first = codes.front();
  const bool is_hangul = is_within(first, kVowel, kVowels) || is_within(first, kTrailing + 1, kTrailings - 1);
  return combining(first) == 0 && !is_hangul && !std::binary_search(seconds_.begin(), seconds_.end(), first);
}

std::uint8_t ComposedForm::combining(char32_t code) const {
  const auto after = std::upper_bound(classes.begin(), classes.end(), code,
                                      [](char32_t wanted, const ClassRange& range) { return wanted < range.first; });
  return after != classes.begin() && code <= (after - 1)->last ? (after - 1)->combining : 0;
}

void ComposedForm::decompose(char32_t code, std::u32string& codes) const {
  if (is_within(code, kSyllable, kSyllables)) {
    const char32_t index = code - kSyllable;
    codes += kLeading + index / (kVowels * kTrailings);
    codes += kVowel + index % (kVowels * kTrailings) / kTrailings;
    if (index % kTrailings != 0) codes += kTrailing + index % kTrailings;
    return;
  }
  const auto found = std::lower_bound(decompositions.begin(), decompositions.end(), code,
                                      [](const Decomposition& each, char32_t wanted) { return each.code < wanted; });
  if (found == decompositions.end() || found->code != code) {
    codes += code;
  } else {
    codes.append(found->parts.begin(), found->parts.end());
  }
}

std::u32string ComposedForm::composed(std::u32string codes) const {
  for (auto begin = codes.begin(); begin != codes.end();) {
    const auto end = std::find_if(begin, codes.end(), [this](char32_t code) { return combining(code) == 0; });
    std::stable_sort(begin, end, [this](char32_t a, char32_t b) { return combining(a) < combining(b); });
    begin = end == codes.end() ? end : end + 1;
  }
  std::u32string result;
  std::size_t starter = std::u32string::npos;
  int last = -1;  // class of the mark after the starter that did not compose; -1: there is none
  for (const char32_t code : codes) {
    const int own = combining(code);
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
  const auto found = std::lower_bound(compositions.begin(), compositions.end(), std::make_pair(first, second),
                                      [](const Composition& each, const std::pair<char32_t, char32_t>& wanted) {
                                        return std::make_pair(char32_t{each.first}, char32_t{each.second}) < wanted;
                                      });
  return found != compositions.end() && found->first == first && found->second == second ? found->code : 0;
}

}  // namespace xlruntime
