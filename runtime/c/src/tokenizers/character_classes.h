// Letters, numbers and white space, as the tables of a file say, and the pieces that GPT-2's pattern makes of a text.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace xlruntime {

enum class CharacterClass : std::uint8_t { other, letter, number, space };

class CharacterClasses {
 public:
  // Add a range after all earlier ones. Return whether it is one.
  bool add(std::uint32_t first, std::uint32_t last, CharacterClass kind);

  // Sort the ranges. Return whether no two have a common character.
  bool finish();

  CharacterClass of(char32_t code) const;

 private:
  struct Range {
    std::uint32_t first, last;
    CharacterClass kind;
  };

  std::vector<Range> ranges_;
  std::array<CharacterClass, 0x400> small_{};  // of the first characters
};

// The end of the piece at `place` by GPT-2's pattern:
// 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
std::size_t piece_end(std::string_view text, std::size_t place, const CharacterClasses& classes);

}  // namespace xlruntime
