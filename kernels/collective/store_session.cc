#include "kernels/collective/store_session.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include "kernels/collective/store_protocol.h"

namespace shardgraph {
namespace {

// What a connection may send before its greeting is complete.
constexpr size_t kMaxGreeting = 4096;

// Takes values from the front of a buffer.
class Parser {
 public:
  explicit Parser(absl::string_view data) : data_(data) {}

  template <typename T>
  bool Number(T* value) {
    if (data_.size() - used_ < sizeof(T)) return false;
    std::memcpy(value, data_.data() + used_, sizeof(T));
    used_ += sizeof(T);
    return true;
  }
  bool Text(std::string* text) {
    uint64_t size = 0;
    if (!Number(&size)) return false;
    malformed_ = malformed_ || size > kMaxStoreString;
    if (malformed_ || data_.size() - used_ < size) return false;
    text->assign(data_.data() + used_, size);
    used_ += size;
    return true;
  }
  bool List(std::vector<std::string>* list) {
    uint64_t size = 0;
    if (!Number(&size)) return false;
    malformed_ = malformed_ || size > kMaxStoreString / sizeof(uint64_t);
    for (uint64_t i = 0; i < size && !malformed_; ++i) {
      if (!Text(&list->emplace_back())) return false;
    }
    return !malformed_;
  }

  size_t used() const { return used_; }
  bool malformed() const { return malformed_; }

 private:
  const absl::string_view data_;
  size_t used_ = 0;
  bool malformed_ = false;
};

// Takes as long wherever the first difference is.
bool SameToken(absl::string_view a, absl::string_view b) {
  unsigned char difference = a.size() != b.size();
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    difference |= static_cast<unsigned char>(a[i] ^ b[i]);
  }
  return difference == 0;
}

}  // namespace

bool StoreSession::Receive(absl::string_view bytes) {
  in_.append(bytes.data(), bytes.size());
  return Handle();
}

bool StoreSession::WaitIsOver() const {
  return !waits_.empty() && *store_.Check(waits_);
}

bool StoreSession::GoOn() {
  waits_.clear();
  AppendNumber<uint8_t>(&out_, 0);
  return Handle();
}

bool StoreSession::Handle() {
  // Requests behind a wait are answered after it.
  while (!in_.empty() && waits_.empty() && !refused_) {
    Parser parser(in_);
    std::string key, value;
    std::vector<std::string> keys;
    uint8_t request = 0;
    parser.Number(&request);
    const StoreRequest kind = static_cast<StoreRequest>(request);
    bool complete = false;
    if (!validated_) {
      uint32_t magic = 0;
      if (kind != StoreRequest::kValidate) return false;
      complete = parser.Number(&magic);
      if (complete && magic != kValidateMagic) return false;
      validated_ = complete;
      welcome_ = complete && token_.empty();
    } else if (kind == StoreRequest::kHello) {
      complete = parser.Text(&value);
      if (complete) {
        const bool same = token_.empty() || SameToken(value, token_);
        welcome_ = same;
        refused_ = !same;
        AppendNumber<uint8_t>(&out_, same ? 0 : 1);
      }
    } else if (!welcome_) {
      return false;
    } else {
      switch (kind) {
        case StoreRequest::kSet:
          complete = parser.Text(&key) && parser.Text(&value);
          if (complete && !store_.Set(key, value).ok()) return false;
          break;
        case StoreRequest::kGet:
          complete = parser.Text(&key);
          if (complete) {
            absl::StatusOr<std::string> got =
                store_.Get(key, absl::ZeroDuration());
            if (!got.ok()) return false;
            AppendText(&out_, *got);
          }
          break;
        case StoreRequest::kAdd: {
          int64_t delta = 0;
          complete = parser.Text(&key) && parser.Number(&delta);
          if (complete) {
            const absl::StatusOr<int64_t> sum = store_.Add(key, delta);
            if (!sum.ok()) return false;
            AppendNumber<int64_t>(&out_, *sum);
          }
          break;
        }
        case StoreRequest::kCheck:
          complete = parser.List(&keys);
          if (complete) {
            AppendNumber<uint8_t>(&out_, *store_.Check(keys) ? 0 : 1);
          }
          break;
        case StoreRequest::kWait:
          complete = parser.List(&keys);
          if (complete && *store_.Check(keys)) {
            AppendNumber<uint8_t>(&out_, 0);
          } else if (complete) {
            waits_ = std::move(keys);
          }
          break;
        case StoreRequest::kDelete:
          complete = parser.Text(&key);
          if (complete) {
            AppendNumber<int64_t>(&out_, *store_.Delete(key));
          }
          break;
        default:
          return false;
      }
    }
    if (parser.malformed()) return false;
    if (!complete) {
      return welcome_ || in_.size() <= kMaxGreeting;
    }
    in_.erase(0, parser.used());
  }
  return true;
}

}  // namespace shardgraph
