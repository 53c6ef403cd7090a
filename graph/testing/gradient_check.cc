#include "graph/testing/gradient_check.h"

#include <cmath>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/step_state.h"

namespace shardgraph {

std::vector<double> RandomElements(int64_t n, int seed) {
  std::mt19937_64 random(seed);
  std::vector<double> elements(n);
  for (double& e : elements)
    e = static_cast<double>(random() >> 11) * 0x1p-52 - 1.0;
  return elements;
}

GradientCheck::GradientCheck() : builder_(&graph_), interpreter_(graph_) {
  options.zero_unused = true;
}

ValueId GradientCheck::Parameter(absl::string_view name, Dims shape) {
  const ValueId value = builder_.Input(name, TensorType(DType::kF64, shape));
  parameters_.emplace_back(name, value);
  contents_.emplace_back(
      value,
      RandomElements(NumElements(shape), static_cast<int>(parameters_.size())));
  return value;
}

ValueId GradientCheck::Constant(absl::string_view name, const TensorType& type,
                                std::vector<double> elements) {
  const ValueId value = builder_.Input(name, type);
  contents_.emplace_back(value, std::move(elements));
  return value;
}

int GradientCheck::Count(absl::string_view op) const {
  int count = 0;
  for (NodeId id : graph_.phases[graph_.FindPhase("gradient")].nodes)
    count += graph_.nodes[id].op->name == op;
  return count;
}

void GradientCheck::Run(const Model& model, double tolerance) {
  builder_.SetPhase("forward");
  const ValueId y = model(builder_);
  const bool is_loss =
      FindGradientRule(graph_.nodes[graph_.values[y].producer].op->name)
          ->is_loss;

  builder_.SetPhase("gradient");
  const ValueId differentiated = model(builder_);
  std::vector<double> seed;
  if (!is_loss) {
    const TensorType& type = builder_.type(differentiated);
    seed = RandomElements(type.num_elements(), 99);
    const ValueId gradient =
        builder_.Input("seed", TensorType(type.dtype, type.shape));
    contents_.emplace_back(gradient, seed);
    options.seeds.push_back({differentiated, gradient});
  }
  std::map<std::string, ValueId> gradients;
  for (const auto& [name, value] : parameters_) {
    options.leaves.push_back(
        {value, [&gradients, name = name](ValueId g) { gradients[name] = g; }});
  }
  const absl::Status status = Differentiate(builder_, options);
  ASSERT_TRUE(status.ok()) << status;

  graph_.outputs["y"] = y;
  for (const auto& [name, gradient] : gradients)
    graph_.outputs[absl::StrCat("gradient/", name)] = gradient;

  for (const auto& [value, elements] : contents_)
    interpreter_.Write(value, elements);
  const absl::Status ran = interpreter_.Run("gradient");
  ASSERT_TRUE(ran.ok()) << ran;
  for (const auto& [name, value] : gradients)
    gradients_[name] = interpreter_.Read(value);

  const auto objective = [&] {
    const absl::Status status = interpreter_.Run("forward");
    EXPECT_TRUE(status.ok()) << status;
    const std::vector<double> result = interpreter_.Read(y);
    if (is_loss) return result[0] / StepState().nominal_tokens;
    double sum = 0;
    for (size_t i = 0; i < result.size(); ++i) sum += result[i] * seed[i];
    return sum;
  };
  const double step = 1e-5;
  for (size_t p = 0; p < parameters_.size(); ++p) {
    const auto& [name, value] = parameters_[p];
    ASSERT_EQ(gradients_.count(name), 1u) << name;
    std::vector<double> elements = interpreter_.Read(value);
    for (size_t i = 0; i < elements.size(); ++i) {
      const double at = elements[i];
      elements[i] = at + step;
      interpreter_.Write(value, elements);
      const double above = objective();
      elements[i] = at - step;
      interpreter_.Write(value, elements);
      const double below = objective();
      elements[i] = at;
      const double expected = (above - below) / (2 * step);
      const double actual = gradients_[name][i];
      EXPECT_LE(std::abs(actual - expected),
                tolerance * (1 + std::abs(expected)))
          << name << "[" << i << "] is " << actual << ", expected " << expected;
    }
    interpreter_.Write(value, elements);
  }
}

}  // namespace shardgraph
