// Trainings drawn at random: model, wrap policy, strategy, precision, batch,
// world and lanes, each a function of a seed alone.
#ifndef TESTS_PROPERTY_RANDOM_TRAINING_H_
#define TESTS_PROPERTY_RANDOM_TRAINING_H_

#include <cstdint>
#include <string>

#include "fsdp/train/training_plan.h"
#include "proto/train.pb.h"

namespace shardgraph {

struct RandomTraining {
  uint64_t seed = 0;
  TrainConfig config;  // not resolved
  int world = 1;
  int lanes = 1;
  bool evaluate = false;
  bool generate = false;
  GenerateShape generate_shape;
};

// Depth 1 to 8, width 8 to 100, GPT-2, Llama and composed modules; 1 to 3
// micro-batches, worlds of 1 to 4.
RandomTraining DrawTraining(uint64_t seed);

// What is needed to run it again: printed when a test fails.
std::string Describe(const RandomTraining& training);

}  // namespace shardgraph

#endif  // TESTS_PROPERTY_RANDOM_TRAINING_H_
