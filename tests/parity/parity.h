// What parity tests have in common: small models of odd sizes, and what the
// same training on any number of ranks must agree in.
#ifndef TESTS_PARITY_PARITY_H_
#define TESTS_PARITY_PARITY_H_

#include <cstdint>
#include <string>
#include <vector>

#include "proto/train.pb.h"
#include "tests/harness/training_run.h"

namespace shardgraph {

// Text of ModelSpec's families, with dropout; the first has its head tied.
extern const char kParityGpt2[];
extern const char kParityLlama[];

// 20 steps of SGD on batches of 12, in FP32. `overrides` are field.path=value.
TrainConfig ParityConfig(const std::string& model, int64_t micro_batch_size,
                         const std::vector<std::string>& overrides = {});

// Expects losses within 1e-5 and each tensor's update within 1e-4 of its norm.
void ExpectSame(const TrainingRunResult& run, const TrainingRunResult& one);

}  // namespace shardgraph

#endif  // TESTS_PARITY_PARITY_H_
