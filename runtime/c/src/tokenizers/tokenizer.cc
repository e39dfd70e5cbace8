#include "tokenizer.h"

#include <algorithm>
#include <utility>

#include "../errors.h"
#include "../unicode.h"
#include "byte_pairs.h"
#include "vocabulary.h"

namespace xlruntime {

namespace {

// id = byte + first_id. Any file is valid.
class ByteTokenizer : public Tokenizer {
 public:
  explicit ByteTokenizer(std::int64_t first_id) : first_id_(first_id) {}

  bool needs_utf8() const override { return false; }

  TokenPart encode(std::string_view text, TextPlace&, bool) const override {
    TokenPart part;
    std::int64_t place = 0;
    for (const char mark : text) {
      part.add(static_cast<unsigned char>(mark) + first_id_, place, place + 1);
      ++place;
    }
    part.first_bytes = 1;
    part.first_chars = text.empty() || (static_cast<unsigned char>(text[0]) & 0xc0) == 0x80 ? 0 : 1;
    return part;
  }

  std::string decode(const std::vector<std::int64_t>& ids) const override {
    std::string text;
    for (const std::int64_t id : ids) {  // ids without a byte are left out
      if (id < first_id_ || id >= first_id_ + 256) continue;
      text += static_cast<char>(static_cast<unsigned char>(id - first_id_));
    }
    return replace_wrong_bytes(text);
  }

  std::optional<std::int64_t> size() const override { return first_id_ + 256; }

 private:
  std::int64_t first_id_;
};

// Takes token ids, refuses text.
class NoTokenizer : public Tokenizer {
 public:
  explicit NoTokenizer(std::string kind) : kind_(std::move(kind)) {}

  bool reads_text() const override { return false; }

  void require_text(const std::string& name) const override { throw refusal(name, "it takes token ids, not text"); }

  TokenPart encode(std::string_view, TextPlace& place, bool) const override {
    throw refusal(place.name, "it takes token ids, not text");
  }

  std::string decode(const std::vector<std::int64_t>&) const override {
    throw refusal("the ids", "it cannot turn them into text");
  }

 private:
  Error refusal(const std::string& name, const std::string& effect) const {
    if (kind_ == "none") {
      return Error(XLR_ERROR_TEXT, name + ": this bundle has no tokenizer, so " + effect + ".",
                   "Give ids, or convert the checkpoint with --tokenizer.");
    }
    return Error(XLR_ERROR_TEXT,
                 name + ": this bundle's tokenizer needs the library " + kind_ + ", which the C runtime lacks, so " +
                     effect + ".",
                 kind_ == "tokenizers" ? "Convert the checkpoint again: xlexport convert writes a file for C if this "
                                         "is a byte-level BPE like GPT-2's. Else use Python's runtime."
                                       : "Use Python's runtime, or give ids that it made.");
  }

  std::string kind_;
};

}  // namespace

void TokenPiece::append(const TokenPiece& other) {
  ids.insert(ids.end(), other.ids.begin(), other.ids.end());
  starts.insert(starts.end(), other.starts.begin(), other.starts.end());
  ends.insert(ends.end(), other.ends.begin(), other.ends.end());
}

std::unique_ptr<Tokenizer> make_tokenizer(const Bundle& bundle, const std::filesystem::path& folder) {
  const Tokenization& entry = bundle.tokenizer;
  if (entry.kind == "bytes") return std::make_unique<ByteTokenizer>(entry.first_id);
  if (entry.kind == "vocabulary" && entry.file) {
    return make_vocabulary_tokenizer(Vocabulary::read(folder / *entry.file));
  }
  if (entry.bpe) return make_byte_pair_tokenizer(BytePairFile::read(folder / *entry.bpe, bundle.vocab_size));
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
