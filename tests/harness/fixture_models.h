// The fixtures' models (tests/fixtures/README.md): their specs, their weights
// by our parameter names, and the elements that comparisons leave out.
//
// A file or tensor that is not there ends the test.
#ifndef TESTS_HARNESS_FIXTURE_MODELS_H_
#define TESTS_HARNESS_FIXTURE_MODELS_H_

#include <map>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "nlohmann/json.hpp"

namespace shardgraph {

struct FixtureModel {
  const char* name;  // folder below tests/fixtures
  const char* spec;  // ModelSpec that says what config.json says
};

absl::Span<const FixtureModel> FixtureModels();

// Every tensor of the safetensors file tests/fixtures/`path`, widened.
std::map<std::string, std::vector<double>> ReadFixtureTensors(
    const std::string& path);
nlohmann::json ReadFixtureJson(const std::string& path);

// model.safetensors by our names: a file may lack the prefix and hold attention
// masks.
std::map<std::string, std::vector<double>> ReadFixtureWeights(
    const std::string& model);

// `expected` is the model's expected.json. Leaves out the elements of parameter
// `name` whose gradient is zero in exact arithmetic; and the largest magnitude
// among those, 0 without any.
std::vector<double> WithoutKeyBias(const nlohmann::json& expected,
                                   const std::string& name,
                                   std::vector<double> elements);
double KeyBiasMax(const nlohmann::json& expected, const std::string& name,
                  const std::vector<double>& elements);

double L2Norm(const std::vector<double>& a);
double L2Distance(const std::vector<double>& a, const std::vector<double>& b);
double Cosine(const std::vector<double>& a, const std::vector<double>& b);

}  // namespace shardgraph

#endif  // TESTS_HARNESS_FIXTURE_MODELS_H_
