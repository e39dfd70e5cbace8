#include "token_source.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "error.h"
#include "messages.h"

namespace xlruntime {
namespace {

constexpr std::size_t kPiece = 1 << 14;  // bytes: small compared to the memories, so that process memory stays flat

Error file_error(const std::filesystem::path& path) {
  return Error(ErrorCode::file, one_line(path.string()) + ": " + std::strerror(errno) + ".");
}

}  // namespace

TokenSource::TokenSource(const Model& model, const Document& document) : model_(model), document_(document) {
  if (document.text || document.file) reader_ = model.tokenizer().read(document.name);
  if (document.file) {
    std::error_code unused;
    if (std::filesystem::is_directory(*document.file, unused)) {
      errno = EISDIR;
      throw file_error(*document.file);
    }
    file_.reset(std::fopen(document.file->string().c_str(), "rb"));
    if (file_ == nullptr) throw file_error(*document.file);
    piece_.resize(kPiece);
  }
}

bool TokenSource::has(std::int64_t n) {
  while (static_cast<std::int64_t>(waiting_.ids.size() - first_) < n) {
    const auto piece = next();
    if (!piece) return false;
    check_ids(piece->ids.data(), piece->ids.size(), model_.bundle().vocab_size, document_.name, read_);
    read_ += static_cast<std::int64_t>(piece->ids.size());
    if (const auto unknown = model_.tokenizer().unk_id()) {
      unknown_ += std::count(piece->ids.begin(), piece->ids.end(), *unknown);
    }
    for (auto* part : {&waiting_.ids, &waiting_.starts, &waiting_.ends}) {
      part->erase(part->begin(), part->begin() + static_cast<std::ptrdiff_t>(first_));
    }
    first_ = 0;
    waiting_.append(*piece);
  }
  return true;
}

TokenPiece TokenSource::take(std::int64_t n) {
  has(n);
  const std::size_t end = std::min(waiting_.ids.size(), first_ + static_cast<std::size_t>(n));
  const auto part = [&](const std::vector<std::int64_t>& of) {
    return std::vector<std::int64_t>(of.begin() + static_cast<std::ptrdiff_t>(first_),
                                     of.begin() + static_cast<std::ptrdiff_t>(end));
  };
  TokenPiece taken{part(waiting_.ids), part(waiting_.starts), part(waiting_.ends)};
  first_ = end;
  return taken;
}

std::optional<TokenPiece> TokenSource::next() {
  if (ended_) return std::nullopt;
  if (reader_ == nullptr) {
    ended_ = true;
    TokenPiece piece;
    for (std::size_t i = 0; i < document_.count; ++i) {
      const auto place = static_cast<std::int64_t>(i);
      piece.add(document_.ids[i], place, place + 1);
    }
    return piece;
  }
  const std::string_view raw = next_bytes();
  if (!raw.empty()) return reader_->take(raw);
  ended_ = true;
  return reader_->end();
}

std::string_view TokenSource::next_bytes() {
  if (file_ == nullptr) {
    const std::string_view raw = document_.text->substr(used_, kPiece);
    used_ += raw.size();
    return raw;
  }
  const std::size_t n = std::fread(piece_.data(), 1, kPiece, file_.get());
  if (n == 0 && std::ferror(file_.get()) != 0) throw file_error(*document_.file);
  return std::string_view(piece_).substr(0, n);
}

}  // namespace xlruntime
