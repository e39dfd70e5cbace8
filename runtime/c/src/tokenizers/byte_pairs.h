// Byte-level BPE as GPT-2 has it, without a library.
#pragma once

#include <memory>

#include "byte_pair_file.h"
#include "tokenizer.h"

namespace xlruntime {

std::unique_ptr<Tokenizer> make_byte_pair_tokenizer(BytePairFile file);

}  // namespace xlruntime
