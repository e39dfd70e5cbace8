// The exception of the C runtime. It never crosses the C interface, which turns it into a code with a text.
#pragma once

#include <exception>
#include <string>
#include <utility>

namespace xlruntime {

// One code a class of xlruntime's errors in Python, and what the system reports.
enum class ErrorCode {
  bundle,            // BundleError: a bundle is broken, changed or too new
  bundle_not_found,  // BundleNotFoundError: the bundle, or a file that it lists, is missing
  provider,          // ProviderError: ONNX Runtime is missing or cannot be used
  state,             // StateError: a saved state is damaged or does not fit
  token,             // TokenError: token ids are outside the vocabulary
  text,              // TextError: text cannot be scored
  vocabulary,        // VocabularyError: symbols or rules do not form a vocabulary
  option,            // OptionError: a setting is out of range
  argument,          // ArgumentError: an argument is of another kind than expected
  runtime,           // XlruntimeError: anything else that this runtime reports on purpose
  file,              // OSError: a file cannot be read or written
};

// The message is one line: the place, the problem, and the expected and found values.
class Error : public std::exception {
 public:
  Error(ErrorCode code, std::string message, std::string repair = "")
      : code(code),
        message(std::move(message)),
        repair(std::move(repair)),
        whole_(this->repair.empty() ? this->message : this->message + " " + this->repair) {}

  const char* what() const noexcept override { return whole_.c_str(); }

  const ErrorCode code;
  const std::string message;
  const std::string repair;  // what the user can do, or empty

 private:
  std::string whole_;
};

}  // namespace xlruntime
