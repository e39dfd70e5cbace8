#include "onnx_tensors.h"

#include <cstdint>

namespace xlruntime {
namespace {

constexpr int kDeepest = 64;  // messages within each other

enum Message { kModel, kGraph, kNode, kAttribute, kFunction, kTraining, kSparse, kTensor, kEntry };

// The fields of ONNX's messages that lead to tensors, and to the entries that name their files.
constexpr struct {
  Message within;
  std::uint32_t field;
  Message message;
} kParts[] = {{kModel, 7, kGraph},         {kModel, 20, kTraining},    {kModel, 25, kFunction},
              {kTraining, 1, kGraph},      {kTraining, 2, kGraph},     {kGraph, 1, kNode},
              {kGraph, 5, kTensor},        {kGraph, 15, kSparse},      {kNode, 5, kAttribute},
              {kAttribute, 5, kTensor},    {kAttribute, 6, kGraph},    {kAttribute, 10, kTensor},
              {kAttribute, 11, kGraph},    {kAttribute, 22, kSparse},  {kAttribute, 23, kSparse},
              {kFunction, 7, kNode},       {kFunction, 11, kAttribute}, {kSparse, 1, kTensor},
              {kSparse, 2, kTensor},       {kTensor, 13, kEntry}};

class Reader {
 public:
  explicit Reader(const std::function<void(std::string_view)>& take) : take_(take) {}

  bool read(std::string_view content, Message message, int depth) const {
    bool is_location = false;
    std::string_view value;
    while (!content.empty()) {
      std::uint64_t tag = 0, size = 0;
      if (!read_number(content, tag)) return false;
      const auto field = static_cast<std::uint32_t>(tag) >> 3;  // protocol buffers drop further bits
      const auto wire = static_cast<int>(tag & 7);
      if (wire == 0 ? !read_number(content, size) : wire == 2 && !read_number(content, size)) return false;
      const std::uint64_t length = wire == 0 ? 0 : wire == 1 ? 8 : wire == 5 ? 4 : size;
      if (wire == 3 || wire == 4 || wire > 5 || length > content.size()) return false;
      const std::string_view part = content.substr(0, length);
      content.remove_prefix(length);
      if (wire != 2) continue;
      if (message == kEntry && field == 1) is_location = is_location || part == "location";
      if (message == kEntry && field == 2) value = part;
      for (const auto& known : kParts) {
        if (known.within != message || known.field != field) continue;
        if (depth > kDeepest || !read(part, known.message, depth + 1)) return false;
      }
    }
    if (is_location) take_(value);  // of a field that is there twice, the last counts
    return true;
  }

 private:
  static bool read_number(std::string_view& content, std::uint64_t& number) {
    for (int shift = 0; shift < 64 && !content.empty(); shift += 7) {
      const auto byte = static_cast<unsigned char>(content[0]);
      content.remove_prefix(1);
      number |= std::uint64_t{byte & 0x7fu} << shift;
      if (byte < 0x80) return true;
    }
    return false;
  }

  const std::function<void(std::string_view)>& take_;
};

}  // namespace

bool each_external_file(std::string_view content, const std::function<void(std::string_view)>& take) {
  return Reader(take).read(content, kModel, 0);
}

}  // namespace xlruntime
