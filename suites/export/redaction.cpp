// Rules for words: which name something, and what stands for them.
#include "suites/export/redaction.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "profiler/base/text.h"

namespace mbb::suites {
namespace {

constexpr const char* kName = "redacted";  // the placeholder of words that are in no list

bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || static_cast<unsigned char>(c) >= 0x80;
}
bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_word(char c) {
  return is_letter(c) || is_digit(c);
}
bool all_of(std::string_view text, bool (*is)(char)) {
  return !text.empty() && std::all_of(text.begin(), text.end(), is);
}

bool starts_with_any(std::string_view text, std::initializer_list<std::string_view> beginnings) {
  return std::any_of(beginnings.begin(), beginnings.end(), [&](std::string_view b) { return text.starts_with(b); });
}

// "10.1.2.3", with a port or not; "fe80::1"; "00:11:22:33:44:55".
bool is_network_address(std::string_view token) {
  const auto count = [&](char c) { return std::count(token.begin(), token.end(), c); };
  const auto hex = [](char c) { return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); };
  const auto of = [&](const auto& is, char with) {
    return std::all_of(token.begin(), token.end(), [&](char c) { return is(c) || c == with; });
  };
  if (count('.') == 3)
    return std::all_of(token.begin(), token.end(), [](char c) { return is_digit(c) || c == '.' || c == ':'; });
  if (std::none_of(token.begin(), token.end(), is_digit)) return false;  // C++'s "::"
  return (count(':') == 5 || count(':') > 6 || token.find("::") != std::string_view::npos) && of(hex, ':');
}

// "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx", with or without what stands before.
bool holds_uuid(std::string_view token) {
  constexpr std::string_view kShape = "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx";
  const auto hex = [](char c) { return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); };
  for (size_t at = 0; at + kShape.size() <= token.size(); ++at) {
    bool fits = true;
    for (size_t i = 0; fits && i < kShape.size(); ++i)
      fits = kShape[i] == '-' ? token[at + i] == '-' : hex(token[at + i]);
    if (fits) return true;
  }
  return false;
}

// Keys of services, and texts no person wrote: long, of capitals, small letters and digits.
bool is_key(std::string_view token) {
  if (token.size() >= 12 &&
      starts_with_any(token, {"sk-", "ghp_", "github_pat_", "glpat-", "hf_", "AKIA", "xox", "eyJ", "wandb_"}))
    return true;
  if (token.size() < 32 || token.starts_with("_Z")) return false;  // _Z: a mangled kernel
  bool capital = false, small = false, digit = false;
  for (const char c : token) {
    capital |= c >= 'A' && c <= 'Z';
    small |= c >= 'a' && c <= 'z';
    digit |= is_digit(c);
    if (!is_word(c) && std::string_view("+/=-").find(c) == std::string_view::npos) return false;
  }
  return digit && (small || capital) && (token.size() >= 40 || (small && capital));
}

// "node17.cluster.local", "ip-10-0-0-1", "dgx-003".
bool is_host(std::string_view token) {
  constexpr std::array<std::string_view, 22> kDomains = {
      "com", "net",      "org",   "edu",   "gov",  "mil", "int", "io", "ai", "dev", "local",
      "lan", "internal", "cloud", "intra", "corp", "de",  "uk",  "fr", "cn", "jp",  "ch"};
  const size_t dot = token.rfind('.');
  const auto plain = [](char c) { return is_word(c) || c == '-' || c == '.' || c == '_'; };
  if (dot != std::string_view::npos && dot > 0 && std::all_of(token.begin(), token.end(), plain) &&
      std::find(kDomains.begin(), kDomains.end(), to_lower(token.substr(dot + 1))) != kDomains.end())
    return true;
  const size_t stem = static_cast<size_t>(std::find_if_not(token.begin(), token.end(), is_letter) - token.begin());
  constexpr std::array<std::string_view, 14> kStems = {"node", "host", "dgx", "hgx",   "ip",      "srv",   "server",
                                                       "rack", "vm",   "pod", "slurm", "compute", "login", "worker"};
  if (std::find(kStems.begin(), kStems.end(), to_lower(token.substr(0, stem))) == kStems.end()) return false;
  const std::string_view rest = token.substr(stem);
  return std::any_of(rest.begin(), rest.end(), is_digit) && std::all_of(rest.begin(), rest.end(), plain);
}

// "host:1234:5678", as NCCL begins its lines.
size_t end_of_logging_host(std::string_view token) {
  const std::vector<std::string_view> parts = split(token, ':');
  return parts.size() == 3 && !parts[0].empty() && all_of(parts[1], is_digit) && all_of(parts[2], is_digit)
             ? parts[0].size()
             : 0;
}

// "/a/b", "~/a", "a/b.py"; not "tokens/s" or "functional/cpu", nor the files inside this program.
bool is_path(std::string_view token) {
  if (token.starts_with("shipped/")) return false;
  if (token.size() > 1 &&
      (token[0] == '/' || token.starts_with("~/") || token.starts_with("./") || token.starts_with("../")))
    return true;
  const size_t slash = token.rfind('/'), dot = token.rfind('.');
  const bool ends = dot != std::string_view::npos && dot + 1 < token.size() && all_of(token.substr(dot + 1), is_word);
  if (slash != std::string_view::npos && ends && dot > slash && !is_digit(token[dot + 1])) return true;
  return token.size() > 3 && token[1] == ':' && token[2] == '\\' && is_letter(token[0]);
}

// "train.py", as stacks and errors name it.
bool is_file_name(std::string_view token) {
  constexpr std::array<std::string_view, 20> kEndings = {"py",   "ipynb", "cpp",   "cc",     "cu",     "cuh",   "toml",
                                                         "yaml", "yml",   "json",  "jsonl",  "txt",    "log",   "sh",
                                                         "pt",   "pth",   "slurm", "sbatch", "sqlite", "pickle"};
  const size_t dot = token.rfind('.');
  return dot != std::string_view::npos && dot > 0 &&
         std::find(kEndings.begin(), kEndings.end(), token.substr(dot + 1)) != kEndings.end();
}

// "/a/b.py:12" and "/a/b.py:12:3": where the path ends.
size_t without_line(std::string_view path) {
  size_t end = path.size();
  for (size_t colon = path.rfind(':'); colon != std::string_view::npos && colon > 0;
       colon = path.rfind(':', colon - 1)) {
    if (!all_of(path.substr(colon + 1, end - colon - 1), is_digit)) break;
    end = colon;
  }
  return end;
}

// "SLURM_JOB_ID=...": what such a variable holds is nobody's business but its owner's.
size_t end_of_variable(std::string_view token) {
  const size_t equals = token.find('=');
  if (equals == std::string_view::npos || equals < 3 || equals + 1 == token.size()) return 0;
  const std::string_view key = token.substr(0, equals);
  const bool all =
      std::all_of(key.begin(), key.end(), [](char c) { return (c >= 'A' && c <= 'Z') || is_digit(c) || c == '_'; });
  return all ? equals + 1 : 0;
}

bool is_job_word(std::string_view word) {
  std::string lower = to_lower(word);
  while (!lower.empty() && !is_letter(lower.back())) lower.pop_back();
  return lower == "job" || lower == "jobid" || lower == "job_id" || lower == "job-id";
}

std::string plural(const std::string& kind, size_t count) {
  if (count == 1) return kind;
  return kind.ends_with("ss") ? kind + "es" : kind + "s";
}

}  // namespace

void add_words(std::set<std::string>& words, std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    size_t end = at;
    while (end < text.size() && is_letter(text[end])) ++end;
    if (end > at) words.insert(to_lower(text.substr(at, end - at)));
    at = end + (end == at ? 1 : 0);
  }
}

Redaction::Redaction(std::set<std::string> known) : known_(std::move(known)) {
  for (const char* own : {"path", "address", "host", "user", "job", "id", "key", "value", "command", kName})
    known_.insert(own);
}

std::string Redaction::placeholder(const std::string& kind, std::string_view original) {
  auto& of_kind = numbers_[kind];
  const size_t number = of_kind.try_emplace(to_lower(original), of_kind.size() + 1).first->second;
  std::string stands = fmt::format("{}-{}", kind, number);
  use(stands);
  return stands;
}

void Redaction::use(const std::string& placeholder) {
  if (is_placeholder(placeholder)) used_.emplace(placeholder.substr(0, placeholder.rfind('-')), placeholder);
}

// Whether a text is one that stands for another already: "user-3".
bool Redaction::is_placeholder(std::string_view word) const {
  const size_t dash = word.rfind('-');
  return dash != std::string_view::npos && all_of(word.substr(dash + 1), is_digit) &&
         known_.contains(std::string(word.substr(0, dash)));
}

void Redaction::learn(const std::string& kind, std::string_view word) {
  const std::string lower = to_lower(word);
  constexpr size_t kShortest = 3, kShortestNumber = 5;
  if (lower.size() < (all_of(lower, is_digit) ? kShortestNumber : kShortest) || known_.contains(lower) ||
      is_placeholder(lower) || lower == "root" || lower == "localhost")
    return;
  learn_name(lower, placeholder(kind, lower));
}

void Redaction::learn_name(const std::string& name, const std::string& placeholder) {
  const std::string lower = to_lower(name);
  if (lower.empty() || name == placeholder) return;
  const auto same = [&](const auto& one) { return one.first == lower; };
  if (std::any_of(learned_.begin(), learned_.end(), same)) return;
  const auto longer = [](const auto& a, const auto& b) { return a.first.size() > b.first.size(); };
  learned_.emplace_back(lower, placeholder);
  std::stable_sort(learned_.begin(), learned_.end(), longer);
}

std::string Redaction::whole(const std::string& kind, std::string_view value) {
  return value.empty() || is_placeholder(value) ? std::string(value) : placeholder(kind, value);
}

// Whether each word of a file's name is known: "mbbench.toml", "step.json".
bool Redaction::is_ours(std::string_view file) const {
  if (file.starts_with("shipped/")) return true;
  std::set<std::string> words;
  add_words(words, file.substr(0, file.rfind('.')));
  return std::all_of(words.begin(), words.end(), [&](const std::string& word) { return known_.contains(word); });
}

// Letters and the digits behind them: "tp4", "gbs128". A number that is longer than any size names a job or a date.
std::string Redaction::word_of_name(std::string_view word) {
  constexpr size_t kLongestNumber = 8;
  const size_t letters = static_cast<size_t>(std::find_if_not(word.begin(), word.end(), is_letter) - word.begin());
  const std::string_view stem = word.substr(0, letters);
  if (is_host(word)) return whole("host", word);
  if (is_job_word(stem) && letters < word.size()) return whole("job", word.substr(letters));
  if (letters == 0) {
    const size_t digits = static_cast<size_t>(std::find_if_not(word.begin(), word.end(), is_digit) - word.begin());
    const std::string unit = to_lower(word.substr(digits));  // "4k", "1gpu"
    if (digits < kLongestNumber && (unit.size() <= 1 || known_.contains(unit))) return std::string(word);
  } else if ((letters == 1 || known_.contains(to_lower(stem))) && word.size() - letters < kLongestNumber &&
             std::all_of(word.begin() + static_cast<std::ptrdiff_t>(letters), word.end(), is_word)) {
    return std::string(word);
  }
  return placeholder(kName, word);
}

std::string Redaction::name(std::string_view original) {
  const std::string name = text(original);  // its words become placeholders, which are known
  std::string out;
  for (size_t at = 0; at < name.size();) {
    size_t end = at;
    while (end < name.size() && is_word(name[end])) ++end;
    if (end > at) out += word_of_name(std::string_view(name).substr(at, end - at));
    if (end == at) ++end;
    if (!is_word(name[at])) out += name[at];
    at = end;
  }
  return out;
}

std::string Redaction::value(std::string_view value) {
  if (value.empty() || parse_double(value)) return std::string(value);
  if (value.starts_with("shipped/")) return std::string(value);
  const size_t at = value.find('@');
  if (value.find("://") != std::string_view::npos || (at != std::string_view::npos && at > 0))
    return whole("address", value);
  if (value.find_first_of("/\\~") != std::string_view::npos) return whole("path", value);
  return name(value);
}

// Words that were learned, between characters that are neither letters nor digits.
std::string Redaction::without_learned(std::string text) {
  if (learned_.empty()) return text;
  std::string lower = to_lower(text);
  for (const auto& [word, stands] : learned_)
    for (size_t at = lower.find(word); at != std::string::npos; at = lower.find(word, at)) {
      const size_t end = at + word.size();
      const bool apart = (at == 0 || !is_word(lower[at - 1])) && (end == lower.size() || !is_word(lower[end]));
      if (!apart) {
        at = end;
        continue;
      }
      use(stands);
      text.replace(at, word.size(), stands);
      lower.replace(at, word.size(), stands);
      at += stands.size();
    }
  return text;
}

std::string Redaction::token(std::string_view token, std::string_view before) {
  if (is_placeholder(token)) return std::string(token);
  if (token.find("://") != std::string_view::npos) return whole("address", token);
  if (const size_t at = token.find('@'); at != std::string_view::npos && at > 0) {
    learn("user", token.substr(0, at));
    return whole("address", token);
  }
  if (is_path(token)) {
    for (const std::string_view home : {"/home/", "/Users/", "/users/"})
      if (token.starts_with(home)) {
        const std::string_view rest = token.substr(home.size());
        learn("user", rest.substr(0, rest.find('/')));
      }
    return whole("path", token.substr(0, without_line(token))) + std::string(token.substr(without_line(token)));
  }
  if (const std::string_view file = token.substr(0, without_line(token)); is_file_name(file) && !is_ours(file))
    return whole("path", file) + std::string(token.substr(file.size()));
  if (const size_t from = end_of_variable(token); from > 0)
    return std::string(token.substr(0, from)) + whole("value", token.substr(from));
  if (is_network_address(token)) return whole("address", token);
  if (holds_uuid(token)) return whole("id", token);
  if (const size_t end = end_of_logging_host(token); end > 0) {
    learn("host", token.substr(0, end));
    return whole("host", token.substr(0, end)) + std::string(token.substr(end));
  }
  if (is_host(token)) return whole("host", token);
  if (is_key(token)) return whole("key", token);
  if (all_of(token, is_digit) && is_job_word(before)) {
    learn("job", token);
    return whole("job", token);
  }
  for (const std::string_view key : {"jobid=", "job_id=", "job=", "job-"})
    if (to_lower(token).starts_with(key) && all_of(token.substr(key.size()), is_digit) && !is_placeholder(token)) {
      learn("job", token.substr(key.size()));
      return std::string(token.substr(0, key.size())) + whole("job", token.substr(key.size()));
    }
  if (const size_t equals = token.find('='); equals != std::string_view::npos && equals > 0)
    return std::string(token.substr(0, equals + 1)) + this->token(token.substr(equals + 1), "");
  return std::string(token);
}

std::string Redaction::text(std::string_view text) {
  constexpr std::string_view kBetween = " \t\r\n\"'`()[]{}<>,;|";
  std::string out;
  std::string_view before;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find_first_of(kBetween, at), text.size());
    std::string_view whole_token = text.substr(at, end - at);
    size_t size = whole_token.size();
    while (size > 0 && std::string_view(".:!?").find(whole_token[size - 1]) != std::string_view::npos) --size;
    if (size > 0) out += token(whole_token.substr(0, size), before);
    out += whole_token.substr(size);
    if (!whole_token.empty()) before = whole_token;
    if (end < text.size()) out += text[end];
    at = end + 1;
  }
  return without_learned(std::move(out));
}

std::string Redaction::summary() const {
  std::map<std::string, size_t> counts;
  for (const auto& [kind, placeholder] : used_) ++counts[kind == kName ? "name" : kind];
  std::vector<std::string> parts;
  for (const auto& [kind, count] : counts) parts.push_back(fmt::format("{} {}", count, plural(kind, count)));
  return parts.empty() ? "nothing" : join(parts, ", ");
}

}  // namespace mbb::suites
