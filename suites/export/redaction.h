// Takes names out of text: of people, machines, paths, addresses, jobs, and whatever else a user called things. The
// same name becomes the same placeholder everywhere ("path-1", "host-2"), so that what is left still compares.
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace mbb::suites {

class Redaction {
 public:
  // `known`: words that name nothing of the user's, in lower case.
  explicit Redaction(std::set<std::string> known);

  // A word that names something wherever it stands: a host, a user. Short ones and known words are no such word.
  void learn(const std::string& kind, std::string_view word);
  // What a whole name became, so that sentences say the same.
  void learn_name(const std::string& name, const std::string& placeholder);

  // The whole value as one thing of a kind. Empty stays empty.
  std::string whole(const std::string& kind, std::string_view value);
  // A name that a user chose: words that are not known become placeholders, "tp4-alice" -> "tp4-redacted-1".
  std::string name(std::string_view name);
  // A sentence or a path of ours, which may quote what others are called: paths, addresses, hosts, ids of jobs and
  // devices, keys, variables with their values, and every word learned so far.
  std::string text(std::string_view text);
  // A value that was typed: numbers stay; paths and addresses go whole, of other words those that are not known.
  std::string value(std::string_view value);

  // "3 paths, 1 host": how many different ones were replaced since the last forget_used(), by kind.
  std::string summary() const;
  void forget_used() { used_.clear(); }

 private:
  void use(const std::string& placeholder);
  bool is_placeholder(std::string_view word) const;
  std::string placeholder(const std::string& kind, std::string_view original);
  bool is_ours(std::string_view file) const;
  std::string word_of_name(std::string_view word);
  std::string token(std::string_view token, std::string_view before);
  std::string without_learned(std::string text);

  std::set<std::string> known_;
  std::set<std::pair<std::string, std::string>> used_;            // kind and placeholder
  std::map<std::string, std::map<std::string, size_t>> numbers_;  // kind -> original, lower case -> number
  std::vector<std::pair<std::string, std::string>> learned_;      // word, lower case -> placeholder; longest first
};

// Words of a text, in lower case: runs of letters.
void add_words(std::set<std::string>& words, std::string_view text);

}  // namespace mbb::suites
