// Where a tokenizer is: the names of its file.
#ifndef TOOLS_TEXT_TOKENIZER_FILES_H_
#define TOOLS_TEXT_TOKENIZER_FILES_H_

#include <string>

namespace shardgraph {

// In a data folder, a run directory or a Hugging Face folder, the preferred
// first: ours and Hugging Face's, and SentencePiece's.
inline constexpr const char* kTokenizerFiles[] = {"tokenizer.json",
                                                  "tokenizer.model"};

// The path of the tokenizer in a folder; empty if there is none.
std::string FindTokenizerFile(const std::string& folder);

}  // namespace shardgraph

#endif  // TOOLS_TEXT_TOKENIZER_FILES_H_
