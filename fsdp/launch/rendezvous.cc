#include "fsdp/launch/rendezvous.h"

#include <unistd.h>

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/status_macros.h"

namespace shardgraph {
namespace {

// How long the rank that serves waits for others that still ask.
constexpr absl::Duration kFarewell = absl::Seconds(10);

}  // namespace

absl::StatusOr<std::unique_ptr<Rendezvous>> Rendezvous::Join(
    const LaunchEnvironment& environment, absl::Duration timeout) {
  auto rendezvous = std::unique_ptr<Rendezvous>(new Rendezvous());
  if (environment.store_host.empty()) {
    rendezvous->own_ = std::make_unique<InProcessStore>();
    rendezvous->prefixed_ = std::make_unique<PrefixStore>(
        *rendezvous->own_, environment.store_prefix);
    return rendezvous;
  }
  if (environment.serves_store) {
    absl::StatusOr<std::unique_ptr<StoreServer>> server =
        StoreServer::Start({.host = environment.store_host,
                            .port = environment.store_port,
                            .token = environment.store_token});
    if (!server.ok()) {
      return absl::Status(
          server.status().code(),
          absl::StrCat(
              "rank ", environment.rank,
              " cannot serve the rendezvous store: ", server.status().message(),
              "; set MASTER_PORT to a free port on all ranks"));
    }
    rendezvous->server_ = *std::move(server);
  }
  char host[256] = {};
  gethostname(host, sizeof(host) - 1);
  SG_ASSIGN_OR_RETURN(
      rendezvous->client_,
      TcpStore::Connect(
          {.host = environment.store_host,
           .port = environment.store_port,
           .token = environment.store_token,
           .self = absl::StrCat("rank ", environment.rank, " on ", host),
           .timeout = timeout}));
  SG_ASSIGN_OR_RETURN(rendezvous->address_,
                      rendezvous->client_->LocalAddress());
  rendezvous->prefixed_ = std::make_unique<PrefixStore>(
      *rendezvous->client_, environment.store_prefix);
  return rendezvous;
}

Rendezvous::~Rendezvous() {
  prefixed_.reset();
  client_.reset();
  if (server_ != nullptr) server_->WaitUntilUnused(kFarewell);
}

}  // namespace shardgraph
