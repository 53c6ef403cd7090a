// A small training run for fault tests: its folder, config and data.
#ifndef TESTS_FAULTS_SMALL_RUN_H_
#define TESTS_FAULTS_SMALL_RUN_H_

#include <cstdint>
#include <string>
#include <vector>

namespace shardgraph {

constexpr int kSmallVocabulary = 97;

// A fresh folder of the running test.
std::string TestFolder();

void WriteText(const std::string& path, const std::string& text);
std::string ReadText(const std::string& path);
// nanoGPT's token file.
void WriteTokens(const std::string& path, const std::vector<uint16_t>& tokens);
// `count` tokens below kSmallVocabulary.
std::vector<uint16_t> SomeTokens(int64_t count);

// Text of a config: a GPT-2 of 2 blocks, width 36, 32 positions and
// kSmallVocabulary, without data.path; two micro-batches a step for 3 ranks.
std::string SmallConfig();

}  // namespace shardgraph

#endif  // TESTS_FAULTS_SMALL_RUN_H_
