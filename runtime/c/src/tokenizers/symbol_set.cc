#include "symbol_set.h"

#include <algorithm>

namespace xlruntime {
namespace {

unsigned byte_at(std::string_view text, std::size_t i) { return static_cast<unsigned char>(text[i]); }

}  // namespace

std::string SymbolSet::finish() {
  std::sort(items_.begin(), items_.end());  // by bytes
  for (std::size_t i = 0; i < items_.size(); ++i) {
    if (i > 0 && items_[i].first == items_[i - 1].first) return items_[i].first;
    longest_ = std::max(longest_, items_[i].first.size());
    ++first_[byte_at(items_[i].first, 0) + 1];
  }
  for (std::size_t byte = 0; byte < 256; ++byte) first_[byte + 1] += first_[byte];
  return "";
}

SymbolSet::Match SymbolSet::find(std::string_view text, std::size_t place) const {
  Match match;
  if (place >= text.size()) return match;
  std::size_t begin = first_[byte_at(text, place)], end = first_[byte_at(text, place) + 1];
  // All of begin to end have the bytes before `depth`; the shortest comes first.
  for (std::size_t depth = 1; begin < end; ++depth) {
    if (items_[begin].first.size() == depth) {
      match.id = items_[begin].second;
      match.length = depth;
      ++begin;
    }
    if (place + depth == text.size()) {
      match.open = begin < end;
      break;
    }
    const unsigned wanted = byte_at(text, place + depth);
    const auto first = items_.begin();
    begin = static_cast<std::size_t>(
        std::partition_point(first + static_cast<std::ptrdiff_t>(begin), first + static_cast<std::ptrdiff_t>(end),
                             [&](const auto& item) { return byte_at(item.first, depth) < wanted; }) - first);
    end = static_cast<std::size_t>(
        std::partition_point(first + static_cast<std::ptrdiff_t>(begin), first + static_cast<std::ptrdiff_t>(end),
                             [&](const auto& item) { return byte_at(item.first, depth) == wanted; }) - first);
  }
  return match;
}

}  // namespace xlruntime
