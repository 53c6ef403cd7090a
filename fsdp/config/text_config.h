// Reading configs: text format files, dotted overrides, and errors that say
// what is allowed. Works on any message by reflection; knows no field by name.
#ifndef FSDP_CONFIG_TEXT_CONFIG_H_
#define FSDP_CONFIG_TEXT_CONFIG_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/message.h"

namespace shardgraph {

// Parses text format into `message`. InvalidArgument: "FILE:line:column: ...";
// an unknown field comes with the nearest name there is.
absl::Status ParseTextConfig(absl::string_view text, absl::string_view file,
                             google::protobuf::Message* message);

// Sets one field by its path: "optimizer.learning_rate=3e-4",
// "shard.strategy=HYBRID", "shard.wrap_classes=Block,Head" (a repeated field of
// scalars takes a comma-separated list and replaces what was there; an element
// of a repeated message is named by its index:
// "model.module.sequential.children.0.name=x"). InvalidArgument names the path,
// the value, what is allowed, and the nearest field.
absl::Status ApplyOverride(absl::string_view assignment,
                           google::protobuf::Message* message);

// The candidate nearest to `word` by edit distance; empty when none is at most
// half of the word away.
std::string NearestName(absl::string_view word,
                        const std::vector<std::string>& candidates);

}  // namespace shardgraph

#endif  // FSDP_CONFIG_TEXT_CONFIG_H_
