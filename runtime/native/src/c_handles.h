// What the functions of the C interface share: handles, codes and texts of errors, arguments and results.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "document_scorer.h"
#include "error.h"
#include "model.h"
#include "stream.h"
#include "xlruntime.h"

// What xlr_model_get_info shows.
struct ModelInfo {
  explicit ModelInfo(const xlruntime::Model& model);

  std::vector<std::string> meanings;  // in one line
  std::vector<xlr_setting_info> settings;
  std::string fingerprint;
  xlr_model_info info{};
};

struct xlr_model {
  explicit xlr_model(std::shared_ptr<xlruntime::Model> opened) : model(std::move(opened)), info(*model) {}

  std::shared_ptr<xlruntime::Model> model;
  ModelInfo info;
};

struct xlr_stream {
  std::unique_ptr<xlruntime::Stream> stream;
  xlruntime::Scores scores;  // the last results
  xlr_scores shown{};        // and as C sees them
};

namespace xlruntime {

// A function of the caller asked to stop.
class Stopped {};

// Keep the text of an error for xlr_error_text.
xlr_status failed(xlr_status status, const char* text, const char* repair = "") noexcept;

xlr_status status_of(ErrorCode code);

// Run `body`; turn what it throws into a status and a text.
template <class Body>
xlr_status guarded(const Body& body) noexcept {
  try {
    body();
    return XLR_OK;
  } catch (const Stopped&) {
    return failed(XLR_ERROR_STOPPED, "the caller's function asked to stop.");
  } catch (const Error& error) {
    return failed(status_of(error.code), error.what(), error.repair.c_str());
  } catch (const std::bad_alloc&) {
    return failed(XLR_ERROR_MEMORY, "there is too little memory.");
  } catch (const std::exception& error) {
    return failed(XLR_ERROR_INTERNAL, error.what());
  } catch (...) {
    return failed(XLR_ERROR_INTERNAL, "an exception of unknown type.");
  }
}

// Throws ErrorCode::argument unless the condition holds.
void require(bool condition, const char* problem);

// Copy a struct of the caller, who may have compiled it with another version of the header, over the defaults.
template <class Options>
Options options_of(const Options* given, Options defaults) {
  if (given == nullptr) return defaults;
  require(given->size >= sizeof given->size && given->size <= 4096,
          "a struct of options without its size; begin with its _INIT macro.");
  std::memcpy(&defaults, given, std::min(given->size, sizeof defaults));
  return defaults;
}

EvaluationChoice choice_of(const Model& model, const xlr_setting* settings, std::size_t count);
void require_ids(const std::int64_t* ids, std::size_t count);
Ids ids_of(const std::int64_t* ids, std::size_t count);
std::string_view text_of(const char* text, std::size_t size);
Sampling sampling_of(const xlr_sampling* given);
std::function<bool(std::int64_t)> token_function(xlr_token_function take, void* user);

// Scores as C sees them; they must outlive the result.
xlr_scores view_of(const Scores& scores);

// A copy that xlr_free frees.
template <class Item>
Item* copy_of(const Item* items, std::size_t count, std::size_t more = 0) {
  auto* const copied = static_cast<Item*>(std::calloc(std::max<std::size_t>(count + more, 1), sizeof(Item)));
  if (copied == nullptr) throw std::bad_alloc();
  if (count != 0) std::memcpy(copied, items, count * sizeof(Item));
  return copied;
}

}  // namespace xlruntime
