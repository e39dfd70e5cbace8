// The entry point that ONNX Runtime calls: add all kernels to a session, as domain `ai.xlexport`.
#include "level.h"
#include "operators.h"

#if defined(XLEXPORT_LINKED_IN)  // into a library that exports functions of its own
#define XLEXPORT_EXPORT extern "C"
#elif defined(_WIN32)
#define XLEXPORT_EXPORT extern "C" __declspec(dllexport)
#else
#define XLEXPORT_EXPORT extern "C" __attribute__((visibility("default")))
#endif

#ifndef XLEXPORT_OPS_VERSION
#define XLEXPORT_OPS_VERSION "unknown"
#endif

namespace {

const OrtCustomOp* const kOperators[] = {
    xlexport::custom_op<xlexport::BandAttention>(),
    xlexport::custom_op<xlexport::ChunkAttention>(),
    xlexport::custom_op<xlexport::Gather>(),
    xlexport::custom_op<xlexport::LSHAttention>(),
    xlexport::custom_op<xlexport::LSHFewAttention>(),
    xlexport::custom_op<xlexport::RelativeAttention>(),
    xlexport::custom_op<xlexport::RelativeAttentionInt8>(),
    xlexport::custom_op<xlexport::LocalAttention>(),
    xlexport::custom_op<xlexport::QuantizeRows>(),
    xlexport::custom_op<xlexport::Sort>(),
};

// The domain with all operators; all sessions of a process share it, so it is never released.
OrtCustomOpDomain* shared_domain = nullptr;

OrtStatus* make_domain(const OrtApi* api, OrtCustomOpDomain** domain) {
  XLEXPORT_TRY(ort::CreateCustomOpDomain::call(api, "ai.xlexport", domain));
  for (const OrtCustomOp* op : kOperators) XLEXPORT_TRY(ort::CustomOpDomainAdd::call(api, *domain, op));
  return nullptr;
}

}  // namespace

XLEXPORT_EXPORT OrtStatus* RegisterCustomOps(OrtSessionOptions* options, const OrtApiBase* base) {
  const OrtApi* const api = base->GetApi(ORT_VERSION_OF_TABLE);
  if (api == nullptr) {  // the table of the first version has CreateStatus, too
    return ort::CreateStatus::call(base->GetApi(1), ort::kFail, "xlexport-ops needs ONNX Runtime 1.17 or newer");
  }
  OrtCustomOpDomain* domain = __atomic_load_n(&shared_domain, __ATOMIC_ACQUIRE);
  if (domain == nullptr) {
    OrtCustomOpDomain* made = nullptr;
    XLEXPORT_TRY(make_domain(api, &made));
    // If another thread was faster, its domain is used.
    const bool first = __atomic_compare_exchange_n(&shared_domain, &domain, made, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
    if (first) domain = made;
  }
  return ort::AddCustomOpDomain::call(api, options, domain);
}

// Return the instruction set that the kernels use: base, avx2 or avx512.
XLEXPORT_EXPORT const char* xlexport_ops_instruction_set() { return xlexport::level().name; }

// Return the version of this library.
XLEXPORT_EXPORT const char* xlexport_ops_version() { return XLEXPORT_OPS_VERSION; }

// Return the name of an operator that has a kernel, by its number from 0; nullptr behind the last.
XLEXPORT_EXPORT const char* xlexport_ops_operator(uint64_t number) {
  const uint64_t count = sizeof kOperators / sizeof *kOperators;
  return number < count ? kOperators[number]->GetName(kOperators[number]) : nullptr;
}
