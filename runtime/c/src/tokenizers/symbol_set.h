// Texts with ids, of which the longest one at a place of a text is found.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace xlruntime {

class SymbolSet {
 public:
  struct Match {
    std::int64_t id = -1;
    std::size_t length = 0;  // in bytes; 0: there is none
    bool open = false;       // the text ended where a longer one could still follow
  };

  // Add a text, which is not empty and not there yet; then call `finish` once.
  void add(std::string text, std::int64_t id) { items_.emplace_back(std::move(text), id); }

  // Return the text that occurs twice, or an empty one.
  std::string finish();

  bool empty() const { return items_.empty(); }
  std::size_t longest() const { return longest_; }

  // The longest one that `text` has at `place`.
  Match find(std::string_view text, std::size_t place) const;

 private:
  std::vector<std::pair<std::string, std::int64_t>> items_;  // sorted
  std::array<std::uint32_t, 257> first_{};                   // place of the first one that begins with each byte
  std::size_t longest_ = 0;
};

}  // namespace xlruntime
