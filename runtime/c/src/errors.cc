#include "errors.h"

#include <algorithm>
#include <cstdint>

namespace xlruntime {
namespace {

constexpr std::size_t kLongestText = 60;  // bytes
constexpr std::size_t kMostParts = 5;

constexpr const char* kWords[] = {
    "ok",         "bundle_not_found", "bundle_format", "bundle_damaged", "bundle_mismatch", "bundle_graph",
    "state_damaged", "state_mismatch", "option",       "token",          "text",            "too_long",
    "vocabulary", "argument",         "provider",      "file",           "memory",          "timeout",
    "busy",       "stopped",          "runtime",       "internal"};

// The text without control characters, which could move the cursor of a terminal.
std::string one_line(std::string_view text) {
  std::string line(text);
  for (std::size_t i = 0; i < line.size(); ++i) {
    const auto byte = static_cast<unsigned char>(line[i]);
    const auto next = i + 1 < line.size() ? static_cast<unsigned char>(line[i + 1]) : 0u;
    if (byte < 0x20 || byte == 0x7f) line[i] = '?';
    if (byte == 0xc2 && next >= 0x80 && next < 0xa0) line.replace(i, 2, "?");  // U+0080 to U+009F in UTF-8
  }
  return line;
}

}  // namespace

Error::Error(xlr_status code, std::string_view message, std::string_view hint)
    : code(code),
      message(one_line(message)),
      hint(one_line(hint)),
      text_(this->hint.empty() ? this->message : this->message + " " + this->hint) {}

const char* code_word(xlr_status code) {
  const auto index = static_cast<std::size_t>(code);
  return index < std::size(kWords) ? kWords[index] : "internal";
}

std::string shown(std::string_view text) {
  if (text.size() <= kLongestText) return "'" + std::string(text) + "'";
  std::size_t end = kLongestText;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;  // whole characters
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
