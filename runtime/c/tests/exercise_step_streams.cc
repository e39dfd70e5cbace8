// Run a step model, also with wrong arguments and from several threads: for sanitizers.
//
//     exercise_step_streams BUNDLE FOLDER
//
// BUNDLE is one of tests/helpers/step_bundles.py; FOLDER takes the files that it writes. It prints what differs from
// what is expected, and returns 1 if anything does.
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "xlruntime.hpp"

namespace {

constexpr std::size_t kRows = 3, kSteps = 11, kAll = kRows * kSteps;
std::atomic<int> failures{0};

void expect(bool condition, const char* what) {
  if (condition) return;
  std::printf("%s (%s)\n", what, xlr_error_text());
  ++failures;
}

// Inputs and outputs, each at an odd address.
struct Tensors {
  std::vector<char> observation = std::vector<char>(kAll * 12 + 1), active = std::vector<char>(kAll + 1, 1);
  std::vector<char> action = std::vector<char>(kAll * 8 + 1), counts = action;
  xlr_tensor inputs[2] = {{"observation", "float32", observation.data() + 1, observation.size() - 1},
                          {"active", "bool", active.data() + 1, active.size() - 1}};
  xlr_tensor outputs[2] = {{"action", "float32", action.data() + 1, action.size() - 1},
                           {"counts", "int64", counts.data() + 1, counts.size() - 1}};
};

std::vector<char> run(const xlr::Stream& stream) {
  Tensors tensors;
  expect(xlr_stream_run(stream.get(), tensors.inputs, 2, tensors.outputs, 2, kSteps) == XLR_OK, "run");
  return tensors.action;
}

void streams(xlr::Model& model, const std::string& file) {
  xlr::Stream stream = model.stream_of_rows(kRows);
  run(stream);
  stream.reset_row(1);
  stream.save(file);
  const xlr::Stream twin = stream.fork(), restored = model.restore(file);
  const std::vector<char> action = run(stream);
  expect(run(twin) == action && run(restored) == action, "a copy gives other actions");
  expect(stream.row_position(0) == 2 * kSteps && stream.row_position(1) == kSteps, "positions of rows");
  stream.reset();
  expect(stream.rows() == kRows && stream.row_position(0) == 0 && stream.row_position(kRows) == 0, "rows");
  expect(stream.memory_bytes() > 0 && stream.pending() == -1 && stream.resets() == 0, "what a stream is asked");
}

void errors(xlr::Model& model, const std::string& file) {
  const xlr::Stream stream = model.stream_of_rows(kRows);
  Tensors tensors;
  const auto returns = [&](xlr_status status, const xlr_tensor* inputs, size_t n, size_t m, size_t steps) {
    expect(xlr_stream_run(stream.get(), inputs, n, tensors.outputs, m, steps) == status, "a wrong call");
  };
  const auto last_number = [&](float number) {  // of the first kind of the last step
    std::memcpy(tensors.observation.data() + 1 + kAll * 12 - 12, &number, sizeof number);
  };
  returns(XLR_ERROR_ARGUMENT, nullptr, 2, 0, kSteps);
  returns(XLR_ERROR_ARGUMENT, tensors.inputs, 1, 0, kSteps);
  returns(XLR_ERROR_ARGUMENT, tensors.inputs, SIZE_MAX, SIZE_MAX, kSteps);
  for (const std::size_t steps : {std::size_t{0}, kSteps + 1, SIZE_MAX, SIZE_MAX / 12 + 1}) {
    returns(XLR_ERROR_ARGUMENT, tensors.inputs, 2, 0, steps);
  }
  tensors.active[1] = 2;
  returns(XLR_ERROR_ARGUMENT, tensors.inputs, 2, 0, kSteps);
  tensors.active[1] = 1;
  last_number(NAN);
  returns(XLR_ERROR_ARGUMENT, tensors.inputs, 2, 0, kSteps);
  last_number(1000);  // the graph fails, after two parts of the call
  returns(XLR_ERROR_BUNDLE_GRAPH, tensors.inputs, 2, 2, kSteps);
  expect(stream.row_position(kRows - 1) == 0, "half a call was counted");
  expect(run(stream) == run(model.stream_of_rows(kRows)), "half a call was taken");
  expect(xlr_stream_run(nullptr, nullptr, 0, nullptr, 0, 1) == XLR_ERROR_ARGUMENT, "no stream");
  expect(xlr_stream_reset_row(stream.get(), SIZE_MAX) == XLR_ERROR_ARGUMENT, "no such row");
  xlr_stream* other = nullptr;
  expect(xlr_stream_open_rows(model.get(), SIZE_MAX, &other) == XLR_ERROR_OPTION, "impossible rows");
  stream.save(file);
  expect(xlr_stream_restore(model.get(), file.c_str(), 1, &other) == XLR_ERROR_OPTION, "a capacity");
  expect(xlr_stream_feed_text(stream.get(), "a", 1, nullptr) == XLR_ERROR_OPTION, "a text");
  expect(xlr_stream_open(model.get(), nullptr, 0, &other) == XLR_ERROR_OPTION, "a stream of tokens");
  expect(xlr_stream_rows(nullptr) == 0 && xlr_stream_row_position(nullptr, 0) == 0, "rows of no stream");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  xlr::Model model(argv[1]);
  const std::string file = std::string(argv[2]) + "/state";
  errors(model, file);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back([&, i] { streams(model, file + std::to_string(i)); });
  for (auto& thread : threads) thread.join();
  return failures == 0 ? 0 : 1;
}
