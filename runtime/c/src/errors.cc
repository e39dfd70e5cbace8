#include "errors.h"

#include <algorithm>
#include <cstdint>

#include "unicode.h"

namespace xlruntime {
namespace {

constexpr std::size_t kLongestText = 60;  // bytes
constexpr std::size_t kMostParts = 5;
constexpr std::size_t kLongestMessage = 1500, kLongestHint = 450;  // bytes

constexpr const char* kWords[] = {
    "ok",         "bundle_not_found", "bundle_format", "bundle_damaged", "bundle_mismatch", "bundle_graph",
    "state_damaged", "state_mismatch", "option",       "token",          "text",            "too_long",
    "vocabulary", "argument",         "provider",      "file",           "memory",          "timeout",
    "busy",       "stopped",          "runtime",       "internal"};

// The text without what a terminal would obey or not show; of a longer one than `longest` bytes, beginning and end.
std::string bounded(std::string_view text, std::size_t longest) {
  std::string line;
  for (std::size_t place = 0; place < text.size();) {
    const std::size_t length = utf8_length(text.substr(place));
    const bool shows = length > 0 && !is_control(code_point(text, place));
    line += shows ? text.substr(place, length) : "?";
    place += std::max<std::size_t>(length, 1);
  }
  if (line.size() <= longest) return line;
  std::size_t front = longest * 2 / 3 - 5, back = line.size() - longest / 3;
  while (continues(line, front)) --front;  // whole characters
  while (continues(line, back)) ++back;
  return line.substr(0, front) + " ... " + line.substr(back);
}

}  // namespace

Error::Error(xlr_status code, std::string_view message, std::string_view hint)
    : code(code),
      message(bounded(message, kLongestMessage)),
      hint(bounded(hint, kLongestHint)),
      text_(this->hint.empty() ? this->message : this->message + " " + this->hint) {}

const char* code_word(xlr_status code) {
  const auto index = static_cast<std::size_t>(code);
  return index < std::size(kWords) ? kWords[index] : "internal";
}

std::string shown(std::string_view text) {
  if (text.size() <= kLongestText) return "'" + std::string(text) + "'";
  std::size_t end = kLongestText;
  while (end > 0 && continues(text, end)) --end;  // whole characters
  return "'" + std::string(text.substr(0, end)) + "...'";
}

std::string joined(const std::vector<std::string>& parts, std::string_view separator) {
  std::string text;
  for (std::size_t i = 0; i < std::min(parts.size(), kMostParts); ++i) {
    text.append(i > 0 ? separator : "").append(parts[i]);
  }
  return parts.size() <= kMostParts ? text : text + " and " + std::to_string(parts.size() - kMostParts) + " more";
}

std::string shape_text(const std::vector<std::int64_t>& sizes) {
  std::string text;
  for (const std::int64_t size : sizes) text += (text.empty() ? "" : " x ") + std::to_string(size);
  return sizes.empty() ? "scalar" : text;
}

}  // namespace xlruntime
