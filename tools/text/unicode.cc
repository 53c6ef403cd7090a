#include "tools/text/unicode.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/check.h"

#define U_SHOW_CPLUSPLUS_API 0
#include "unicode/uchar.h"
#include "unicode/unorm2.h"
#include "unicode/uregex.h"
#include "unicode/ustring.h"
#include "unicode/utf16.h"
#include "unicode/utf8.h"

namespace shardgraph {
namespace {

// A step of ICU's is ten thousand states to come back to. A match takes so many
// at most: in a short text fewer will do.
constexpr int64_t kMaxSteps = 500;

int32_t StepsFor(absl::string_view text) {
  const int64_t bytes = static_cast<int64_t>(text.size());
  return static_cast<int32_t>(std::min(kMaxSteps, 1 + bytes / 100));
}
// ICU counts in 32 bits; pieces of this size are cut nowhere near a limit.
constexpr int64_t kMaxBytes = int64_t{1} << 30;

bool IsAscii(absl::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) {
    return static_cast<unsigned char>(c) < 0x80;
  });
}

// Of well-formed text.
std::vector<UChar> ToUtf16(absl::string_view text) {
  SG_CHECK(static_cast<int64_t>(text.size()) < kMaxBytes);
  std::vector<UChar> wide(text.size() + 1);
  int32_t length = 0;
  UErrorCode error = U_ZERO_ERROR;
  u_strFromUTF8(wide.data(), static_cast<int32_t>(wide.size()), &length,
                text.data(), static_cast<int32_t>(text.size()), &error);
  SG_CHECK(U_SUCCESS(error)) << u_errorName(error);
  wide.resize(length);
  return wide;
}

std::string ToUtf8(const std::vector<UChar>& wide) {
  std::string text(wide.size() * 3, '\0');
  int32_t length = 0;
  UErrorCode error = U_ZERO_ERROR;
  u_strToUTF8(text.data(), static_cast<int32_t>(text.size()), &length,
              wide.data(), static_cast<int32_t>(wide.size()), &error);
  SG_CHECK(U_SUCCESS(error)) << u_errorName(error);
  text.resize(length);
  return text;
}

// Bytes that `units` of UTF-16 from `wide` on take in UTF-8.
int64_t Utf8Bytes(const UChar* wide, int64_t units) {
  int64_t bytes = 0;
  for (int64_t i = 0; i < units; ++i) {
    // The two halves of a pair: 2 bytes each.
    bytes += U16_IS_SURROGATE(wide[i]) ? 2 : U8_LENGTH(wide[i]);
  }
  return bytes;
}

}  // namespace

std::string WellFormedUtf8(absl::string_view text) {
  if (IsAscii(text)) return std::string(text);
  std::string result;
  result.reserve(text.size());
  int64_t i = 0;
  const int64_t n = text.size();
  while (i < n) {
    const int64_t begin = i;
    UChar32 c;
    U8_NEXT(text.data(), i, n, c);
    if (c < 0) {
      result += "\xef\xbf\xbd";
    } else {
      result.append(text.data() + begin, i - begin);
    }
  }
  return result;
}

std::string Nfc(absl::string_view text) {
  if (IsAscii(text)) return std::string(text);
  UErrorCode error = U_ZERO_ERROR;
  const UNormalizer2* nfc = unorm2_getNFCInstance(&error);
  SG_CHECK(U_SUCCESS(error)) << u_errorName(error);
  const std::vector<UChar> wide = ToUtf16(text);
  const int32_t length = static_cast<int32_t>(wide.size());
  if (unorm2_quickCheck(nfc, wide.data(), length, &error) == UNORM_YES)
    return std::string(text);
  // No character grows to more than three units.
  std::vector<UChar> normal(wide.size() * 3 + 1);
  error = U_ZERO_ERROR;
  const int32_t size =
      unorm2_normalize(nfc, wide.data(), length, normal.data(),
                       static_cast<int32_t>(normal.size()), &error);
  SG_CHECK(U_SUCCESS(error)) << u_errorName(error);
  normal.resize(size);
  return ToUtf8(normal);
}

bool StartsWithNumber(absl::string_view text, int* length) {
  int32_t i = 0;
  UChar32 c;
  U8_NEXT(text.data(), i,
          static_cast<int32_t>(std::min<size_t>(4, text.size())), c);
  *length = i;
  return (U_GET_GC_MASK(c) & U_GC_N_MASK) != 0;
}

absl::StatusOr<std::unique_ptr<RegexSplitter>> RegexSplitter::Create(
    const std::string& pattern) {
  const std::vector<UChar> wide = ToUtf16(WellFormedUtf8(pattern));
  UParseError where = {};
  UErrorCode error = U_ZERO_ERROR;
  std::unique_ptr<RegexSplitter> splitter(new RegexSplitter());
  splitter->regex_ = uregex_open(wide.data(), static_cast<int32_t>(wide.size()),
                                 0, &where, &error);
  if (U_FAILURE(error)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the regular expression \"", pattern, "\" is not understood: ",
        u_errorName(error), " at character ", where.offset));
  }
  return splitter;
}

RegexSplitter::~RegexSplitter() {
  uregex_close(static_cast<URegularExpression*>(regex_));
}

void RegexSplitter::Split(
    absl::string_view text,
    absl::FunctionRef<void(absl::string_view piece)> take) const {
  const std::vector<UChar> wide = ToUtf16(text);
  UErrorCode error = U_ZERO_ERROR;
  // Matching has state.
  URegularExpression* regex =
      uregex_clone(static_cast<URegularExpression*>(regex_), &error);
  uregex_setTimeLimit(regex, StepsFor(text), &error);
  uregex_setText(regex, wide.data(), static_cast<int32_t>(wide.size()), &error);
  SG_CHECK(U_SUCCESS(error)) << u_errorName(error);
  int64_t unit = 0, byte = 0;
  const auto take_until = [&](int64_t end) {
    if (end == unit) return;
    const int64_t bytes = Utf8Bytes(wide.data() + unit, end - unit);
    take(text.substr(byte, bytes));
    unit = end;
    byte += bytes;
  };
  while (uregex_findNext(regex, &error) && U_SUCCESS(error)) {
    const int64_t begin = uregex_start(regex, 0, &error),
                  end = uregex_end(regex, 0, &error);
    if (U_FAILURE(error)) break;
    take_until(begin);
    take_until(end);
  }
  uregex_close(regex);
  take_until(static_cast<int64_t>(wide.size()));
}

}  // namespace shardgraph
