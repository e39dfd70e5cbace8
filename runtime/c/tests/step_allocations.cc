// Count the allocations of this library while a step model runs.
//
//     step_allocations BUNDLE
//
// It prints one line for each call of xlr_stream_run: steps, allocations. The linker puts the functions below in the
// place of those that allocate, for this library and the C++ library, which is linked in. ONNX Runtime, which is loaded
// when the program runs, has its own.
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "xlruntime.hpp"

namespace {
std::size_t allocations = 0;
}

extern "C" {
void* __real_malloc(std::size_t size);
void* __real_calloc(std::size_t count, std::size_t size);
void* __real_realloc(void* memory, std::size_t size);
void* __real_aligned_alloc(std::size_t alignment, std::size_t size);
int __real_posix_memalign(void** memory, std::size_t alignment, std::size_t size);

void* __wrap_malloc(std::size_t size) { return ++allocations, __real_malloc(size); }
void* __wrap_calloc(std::size_t count, std::size_t size) { return ++allocations, __real_calloc(count, size); }
void* __wrap_realloc(void* memory, std::size_t size) { return ++allocations, __real_realloc(memory, size); }
void* __wrap_aligned_alloc(std::size_t alignment, std::size_t size) {
  return ++allocations, __real_aligned_alloc(alignment, size);
}
int __wrap_posix_memalign(void** memory, std::size_t alignment, std::size_t size) {
  return ++allocations, __real_posix_memalign(memory, alignment, size);
}
}

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  xlr::Model model(argv[1]);
  xlr::Stream stream = model.stream_of_rows(2);
  for (const std::size_t steps : {1, 1, 11, 11, 1, 11, 1}) {  // 11 take several parts
    std::vector<float> observation(2 * steps * 3), action(2 * steps * 2);
    std::vector<char> active(2 * steps, 1);
    const xlr_tensor inputs[] = {xlr::tensor("observation", observation),
                                 {"active", "bool", active.data(), active.size()}};
    const xlr_tensor outputs[] = {xlr::tensor("action", action)};
    const std::size_t before = allocations;
    stream.run(inputs, outputs, steps);
    std::printf("%zu %zu\n", steps, allocations - before);
  }
}
