// What a byte-level BPE knows of characters, by the tables of its file: their classes, the pieces that GPT-2's pattern
// makes of a text, and Unicode's normalization form C.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace xlruntime {

// A number of each character: 0 outside all ranges.
class CharacterRanges {
 public:
  struct Range {
    std::uint32_t first, last;
    std::uint8_t number;
  };

  void add(Range range) { ranges_.push_back(range); }

  // Sort the ranges. Return whether they are some of Unicode, and no two have a common character.
  bool finish();

  std::uint8_t of(char32_t code) const;

 private:
  std::vector<Range> ranges_;
  std::array<std::uint8_t, 0x400> small_{};  // of the first characters
};

inline constexpr std::uint8_t kLetter = 1, kNumber = 2, kSpace = 3;  // classes of characters

// The end of the piece at `place` by GPT-2's pattern:
// 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
std::size_t piece_end(std::string_view text, std::size_t place, const CharacterRanges& classes);

// A text in form C, and for each place of it, and for its end, where it was in the earlier one. A part that changed is
// one as a whole: what begins in it began where the part did, and what ends in it ended where the part did.
struct ComposedText {
  std::string text;
  std::vector<std::size_t> begins, ends;
};

// Hangul is computed.
class ComposedForm {
 public:
  // Add a full decomposition, or a pair that composes. Return whether it is new and of Unicode's characters.
  bool add(char32_t code, const std::u32string& parts);
  bool add(char32_t first, char32_t second, char32_t code);

  CharacterRanges combining;  // classes other than 0

  ComposedText of(std::string_view text) const;

  // Whether a character never changes by, nor with, what is before it.
  bool begins(char32_t code) const;

 private:
  void decompose(char32_t code, std::u32string& codes) const;
  std::u32string composed(std::u32string codes) const;
  char32_t pair(char32_t first, char32_t second) const;  // 0: they do not compose

  std::unordered_map<char32_t, std::u32string> decompositions_;
  std::unordered_map<std::uint64_t, char32_t> compositions_;  // by both parts
  std::unordered_set<char32_t> seconds_;                      // of pairs
};

}  // namespace xlruntime
