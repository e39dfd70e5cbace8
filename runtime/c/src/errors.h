// The error of the C runtime. It never leaves the library: the C interface returns its code, and keeps its text.
#pragma once

#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include "xlruntime.h"

namespace xlruntime {

// The message is one line of at most 1,500 bytes: the place, the problem, and the expected and found values.
class Error : public std::exception {
 public:
  Error(xlr_status code, std::string_view message, std::string_view hint = "");

  const char* what() const noexcept override { return text_.c_str(); }  // message and hint

  const xlr_status code;
  const std::string message;
  const std::string hint;  // what the user can do, or empty

 private:
  std::string text_;
};

// The word for a code in docs/bundle_format.md, such as "bundle_format".
const char* code_word(xlr_status code);

std::string shown(std::string_view text);  // in quotes, cut if it is long
std::string joined(const std::vector<std::string>& parts, std::string_view separator = ", ");  // the first few of them
std::string shape_text(const std::vector<std::int64_t>& sizes);  // "1 x 8 x 64"

}  // namespace xlruntime
