#include "tokenizer.h"

#include <algorithm>
#include <utility>

#include "../errors.h"
#include "../unicode.h"
#include "vocabulary.h"

namespace xlruntime {

namespace {

constexpr std::string_view kSpaces(" \t\n\r\v\f", 6);  // ASCII white space, which is between words

// id = byte + first_id. Any file is valid.
class ByteTokenizer : public Tokenizer {
 public:
  explicit ByteTokenizer(std::int64_t first_id) : first_id_(first_id) {}

  std::unique_ptr<DocumentReader> read(const std::string&) const override {
    return std::make_unique<Reader>(first_id_);
  }

  std::vector<std::int64_t> encode_piece(std::string_view text, std::optional<std::int64_t>) const override {
    std::vector<std::int64_t> ids;
    ids.reserve(text.size());
    for (const char mark : text) ids.push_back(static_cast<unsigned char>(mark) + first_id_);
    return ids;
  }

  std::string decode(const std::vector<std::int64_t>& ids) const override {
    std::string text;
    for (const std::int64_t id : ids) {  // ids without a byte are left out
      if (id < first_id_ || id >= first_id_ + 256) continue;
      text += static_cast<char>(static_cast<unsigned char>(id - first_id_));
    }
    return replace_wrong_bytes(text);
  }

 private:
  class Reader : public DocumentReader {
   public:
    explicit Reader(std::int64_t first_id) : first_id_(first_id) {}

    TokenPiece take(std::string_view raw) override {
      if (place_ == 0 && !raw.empty()) {
        counts.first_token_bytes = 1;
        counts.first_token_chars = (static_cast<unsigned char>(raw[0]) & 0xc0) != 0x80 ? 1 : 0;
      }
      counts.add(raw);
      TokenPiece piece;
      for (const char mark : raw) {
        piece.add(static_cast<unsigned char>(mark) + first_id_, place_, place_ + 1);
        ++place_;
      }
      return piece;
    }

    TokenPiece end() override { return {}; }

   private:
    std::int64_t first_id_, place_ = 0;
  };

  std::int64_t first_id_;
};

// Takes token ids, refuses text.
class NoTokenizer : public Tokenizer {
 public:
  explicit NoTokenizer(std::string kind) : kind_(std::move(kind)) {}

  std::unique_ptr<DocumentReader> read(const std::string& name) const override { throw refusal(name); }

  std::vector<std::int64_t> encode_piece(std::string_view, std::optional<std::int64_t>) const override {
    throw refusal("the text");
  }

  std::string decode(const std::vector<std::int64_t>& ids) const override {
    std::string text;
    for (const std::int64_t id : ids) text += (text.empty() ? "" : " ") + std::to_string(id);
    return text;
  }

 private:
  Error refusal(const std::string& name) const {
    if (kind_ == "none") {
      return Error(XLR_ERROR_TEXT, name + ": this bundle has no tokenizer, so it takes token ids, not text.",
                   "Give ids, or convert the checkpoint with --tokenizer.");
    }
    return Error(XLR_ERROR_TEXT,
                 name + ": this bundle's tokenizer needs the library " + kind_ +
                     ", which the C runtime lacks, so it takes token ids, not text.",
                 "Give ids that Python's runtime made.");
  }

  std::string kind_;
};

}  // namespace

void TokenPiece::append(const TokenPiece& other) {
  ids.insert(ids.end(), other.ids.begin(), other.ids.end());
  starts.insert(starts.end(), other.starts.begin(), other.starts.end());
  ends.insert(ends.end(), other.ends.begin(), other.ends.end());
}

void TextCounts::add(std::string_view raw) {
  bytes += static_cast<std::int64_t>(raw.size());
  chars += static_cast<std::int64_t>(count_characters(raw));
  for (const char mark : raw) {
    const bool inside = kSpaces.find(mark) == std::string_view::npos;
    words += inside && !in_word_ ? 1 : 0;
    in_word_ = inside;
  }
}

std::vector<std::int64_t> Tokenizer::encode(std::string_view text) const {
  const std::unique_ptr<DocumentReader> reader = read("the text");
  TokenPiece piece = reader->take(text);
  piece.append(reader->end());
  return std::move(piece.ids);
}

std::unique_ptr<Tokenizer> make_tokenizer(const Tokenization& entry, const std::filesystem::path& folder) {
  if (entry.kind == "bytes") return std::make_unique<ByteTokenizer>(entry.first_id);
  if (entry.kind == "vocabulary" && entry.file) {
    return std::make_unique<VocabularyTokenizer>(Vocabulary::read(folder / *entry.file));
  }
  return std::make_unique<NoTokenizer>(entry.kind);
}

void check_ids(const std::int64_t* ids, std::size_t n, std::int64_t vocab_size, const std::string& name,
               std::int64_t first) {
  const auto is_wrong = [vocab_size](std::int64_t id) { return id < 0 || id >= vocab_size; };
  const auto* wrong = std::find_if(ids, ids + n, is_wrong);
  if (wrong == ids + n) return;
  throw Error(XLR_ERROR_TOKEN,
              name + ": token " + std::to_string(first + (wrong - ids)) + " has id " + std::to_string(*wrong) +
                  ", expected 0 to " + std::to_string(vocab_size - 1) + " (" +
                  std::to_string(std::count_if(ids, ids + n, is_wrong)) + " such).",
              "Tokenize it with the model's own vocabulary.");
}

}  // namespace xlruntime
