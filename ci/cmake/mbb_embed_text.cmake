# Writes OUTPUT, a source file that defines `const std::string_view NAME` in namespace SPACE with the text of INPUT.
# Run at build time (cmake -P). The text goes in as pieces, since compilers limit the length of one literal.
file(READ ${INPUT} text)
string(LENGTH "${text}" length)
get_filename_component(file_name ${INPUT} NAME)
string(CONCAT out
  "// ${file_name} as text; written by ci/cmake/mbb_embed_text.cmake.\n#include <string_view>\n\n"
  "namespace ${SPACE} {\n\nextern const std::string_view ${NAME};\nconst std::string_view ${NAME} =")
set(at 0)
while(at LESS length)
  string(SUBSTRING "${text}" ${at} 8000 piece)
  string(APPEND out "\n    R\"mbb(${piece})mbb\"")
  math(EXPR at "${at} + 8000")
endwhile()
string(APPEND out ";\n\n}  // namespace ${SPACE}\n")
file(WRITE ${OUTPUT} "${out}")
