#include "tests/fake_cuda/symbols.h"

#include <cxxabi.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>

namespace shardgraph::fake_cuda {
namespace {

struct Function {
  uintptr_t begin, end;
  const char* name;  // Mangled, in the mapped file.
};

class Image {
 public:
  static const Image& Get() {
    static const Image* const image = new Image;
    return *image;
  }

  std::vector<Function> functions;  // By address.
  std::vector<std::span<char>> shared;
  uintptr_t begin = 0, end = 0;
  uintptr_t bias = 0;

 private:
  Image() {
    // The first object that dl_iterate_phdr visits is the program itself.
    dl_iterate_phdr(
        [](dl_phdr_info* info, size_t, void* self) {
          auto* image = static_cast<Image*>(self);
          image->bias = info->dlpi_addr;
          image->begin = UINTPTR_MAX;
          for (int i = 0; i < info->dlpi_phnum; ++i) {
            const auto& segment = info->dlpi_phdr[i];
            if (segment.p_type != PT_LOAD) continue;
            const uintptr_t at = info->dlpi_addr + segment.p_vaddr;
            image->begin = std::min<uintptr_t>(image->begin, at);
            image->end = std::max<uintptr_t>(image->end, at + segment.p_memsz);
          }
          return 1;
        },
        this);
    const int file = open("/proc/self/exe", O_RDONLY);
    struct stat status;
    if (file < 0 || fstat(file, &status) != 0) return;
    void* mapping = mmap(nullptr, static_cast<size_t>(status.st_size),
                         PROT_READ, MAP_PRIVATE, file, 0);
    close(file);
    if (mapping == MAP_FAILED) return;
    const auto* bytes = static_cast<const char*>(mapping);
    const auto* header = reinterpret_cast<const ElfW(Ehdr)*>(bytes);
    const auto* sections =
        reinterpret_cast<const ElfW(Shdr)*>(bytes + header->e_shoff);
    const char* names = bytes + sections[header->e_shstrndx].sh_offset;
    for (int i = 0; i < header->e_shnum; ++i) {
      const auto& section = sections[i];
      const char* name = names + section.sh_name;
      if (strncmp(name, ".noinit", 7) == 0 ||
          strcmp(name, "fake_cuda_shared") == 0) {
        shared.emplace_back(reinterpret_cast<char*>(bias + section.sh_addr),
                            section.sh_size);
      }
      if (section.sh_type == SHT_SYMTAB) {
        const auto* symbols =
            reinterpret_cast<const ElfW(Sym)*>(bytes + section.sh_offset);
        const char* strings = bytes + sections[section.sh_link].sh_offset;
        for (size_t k = 0; k < section.sh_size / sizeof(ElfW(Sym)); ++k) {
          if (ELF64_ST_TYPE(symbols[k].st_info) != STT_FUNC) continue;
          const uintptr_t at = bias + symbols[k].st_value;
          functions.push_back(
              {at, at + symbols[k].st_size, strings + symbols[k].st_name});
        }
      }
    }
    std::sort(
        functions.begin(), functions.end(),
        [](const Function& a, const Function& b) { return a.begin < b.begin; });
  }
};

}  // namespace

std::string FunctionName(const void* address) {
  const auto at = reinterpret_cast<uintptr_t>(address);
  const auto& functions = Image::Get().functions;
  auto next = std::upper_bound(
      functions.begin(), functions.end(), at,
      [](uintptr_t a, const Function& f) { return a < f.begin; });
  if (next != functions.begin() && at < std::prev(next)->end) {
    const char* mangled = std::prev(next)->name;
    int status = 0;
    char* demangled = abi::__cxa_demangle(mangled, nullptr, nullptr, &status);
    std::string name = status == 0 ? demangled : mangled;
    free(demangled);
    // void ns::(anonymous namespace)::Kernel<float, 4>(float*) -> Kernel<float,
    // 4>: drop parameters, then return type and namespaces, outside of <>.
    int depth = 0;
    size_t stop = name.size();
    for (size_t i = 0; i < name.size(); ++i) {
      if (name[i] == '<') ++depth;
      if (name[i] == '>') --depth;
      if (name[i] == '(' && depth == 0 &&
          name.compare(i, 11, "(anonymous ") != 0) {
        stop = i;
        break;
      }
    }
    name.resize(stop);
    size_t start = 0;
    depth = 0;
    for (size_t i = 0; i < name.size(); ++i) {
      if (name[i] == '<') ++depth;
      if (name[i] == '>') --depth;
      if (depth == 0 && (name[i] == ' ' || name[i] == ':')) start = i + 1;
    }
    return name.substr(start);
  }
  char text[32];
  snprintf(text, sizeof(text), "%p", address);
  return text;
}

std::string CodeLocation(const void* address) {
  static auto* const known = new std::map<const void*, std::string>;
  if (auto it = known->find(address); it != known->end()) return it->second;
  const Image& image = Image::Get();
  char command[128];
  snprintf(command, sizeof(command),
           "addr2line -e /proc/%d/exe 0x%zx 2>/dev/null", getpid(),
           reinterpret_cast<uintptr_t>(address) - image.bias - 1);
  std::string line;
  if (FILE* pipe = popen(command, "r")) {
    char buffer[512];
    if (fgets(buffer, sizeof(buffer), pipe) != nullptr) line = buffer;
    pclose(pipe);
  }
  while (!line.empty() && (line.back() == '\n' || line.back() == ' ')) {
    line.pop_back();
  }
  if (const size_t note = line.find(" (discriminator"); note != line.npos) {
    line.resize(note);
  }
  if (line.empty() || line[0] == '?') {
    line = FunctionName(address);
  } else if (const size_t slash = line.rfind('/'); slash != line.npos) {
    line.erase(0, slash + 1);
  }
  return (*known)[address] = line;
}

const std::vector<std::span<char>>& SharedVariables() {
  return Image::Get().shared;
}

bool InImage(const void* address) {
  const Image& image = Image::Get();
  const auto at = reinterpret_cast<uintptr_t>(address);
  return at >= image.begin && at < image.end;
}

}  // namespace shardgraph::fake_cuda
