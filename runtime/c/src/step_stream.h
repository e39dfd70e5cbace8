// A stream of a step model: rows of numbers, each with its own state and position.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "model.h"
#include "state.h"
#include "xlruntime.h"

namespace xlruntime {

// Only one thread at a time may use it. It keeps its model.
class StepStream {
 public:
  // `rows` of 0 are one, or the number that graphs fix. Throws XLR_ERROR_OPTION: graphs that do not take so many, or
  // memories that this runtime does not carry.
  StepStream(std::shared_ptr<Model> model, const EvaluationSettings& evaluation, std::int64_t rows);

  // The stream that `save` wrote. Throws XLR_ERROR_STATE_DAMAGED, XLR_ERROR_STATE_MISMATCH, XLR_ERROR_FILE.
  static std::unique_ptr<StepStream> restore(std::shared_ptr<Model> model, const std::filesystem::path& file);

  // Take `steps` steps of all rows, and write the outputs that the caller names. It allocates only when it first takes
  // so many. After an error the stream is unchanged.
  //
  // Throws XLR_ERROR_ARGUMENT: the tensors are not those of the model, or not finite; XLR_ERROR_TOO_LONG;
  // XLR_ERROR_BUNDLE_GRAPH.
  void run(const xlr_tensor* inputs, std::size_t input_count, const xlr_tensor* outputs, std::size_t output_count,
           std::size_t steps);

  std::unique_ptr<StepStream> fork() const { return std::unique_ptr<StepStream>(new StepStream(*this)); }
  void reset();
  void reset(std::size_t row);  // throws XLR_ERROR_ARGUMENT: there is no such row
  void save(const std::filesystem::path& file) const;

  std::int64_t rows() const { return rows_; }
  std::int64_t position(std::size_t row) const { return counts()[row]; }  // steps since the row was reset
  std::size_t nbytes() const;

 private:
  // A graph with tensors for some steps. States change places: the graph reads one buffer, and writes the other.
  struct Plan {
    const Graph* graph;
    std::int64_t steps;
    const Session* session;
    std::vector<Buffer> inputs{}, outputs{};
    std::array<Bindings, 2> read{}, written{};  // by the buffer that holds the states
  };

  StepStream(const StepStream& other);

  std::int64_t* counts() const { return static_cast<std::int64_t*>(positions_.data()); }
  void fill(std::size_t row);  // with first values
  void match(const std::vector<Tensor>& wanted, const xlr_tensor* given, std::size_t count, std::size_t steps,
             const char* kind, std::vector<char*>& places) const;
  void advance(const Plan& plan, std::int64_t done, std::int64_t all);
  void keep();
  void go_back(std::int64_t steps);
  const Plan& plan_for(std::int64_t steps);
  Plan make_plan(const Graph& graph, std::int64_t steps) const;

  std::shared_ptr<Model> model_;
  const EvaluationSettings evaluation_;
  const Graph& graph_;  // whose tensors the caller knows
  const std::int64_t rows_, longest_;
  std::vector<std::array<Buffer, 2>> states_;
  std::size_t now_ = 0;       // which of the two buffers hold the states
  std::vector<Buffer> kept_;  // states before a call of several parts
  Buffer positions_;          // int64 (rows)
  std::int64_t steps_ = 0;    // since the stream was opened
  std::vector<Plan> plans_;   // for the last numbers of steps
  std::vector<char*> given_, taken_;  // tensors of the caller, in the order of the graph
};

}  // namespace xlruntime
