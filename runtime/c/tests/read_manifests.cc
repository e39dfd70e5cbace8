// Read manifests, one a line: for tests/conformance/changed_manifests.py.
//
// The answer to each is `taken`, or the text of the refusal.
#include <iostream>
#include <string>

#include "../src/bundle.h"

int main() {
  for (std::string text; std::getline(std::cin, text);) try {
    xlruntime::Bundle::from_json(text, "bundle.json");
    std::cout << "taken" << std::endl;
  } catch (const xlruntime::Error& error) {
    if (error.code != XLR_ERROR_BUNDLE_FORMAT) throw;
    std::cout << error.message << std::endl;
  }
}
