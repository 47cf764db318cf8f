// The words that tables print beside metrics and knobs, each with what it means: `mbbench help WORD`.
#pragma once

#include <span>
#include <string_view>

namespace mbb::suites {

struct Term {
  std::string_view word;
  std::string_view meaning;  // one or two sentences
};

// By subject: classes, status, verdicts, what verdicts are on, the rest.
std::span<const Term> glossary();

// Case does not count; null for a word that is not there.
const Term* find_term(std::string_view word);

}  // namespace mbb::suites
