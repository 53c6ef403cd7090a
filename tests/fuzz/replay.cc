// Runs a fuzz harness without libFuzzer: over every file of the folder that is
// its argument, and over some thousand inputs made of them by changes that are
// the same in each run.

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

constexpr int kChanged = 3000;  // inputs

void Run(const std::string& input) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()),
                         input.size());
}

// Flips, cuts, doubles and mixes.
std::string Change(const std::vector<std::string>& inputs,
                   std::mt19937& random) {
  const auto below = [&random](size_t n) { return n == 0 ? 0 : random() % n; };
  std::string text = inputs[below(inputs.size())];
  for (size_t i = 1 + below(4); i > 0; --i) {
    const size_t at = below(text.size()), count = below(16);
    switch (below(5)) {
      case 0:
        if (!text.empty()) text[at] = static_cast<char>(random());
        break;
      case 1:
        text.erase(at, count);
        break;
      case 2:
        text.insert(at, text.substr(below(text.size()), count));
        break;
      case 3:
        if (!text.empty()) text[at] ^= static_cast<char>(1 << below(8));
        break;
      case 4: {
        const std::string& other = inputs[below(inputs.size())];
        text = text.substr(0, at) + other.substr(below(other.size()));
        break;
      }
    }
  }
  return text;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> inputs;
  if (argc == 2) {
    for (const auto& entry :
         std::filesystem::recursive_directory_iterator(argv[1])) {
      if (!entry.is_regular_file()) continue;
      std::ifstream file(entry.path(), std::ios::binary);
      inputs.emplace_back(std::istreambuf_iterator<char>(file),
                          std::istreambuf_iterator<char>());
    }
  }
  if (inputs.empty()) {
    std::fprintf(stderr, "replay: give the folder of a corpus\n");
    return 2;
  }
  for (const std::string& input : inputs) Run(input);
  std::mt19937 random(1);
  for (int i = 0; i < kChanged; ++i) Run(Change(inputs, random));
  std::printf("%zu inputs and %d changed ones\n", inputs.size(), kChanged);
}
