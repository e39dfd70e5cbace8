// Read a document as token ids, in the amounts that a step needs.
#pragma once

#include <cstdint>
#include <cstdio>
#include <deque>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "model.h"

namespace xlruntime {

// A document: a text, a file or token ids. It holds no copy of a text or of ids.
struct Document {
  std::string name;
  std::optional<std::string_view> text;
  std::optional<std::filesystem::path> file;
  const std::int64_t* ids = nullptr;
  std::size_t count = 0;  // of ids
};

class TokenSource {
 public:
  // Throws ErrorCode::file, ErrorCode::text.
  TokenSource(const Model& model, const Document& document);

  // The next `n` tokens; fewer only at the end. Throws ErrorCode::text, ErrorCode::token, ErrorCode::file.
  TokenPiece take(std::int64_t n);

  // Whether at least `n` tokens are left; reads ahead to find out.
  bool has(std::int64_t n);

  const TextCounts& counts() const { return reader_ == nullptr ? none_ : reader_->counts; }
  std::int64_t unknown_tokens() const { return unknown_; }

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };

  std::optional<TokenPiece> next();  // none at the end
  std::string_view next_bytes();     // empty at the end

  const Model& model_;
  const Document& document_;
  std::unique_ptr<DocumentReader> reader_;  // null for ids
  std::unique_ptr<std::FILE, Close> file_;
  std::string piece_;
  std::size_t used_ = 0;  // bytes of the text, or ids, that were read
  bool ended_ = false;
  TokenPiece waiting_;  // tokens that were read ahead, from place `first_` on
  std::size_t first_ = 0;
  std::int64_t read_ = 0, unknown_ = 0;
  TextCounts none_;
};

}  // namespace xlruntime
