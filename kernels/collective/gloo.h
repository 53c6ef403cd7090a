// Gloo: ranks of different hosts, over TCP.
//
// Pieces travel as they are and are summed in rank order where they arrive, so
// that the results have the same bits as those of the other communicators. A
// rank that is lost or late is named on every rank, and breaks all
// communicators of the world: the first one that notices reports it through the
// store. Abort breaks one communicator on all its ranks. Whatever Gloo throws
// ends up as a Status. Gloo itself allocates memory in every call.
#ifndef KERNELS_COLLECTIVE_GLOO_H_
#define KERNELS_COLLECTIVE_GLOO_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/collective/communicator.h"
#include "kernels/collective/store.h"

namespace shardgraph {

struct GlooOptions {
  int rank = 0;  // world rank
  int size = 1;  // of the world
  // Numeric address or name of this host under which the others reach it.
  std::string address = "127.0.0.1";
  absl::Duration timeout = absl::Seconds(300);  // for each meeting of ranks
};

// `store` outlives the factory and its communicators; it is asked
// when communicators are made and, a few times a second, for reports. SIGPIPE
// is ignored from now on, unless the process handles it: Gloo writes to sockets
// that may be closed.
absl::StatusOr<std::unique_ptr<CommunicatorFactory>> MakeGlooFactory(
    Store& store, const GlooOptions& options);

}  // namespace shardgraph

#endif  // KERNELS_COLLECTIVE_GLOO_H_
