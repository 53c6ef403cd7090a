// StoreSession, the server's side of the store's protocol, and InProcessStore
// behind it: what two peers send, in pieces. The first byte of the input says
// whether a token is asked for, then each piece begins with a byte that says
// whose it is and how long. Sockets and the client are not driven here.

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "kernels/check.h"
#include "kernels/collective/store.h"
#include "kernels/collective/store_session.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace shardgraph;  // NOLINT: a harness
  absl::string_view input(reinterpret_cast<const char*>(data), size);
  if (input.empty()) return 0;
  InProcessStore store;
  const bool with_token = (input[0] & 1) != 0;
  // Nobody can have said it, in pieces or not.
  const bool unknown = with_token && input.find('s') == input.npos;
  input.remove_prefix(1);
  StoreSession peers[2] = {{store, with_token ? "secret" : ""},
                           {store, with_token ? "secret" : ""}};
  bool open[2] = {true, true};
  while (!input.empty()) {
    const uint8_t head = static_cast<uint8_t>(input[0]);
    input.remove_prefix(1);
    const absl::string_view piece = input.substr(0, head >> 1);
    input.remove_prefix(piece.size());
    const int who = head & 1;
    if (open[who]) open[who] = peers[who].Receive(piece);
    for (bool again = true; again;) {
      again = false;
      for (int p = 0; p < 2; ++p) {
        if (!open[p] || !peers[p].WaitIsOver()) continue;
        open[p] = peers[p].GoOn();
        again = true;
      }
    }
    for (int p = 0; p < 2; ++p) {
      if (unknown) {
        SG_CHECK(!peers[p].welcome());
        SG_CHECK(peers[p].out().size() <= 1);
      }
      SG_CHECK(!(peers[p].welcome() && peers[p].refused()));
      peers[p].out().clear();
    }
  }
  return 0;
}
