// Checks of our own invariants: a false one prints file, line, condition and
// message to stderr and aborts, in every build mode.
//
//   SG_CHECK(offset % 128 == 0) << "unit " << name;
//   SG_CHECK_EQ(a.size(), b.size());
//
// Operands are evaluated once. What a user can get wrong is an absl::Status
// instead (status_macros.h).

#ifndef KERNELS_CHECK_H_
#define KERNELS_CHECK_H_

#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <type_traits>
#include <utility>

namespace shardgraph::internal {

// Collects the message of a failed check; its destructor prints and aborts.
class FatalMessage {
 public:
  FatalMessage(const char* file, int line, const std::string& what);
  [[noreturn]] ~FatalMessage();
  FatalMessage(const FatalMessage&) = delete;
  FatalMessage& operator=(const FatalMessage&) = delete;

  std::ostream& stream() { return stream_; }

 private:
  std::ostringstream stream_;
};

// Gives a streaming expression the type void; binds looser than <<.
struct Voidify {
  void operator&(std::ostream&) const {}
};

template <typename T>
void PrintOperand(std::ostream& out, const T& value) {
  if constexpr (std::is_enum_v<T>) {
    out << +static_cast<std::underlying_type_t<T>>(value);
  } else if constexpr (requires { out << value; }) {
    out << value;
  } else {
    out << "(unprintable)";
  }
}

// The text of a failed comparison.
template <typename A, typename B>
std::unique_ptr<std::string> ComparisonFailure(const A& a, const B& b,
                                               const char* what) {
  std::ostringstream out;
  out << what << " (";
  PrintOperand(out, a);
  out << " vs. ";
  PrintOperand(out, b);
  out << ")";
  return std::make_unique<std::string>(out.str());
}

// Null when the comparison holds, else the text of the failure. Each check has
// a type of its own for `compare`: there is little here to compile again.
template <typename A, typename B, typename Compare>
std::unique_ptr<std::string> CheckComparison(const A& a, const B& b,
                                             Compare compare,
                                             const char* what) {
  if (compare(a, b)) [[likely]] {
    return nullptr;
  }
  return ComparisonFailure(a, b, what);
}

}  // namespace shardgraph::internal

#define SG_CHECK(condition)                                                  \
  (condition) ? (void)0                                                      \
              : ::shardgraph::internal::Voidify() &                          \
                    ::shardgraph::internal::FatalMessage(__FILE__, __LINE__, \
                                                         #condition)         \
                        .stream()

#define SG_CHECK_COMPARISON_(a, op, b)                                         \
  while (                                                                      \
      auto sg_failure_ = ::shardgraph::internal::CheckComparison(              \
          (a), (b),                                                            \
          [](const auto& sg_a_, const auto& sg_b_) { return sg_a_ op sg_b_; }, \
          #a " " #op " " #b))                                                  \
  ::shardgraph::internal::FatalMessage(__FILE__, __LINE__, *sg_failure_)       \
      .stream()

#define SG_CHECK_EQ(a, b) SG_CHECK_COMPARISON_(a, ==, b)
#define SG_CHECK_NE(a, b) SG_CHECK_COMPARISON_(a, !=, b)
#define SG_CHECK_LT(a, b) SG_CHECK_COMPARISON_(a, <, b)
#define SG_CHECK_LE(a, b) SG_CHECK_COMPARISON_(a, <=, b)
#define SG_CHECK_GT(a, b) SG_CHECK_COMPARISON_(a, >, b)
#define SG_CHECK_GE(a, b) SG_CHECK_COMPARISON_(a, >=, b)

#endif  // KERNELS_CHECK_H_
