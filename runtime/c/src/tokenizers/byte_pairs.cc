#include "byte_pairs.h"

#include <algorithm>
#include <queue>
#include <utility>
#include <vector>

#include "../errors.h"
#include "../unicode.h"

namespace xlruntime {

namespace {

// A part of a text between added tokens, after normalization.
struct Section {
  std::string_view bytes;
  std::size_t begin;                       // in the text
  const ComposedText* composed = nullptr;  // null: it is as it was

  // Where in the text is what begins, or ends, at a place of it.
  std::size_t start(std::size_t place) const { return begin + (composed == nullptr ? place : composed->begins[place]); }
  std::size_t stop(std::size_t place) const { return begin + (composed == nullptr ? place : composed->ends[place]); }
};

// A part of a section that is tokenized for itself: an added token, or a piece of the pattern.
struct Piece {
  const Section& section;
  std::size_t begin, end;   // in the section
  std::int64_t added = -1;  // id of an added token

  std::string_view bytes() const { return section.bytes.substr(begin, end - begin); }
  std::size_t start() const { return section.start(begin); }
  std::size_t stop() const { return section.stop(end); }
};

// Turn places of bytes, which never go back, into those of characters: for `starts`, of the ones that have the bytes.
void count_places(std::string_view text, std::vector<std::int64_t>& places, bool starts) {
  std::size_t counted = 0;
  std::int64_t count = 0;
  for (std::int64_t& number : places) {
    const auto place = static_cast<std::size_t>(number);
    if (place > counted) {
      count += static_cast<std::int64_t>(count_characters(text.substr(counted, place - counted)));
      counted = place;
    }
    number = count - (starts && continues(text, place) ? 1 : 0);
  }
}

// Call `each` with the parts of a text between added tokens, and `each_added` with these.
template <class Each, class EachAdded>
void split(std::string_view text, const SymbolSet& added, const Each& each, const EachAdded& each_added) {
  std::size_t begin = 0;
  for (std::size_t place = 0; place < text.size() && !added.empty();) {
    const SymbolSet::Match match = added.find(text, place);
    if (match.length == 0) {
      ++place;
      continue;
    }
    if (begin < place) each(begin, place);
    each_added(place, place + match.length, match.id);
    begin = place += match.length;
  }
  if (begin < text.size()) each(begin, text.size());
}

class BytePairTokenizer : public Tokenizer {
 public:
  explicit BytePairTokenizer(BytePairFile file) : file_(std::move(file)) {}

  std::size_t settled(std::string_view text) const override {
    const std::size_t cut = settled_pieces(text);
    // What may become an added token could end any piece before it.
    const std::size_t longest = std::max(file_.before.longest(), file_.after.longest());
    for (std::size_t place = text.size() - std::min(longest, text.size()); place < text.size(); ++place) {
      if (!file_.before.find(text, place).open && !file_.after.find(text, place).open) continue;
      return std::min(cut, settled_pieces(text.substr(0, place)));
    }
    return cut;
  }

  TokenPart encode(std::string_view text, TextPlace&, bool) const override {
    TokenPart part;
    const auto add = [&](std::int64_t id, std::string_view bytes, std::size_t start, std::size_t end) {
      if (part.ids.empty()) {
        part.first_bytes = static_cast<std::int64_t>(bytes.size());
        part.first_chars = static_cast<std::int64_t>(count_characters(bytes));
      }
      part.add(id, static_cast<std::int64_t>(start), static_cast<std::int64_t>(end));
    };
    each_piece(text, [&](const Piece& piece) {
      if (piece.added >= 0) return add(piece.added, piece.bytes(), piece.start(), piece.stop());
      std::size_t place = piece.begin;
      for (const auto& [id, size] : merged(piece.bytes())) {
        const std::size_t start = piece.section.start(place);
        place += size;
        add(id, file_.tokens[static_cast<std::size_t>(id)], start, piece.section.stop(place));
      }
    });
    count_places(text, part.starts, true);
    count_places(text, part.ends, false);
    return part;
  }

  std::string decode(const std::vector<std::int64_t>& ids) const override {
    std::string text;
    for (const std::int64_t id : ids) {
      const auto added = file_.added.find(id);
      if (added != file_.added.end()) {
        if (!added->second.is_special) text += added->second.text;
      } else if (id >= 0 && id < *size()) {
        text += file_.tokens[static_cast<std::size_t>(id)];
      }
    }
    return replace_wrong_bytes(text);
  }

  std::optional<std::int64_t> unk_id() const override { return file_.unk; }
  std::optional<std::int64_t> size() const override { return static_cast<std::int64_t>(file_.tokens.size()); }

 private:
  struct Part {
    std::int32_t id;
    std::size_t size;
  };

  // Call `each` with the pieces of a text in order.
  template <class Each>
  void each_piece(std::string_view text, const Each& each) const {
    const auto pieces_of = [&](const Section& section) {
      const auto piece = [&](std::size_t begin, std::size_t end, std::int64_t added) {
        each(Piece{section, begin, end, added});
      };
      const auto plain = [&](std::size_t begin, std::size_t end) {
        const std::string_view bounded = section.bytes.substr(0, end);
        while (begin < end) {
          const std::size_t next = piece_end(bounded, begin, file_.classes);
          piece(begin, next, -1);
          begin = next;
        }
      };
      split(section.bytes, file_.after, plain, piece);
    };
    const auto between = [&](std::size_t begin, std::size_t end) {
      const std::string_view part = text.substr(begin, end - begin);
      const auto is_high = [](char mark) { return static_cast<unsigned char>(mark) >= 0xcc; };  // of U+0300 on
      if (!file_.composed || std::none_of(part.begin(), part.end(), is_high)) return pieces_of({part, begin});
      const ComposedText composed = file_.composed->of(part);
      pieces_of({composed.text, begin, &composed});
    };
    split(text, file_.before, between, [&](std::size_t begin, std::size_t end, std::int64_t id) {
      each(Piece{{text, 0}, begin, end, id});
    });
  }

  // The bytes before the last two pieces and the white space after them.
  std::size_t settled_pieces(std::string_view text) const {
    std::vector<std::pair<std::size_t, bool>> starts;  // of pieces, and whether normalization changed nothing there
    std::size_t kept = 0;             // pieces up to the last one that does not end the text with white space
    each_piece(text, [&](const Piece& piece) {
      starts.emplace_back(piece.start(), piece.start() == piece.section.stop(piece.begin));
      if (!is_space_at(text, piece.start(), piece.stop())) kept = starts.size();
    });
    if (kept < 3) return 0;
    std::size_t k = kept - 2;
    // A part must not end with white space, which would have other pieces at the end of a text.
    while (k > 0 && !(starts[k].second && is_cut(text, starts[k].first))) --k;
    return starts[k].first;
  }

  bool is_space_at(std::string_view text, std::size_t begin, std::size_t end) const {
    while (begin < end && file_.classes.of(code_point(text, begin)) == kSpace) begin += character_length(text, begin);
    return begin >= end;
  }

  // Whether the text can be cut at the start of a piece, which is not that of the text.
  bool is_cut(std::string_view text, std::size_t start) const {
    return file_.classes.of(code_point(text, character_before(text, start))) != kSpace &&
           (!file_.composed || file_.composed->begins(code_point(text, start)));
  }

  // The tokens of a piece: again and again the pair of the lowest rank is merged, the leftmost if there are several.
  std::vector<Part> merged(std::string_view bytes) const {
    if (bytes.size() == 1) return {{file_.bytes[static_cast<unsigned char>(bytes[0])], 1}};
    if (file_.ignores_merges) {
      const auto whole = file_.ids.find(bytes);
      if (whole != file_.ids.end()) return {{whole->second, bytes.size()}};
    }
    struct Symbol {
      std::int32_t id;
      std::uint32_t previous, next, size;  // size 0: merged into the one before
    };
    struct Candidate {
      std::uint32_t rank, place;
      std::int32_t id;

      bool operator<(const Candidate& other) const {  // the top of the queue is the largest
        return rank != other.rank ? rank > other.rank : place > other.place;
      }
    };
    const auto n = static_cast<std::uint32_t>(bytes.size());
    std::vector<Symbol> symbols;
    symbols.reserve(n);
    for (std::uint32_t i = 0; i < n; ++i) {
      symbols.push_back({file_.bytes[static_cast<unsigned char>(bytes[i])], i - 1, i + 1, 1});
    }
    std::priority_queue<Candidate> candidates;
    const auto merge_at = [&](std::uint32_t place) -> const BytePairFile::Merge* {
      const std::uint32_t next = symbols[place].next;
      if (next >= n) return nullptr;
      const auto merge = file_.merges.find(BytePairFile::key(symbols[place].id, symbols[next].id));
      return merge == file_.merges.end() ? nullptr : &merge->second;
    };
    const auto consider = [&](std::uint32_t place) {
      if (const auto* merge = merge_at(place)) candidates.push({merge->rank, place, merge->id});
    };
    for (std::uint32_t i = 0; i + 1 < n; ++i) consider(i);
    while (!candidates.empty()) {
      const Candidate best = candidates.top();
      candidates.pop();
      Symbol& symbol = symbols[best.place];
      const auto* const merge = symbol.size == 0 ? nullptr : merge_at(best.place);
      if (merge == nullptr || merge->id != best.id) continue;  // one of both was merged with another one
      Symbol& other = symbols[symbol.next];
      symbol.id = best.id;
      symbol.size += other.size;
      symbol.next = other.next;
      other.size = 0;
      if (symbol.next < n) symbols[symbol.next].previous = best.place;
      if (best.place > 0) consider(symbol.previous);
      consider(best.place);
    }
    std::vector<Part> parts;
    for (std::uint32_t i = 0; i < n; i = symbols[i].next) parts.push_back({symbols[i].id, symbols[i].size});
    return parts;
  }

  BytePairFile file_;
};

}  // namespace

std::unique_ptr<Tokenizer> make_byte_pair_tokenizer(BytePairFile file) {
  return std::make_unique<BytePairTokenizer>(std::move(file));
}

}  // namespace xlruntime
