// StoreSession: the server's side of one connection in the store's protocol
// (store_protocol.h): bytes in, bytes out.
#ifndef KERNELS_COLLECTIVE_STORE_SESSION_H_
#define KERNELS_COLLECTIVE_STORE_SESSION_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "kernels/collective/store.h"

namespace shardgraph {

// One thread. It trusts nothing that it is sent.
class StoreSession {
 public:
  // `store` outlives it; `token`: what the client must present, if not empty.
  StoreSession(Store& store, absl::string_view token)
      : store_(store), token_(token) {}

  // Takes what the client has sent and acts on whole requests; false when the
  // connection is to be closed at once.
  bool Receive(absl::string_view bytes);

  // Requests behind a wait are acted on when its keys are there.
  bool WaitIsOver() const;
  // Answers that wait; false as Receive.
  bool GoOn();

  // What is to be sent; the caller takes away what it has.
  std::string& out() { return out_; }
  // The greeting is complete.
  bool welcome() const { return welcome_; }
  // To be closed when `out` is sent: the token was another.
  bool refused() const { return refused_; }

 private:
  bool Handle();

  Store& store_;
  const std::string token_;
  std::string in_, out_;
  bool validated_ = false;
  bool welcome_ = false;
  bool refused_ = false;
  std::vector<std::string> waits_;  // keys of the wait that goes on, if any
};

}  // namespace shardgraph

#endif  // KERNELS_COLLECTIVE_STORE_SESSION_H_
