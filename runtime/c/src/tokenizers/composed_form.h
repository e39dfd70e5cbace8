// Normalization form C of Unicode, by the tables of a file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace xlruntime {

// A text, and where its parts were before.
struct ComposedText {
  // A part that is as it was, byte for byte, or one that was changed as a whole.
  struct Part {
    std::size_t begin, origin;  // in the text, and in the earlier one
    bool is_changed;
  };

  std::string text;
  std::vector<Part> parts;  // the last one is empty, and has both ends

  // Where what is at a place was: the beginning, or the end of what is before it, of a part that was changed.
  std::size_t origin_of_begin(std::size_t place) const;
  std::size_t origin_of_end(std::size_t place) const;
  bool is_boundary(std::size_t place) const;  // not within a part that was changed
};

class ComposedForm {
 public:
  struct Decomposition {
    std::uint32_t code;
    std::vector<std::uint32_t> parts;
  };
  struct Composition {
    std::uint32_t first, second, code;
  };
  struct ClassRange {
    std::uint32_t first, last;
    std::uint8_t combining;
  };

  // Sorted tables: full decompositions, pairs that compose, and combining classes other than 0; Hangul is computed.
  std::vector<Decomposition> decompositions;
  std::vector<Composition> compositions;
  std::vector<ClassRange> classes;

  // Return whether the tables are sorted and have Unicode's characters only; then call once before `of`.
  bool finish();

  ComposedText of(std::string_view text) const;

  // Whether a character never changes by, nor with, what is before it.
  bool begins(char32_t code) const;

 private:
  std::uint8_t combining(char32_t code) const;
  void decompose(char32_t code, std::u32string& codes) const;
  std::u32string composed(std::u32string codes) const;
  char32_t pair(char32_t first, char32_t second) const;  // 0: they do not compose

  std::vector<std::uint32_t> seconds_;  // of pairs, sorted
};

}  // namespace xlruntime
