// Text to the ids of a vocabulary.
//
// A line ends with a newline, a carriage return or both. A byte-order mark at the beginning of a text of words or
// characters is skipped. White space between words belongs to the word or line end after it.
#pragma once

#include <memory>

#include "tokenizer.h"
#include "vocabulary.h"

namespace xlruntime {

std::unique_ptr<Tokenizer> make_vocabulary_tokenizer(Vocabulary vocabulary);

}  // namespace xlruntime
