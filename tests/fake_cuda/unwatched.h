// What ThreadSanitizer is not to look at: the work of the double's device. How
// the device agrees with the host about pinned memory, the C library's copies
// included, is more than ThreadSanitizer can see.
#ifndef TESTS_FAKE_CUDA_UNWATCHED_H_
#define TESTS_FAKE_CUDA_UNWATCHED_H_

#ifdef SG_TSAN
// Of ThreadSanitizer's run-time library.
extern "C" {
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
}
#endif

namespace shardgraph::fake_cuda {

// While one lives, ThreadSanitizer ignores what this thread reads and writes.
class Unwatched {
 public:
#ifdef SG_TSAN
  Unwatched() {
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  }
  ~Unwatched() {
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
  }
#else
  Unwatched() {}
#endif
  Unwatched(const Unwatched&) = delete;
  Unwatched& operator=(const Unwatched&) = delete;
};

}  // namespace shardgraph::fake_cuda

#endif  // TESTS_FAKE_CUDA_UNWATCHED_H_
