// Where the graphs of a bundle may keep their weights.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace xlruntime {

// Call `take` with each file that tensors of an ONNX graph name, wherever in the graph they are.
//
// ONNX Runtime 1.24.1 refuses files outside of the bundle's folder, but reads any file into a sparse tensor. Returns
// whether the content could be read as far as it may hold tensors.
bool each_external_file(std::string_view content, const std::function<void(std::string_view)>& take);

}  // namespace xlruntime
