// Model specs and models from text format, for tests.
#ifndef GRAPH_MODEL_TESTING_MODEL_TEXT_H_
#define GRAPH_MODEL_TESTING_MODEL_TEXT_H_

#include <memory>
#include <string>
#include <utility>

#include "google/protobuf/text_format.h"
#include "graph/model/module.h"
#include "kernels/check.h"
#include "proto/model.pb.h"

namespace shardgraph {

// `text` is a ModelSpec: "gpt2 { n_layer: 2 }".
inline ModelSpec ModelSpecFromText(const std::string& text) {
  ModelSpec spec;
  SG_CHECK(google::protobuf::TextFormat::ParseFromString(text, &spec)) << text;
  return spec;
}

inline std::unique_ptr<Model> ModelFromText(const std::string& text) {
  absl::StatusOr<std::unique_ptr<Model>> model =
      MakeModel(ModelSpecFromText(text));
  SG_CHECK(model.ok()) << model.status().ToString();
  return *std::move(model);
}

}  // namespace shardgraph

#endif  // GRAPH_MODEL_TESTING_MODEL_TEXT_H_
