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
  const unsigned lead = byte_at(text, place);
  auto begin = items_.begin() + first_[lead], end = items_.begin() + first_[lead + 1];
  // All of begin to end have the bytes before `depth`; the shortest comes first.
  for (std::size_t depth = 1; begin != end; ++depth) {
    if (begin->first.size() == depth) {
      match.id = begin->second;
      match.length = depth;
      ++begin;
    }
    if (place + depth == text.size()) {
      match.open = begin != end;
      break;
    }
    const auto first_from = [&](unsigned least) {
      return std::partition_point(begin, end, [&](const auto& item) { return byte_at(item.first, depth) < least; });
    };
    const unsigned wanted = byte_at(text, place + depth);
    end = first_from(wanted + 1);
    begin = first_from(wanted);
  }
  return match;
}

}  // namespace xlruntime
