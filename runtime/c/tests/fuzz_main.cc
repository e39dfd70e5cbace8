// A small fuzzer for compilers without libFuzzer: it changes inputs, and keeps each input that reaches new code.
//
//     fuzz FOLDER RUNS SEED    each file of the folder is an input to begin with
//
// Compile all other files with -fsanitize-coverage=trace-pc, and this one without.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

constexpr std::size_t kPlaces = std::size_t{1} << 16, kLongestInput = std::size_t{1} << 16;

std::array<std::uint8_t, kPlaces> seen{}, now{};  // places in the code: by all inputs, and by this one

using Random = std::mt19937_64;

std::size_t below(Random& random, std::size_t n) { return n == 0 ? 0 : random() % n; }

const std::string& piece(Random& random) {
  static const std::vector<std::string> pieces = {
      "null", "true", "1e999", "-0", "9223372036854775808", "\\ud800", "\\u0000", "[[[[", "{\"\":", "\"", ",", "]", "}",
      "batch", "capacity", "segment", std::string(1, '\0'), "\xff\xff\xff\xff\xff\xff\xff\xff\x7f", "\xed\xa0\x80",
      "\xef\xbb\xbf", "\r\n", "\xe2\x80\xa8", "location", "ai.xlexport", "F32", "BOOL", "data_offsets"};
  return pieces[below(random, pieces.size())];
}

void change(std::string& input, const std::vector<std::string>& corpus, Random& random) {
  const std::size_t place = below(random, input.size() + 1), length = 1 + below(random, 16);
  const std::string& other = corpus[below(random, corpus.size())];
  switch (below(random, 8)) {
    case 0: if (!input.empty()) input[place % input.size()] ^= static_cast<char>(1 << below(random, 8)); break;
    case 1: if (!input.empty()) input[place % input.size()] = static_cast<char>(random()); break;
    case 2: input.erase(place, length); break;
    case 3: input.insert(place, input.substr(place, length)); break;
    case 4: input.insert(place, piece(random)); break;
    case 5: input.replace(place, length, piece(random)); break;
    case 6: input.insert(place, other.substr(below(random, other.size()), 4 * length)); break;
    default: if (!input.empty()) input[place % input.size()] += static_cast<char>(below(random, 9)) - 4;
  }
}

// Run an input; return whether it reached new code.
bool run(const std::string& input) {
  now.fill(0);
  LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(input.data()), input.size());
  bool is_new = false;
  for (std::size_t i = 0; i < kPlaces; ++i) {
    // Also count how often, in powers of two: loops of other lengths are new.
    const int count = now[i];
    const std::uint8_t times = count == 0 ? 0 : count < 2 ? 1 : count < 4 ? 2 : count < 16 ? 4 : count < 128 ? 8 : 16;
    is_new = is_new || (times & ~seen[i]) != 0;
    seen[i] |= times;
  }
  return is_new;
}

}  // namespace

extern "C" void __sanitizer_cov_trace_pc() {
  const auto place = reinterpret_cast<std::uintptr_t>(__builtin_return_address(0));
  std::uint8_t& times = now[(place ^ place >> 16) % kPlaces];
  if (times < 255) ++times;
}

int main(int count, char** arguments) {
  if (count != 4) return 2;
  std::vector<std::string> corpus;
  for (const auto& entry : std::filesystem::directory_iterator(arguments[1])) {
    std::ifstream file(entry.path(), std::ios::binary);
    corpus.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  std::sort(corpus.begin(), corpus.end());
  for (const std::string& input : corpus) run(input);
  const std::size_t given = corpus.size();
  Random random(std::strtoull(arguments[3], nullptr, 10));
  for (long long i = std::strtoll(arguments[2], nullptr, 10); i > 0; --i) {
    std::string input = corpus[below(random, corpus.size())];
    for (std::size_t changes = 1 + below(random, 4); changes > 0; --changes) change(input, corpus, random);
    if (input.size() > kLongestInput) input.resize(kLongestInput);
    if (std::ofstream last("last_input", std::ios::binary); last) last << input;  // for whoever looks at a crash
    if (run(input)) corpus.push_back(std::move(input));
  }
  std::remove("last_input");
  std::printf("%zu inputs, %zu given, %td places\n", corpus.size(), given,
              std::count_if(seen.begin(), seen.end(), [](std::uint8_t times) { return times != 0; }));
}
