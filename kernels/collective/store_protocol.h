// The wire format of the store: that of torch's TCPStore, so that a job started
// by torchrun can use the store of its agent, plus a greeting with a job token.
//
// A client sends kValidate and kValidateMagic (u32), to our own server kHello
// and the token next (answer: u8, 0 welcome, 1 refused), then requests: a u8
// and its arguments. Integers are in host byte order; strings and lists are a
// u64 length and their content.
//
//   kSet    key value           no answer
//   kGet    key                 string (the key must exist: kWait first)
//   kAdd    key i64             i64
//   kCheck  list of keys        u8: 0 all there, 1 not
//   kWait   list of keys        u8: 0, when all are there
//   kDelete key                 i64: how many there were
#ifndef KERNELS_COLLECTIVE_STORE_PROTOCOL_H_
#define KERNELS_COLLECTIVE_STORE_PROTOCOL_H_

#include <cstdint>
#include <cstring>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace shardgraph {

enum class StoreRequest : uint8_t {
  kValidate = 0,
  kSet = 1,
  kGet = 3,
  kAdd = 4,
  kCheck = 5,
  kWait = 6,
  kDelete = 8,
  kHello = 64,  // ours
};

constexpr uint32_t kValidateMagic = 0x3C85F7CE;
// Longer strings are refused: plan hashes and addresses are short, texts of
// plans some megabytes.
constexpr uint64_t kMaxStoreString = uint64_t{256} << 20;

template <typename T>
void AppendNumber(std::string* out, T value) {
  out->append(reinterpret_cast<const char*>(&value), sizeof(value));
}

inline void AppendText(std::string* out, absl::string_view text) {
  AppendNumber<uint64_t>(out, text.size());
  out->append(text.data(), text.size());
}

inline void AppendList(std::string* out, absl::Span<const std::string> list) {
  AppendNumber<uint64_t>(out, list.size());
  for (const std::string& text : list) AppendText(out, text);
}

}  // namespace shardgraph

#endif  // KERNELS_COLLECTIVE_STORE_PROTOCOL_H_
