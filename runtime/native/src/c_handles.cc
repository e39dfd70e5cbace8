#include "c_handles.h"

#include "messages.h"

using namespace xlruntime;

namespace {

struct LastError {
  std::string text, repair;
};

LastError& last_error() {
  thread_local LastError error;
  return error;
}

xlr_setting_info setting_info(const std::string& name, const std::string& meaning, const Setting& setting) {
  xlr_setting_info info{};
  info.name = name.c_str();
  info.meaning = meaning.c_str();
  info.value = setting.default_value.number;
  info.is_boolean = setting.type == Setting::Type::boolean ? 1 : 0;
  info.minimum = info.is_boolean ? 0 : setting.minimum.value_or(-kLargestLength);
  info.maximum = info.is_boolean ? 1 : setting.maximum.value_or(kLargestLength);
  info.can_be_off = setting.off.has_value() ? 1 : 0;
  info.off = setting.off.value_or(0);
  return info;
}

}  // namespace

ModelInfo::ModelInfo(const Model& model) : fingerprint(model.bundle().fingerprint()) {
  const Bundle& bundle = model.bundle();
  const EvaluationRules& rules = bundle.evaluation;
  settings.push_back({"segment_len", "tokens in one step; the longest document if a document is one step",
                      rules.segment_len, 1, kLargestLength, 0, 0, 0});
  settings.push_back(
      {"restart", "whether a document without positions left begins again", rules.restart ? 1 : 0, 0, 1, 0, 1, 0});
  meanings.reserve(rules.settings.size());
  for (const auto& [name, setting] : rules.settings) {
    meanings.push_back(one_line(setting.meaning));
    settings.push_back(setting_info(name, meanings.back(), setting));
  }
  info.architecture = bundle.architecture.c_str();
  info.precision = bundle.precision.c_str();
  info.tokenizer = bundle.tokenizer.kind.c_str();
  info.fingerprint = fingerprint.c_str();
  info.onnxruntime = model.ort().version().c_str();
  info.vocab_size = bundle.vocab_size;
  info.whole = rules.whole ? 1 : 0;
  info.setting_count = settings.size();
  info.settings = settings.data();
}

const char* xlr_error_text(void) { return last_error().text.c_str(); }

const char* xlr_error_repair(void) { return last_error().repair.c_str(); }

namespace xlruntime {

xlr_status failed(xlr_status status, const char* text, const char* repair) noexcept {
  try {
    last_error() = {text, repair};
  } catch (...) {  // no memory for the text
  }
  return status;
}

xlr_status status_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::bundle:
    case ErrorCode::vocabulary:
      return XLR_ERROR_BUNDLE;
    case ErrorCode::bundle_not_found:
      return XLR_ERROR_BUNDLE_NOT_FOUND;
    case ErrorCode::provider:
      return XLR_ERROR_PROVIDER;
    case ErrorCode::state:
      return XLR_ERROR_STATE;
    case ErrorCode::token:
      return XLR_ERROR_TOKEN;
    case ErrorCode::text:
      return XLR_ERROR_TEXT;
    case ErrorCode::option:
      return XLR_ERROR_OPTION;
    case ErrorCode::argument:
      return XLR_ERROR_ARGUMENT;
    case ErrorCode::file:
      return XLR_ERROR_FILE;
    case ErrorCode::runtime:
      break;
  }
  return XLR_ERROR_RUNTIME;
}

void require(bool condition, const char* problem) {
  if (!condition) throw Error(ErrorCode::argument, problem);
}

EvaluationChoice choice_of(const Model& model, const xlr_setting* settings, std::size_t count) {
  require(settings != nullptr || count == 0, "settings is NULL, but their number is not 0.");
  EvaluationChoice choice;
  for (std::size_t i = 0; i < count; ++i) {
    require(settings[i].name != nullptr, "the name of a setting is NULL.");
    const std::string name = settings[i].name;
    const std::int64_t value = settings[i].value;
    const Setting* declared = model.bundle().evaluation.settings.find(name);
    if (name == "segment_len") {
      choice.segment_len = value;
    } else if (name == "restart" && (value == 0 || value == 1)) {
      choice.restart = value == 1;
    } else if (name == "restart") {
      throw Error(ErrorCode::option, "restart is " + std::to_string(value) + ", expected 0 or 1.");
    } else {
      const bool is_boolean =
          declared != nullptr && declared->type == Setting::Type::boolean && (value == 0 || value == 1);
      choice.values.add(name, is_boolean ? SettingValue::boolean(value == 1) : SettingValue::integer(value));
    }
  }
  return choice;
}

void require_ids(const std::int64_t* ids, std::size_t count) {
  require(ids != nullptr || count == 0, "ids is NULL, but their number is not 0.");
  require(count <= Ids().max_size(), "more ids than any memory holds.");
}

Ids ids_of(const std::int64_t* ids, std::size_t count) {
  require_ids(ids, count);
  return Ids(ids, ids + count);
}

std::string_view text_of(const char* text, std::size_t size) {
  require(text != nullptr || size == 0, "text is NULL, but its size is not 0.");
  require(size <= std::string().max_size(), "a larger text than any memory holds.");
  return text == nullptr ? std::string_view("") : std::string_view(text, size);
}

Sampling sampling_of(const xlr_sampling* given) {
  const xlr_sampling options = options_of(given, XLR_SAMPLING_INIT);
  Sampling sampling;
  sampling.temperature = options.temperature;
  if (options.top_k != 0) sampling.top_k = options.top_k;
  if (options.top_p != 1) sampling.top_p = options.top_p;
  if (options.has_seed != 0) sampling.seed = options.seed;
  sampling.check();
  return sampling;
}

std::function<bool(std::int64_t)> token_function(xlr_token_function take, void* user) {
  require(take != nullptr, "the function that takes tokens is NULL.");
  return [take, user](std::int64_t token) { return take(user, token) == 0; };
}

xlr_scores view_of(const Scores& scores) {
  xlr_scores view{};
  view.count = scores.tokens.size();
  view.index = scores.index.data();
  view.tokens = scores.tokens.data();
  view.log_probs = scores.log_probs.data();
  view.context = scores.context.data();
  return view;
}

}  // namespace xlruntime
