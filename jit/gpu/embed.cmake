# Writes files, one after the other, as the string constant NAME of a C file: cmake -DOUT=.../a.c "-DFILES=a.cu;b.cu" -DNAME=a -P embed.cmake
foreach(file ${FILES})
  file(READ ${file} more HEX)
  string(APPEND hex "${more}")
endforeach()
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
file(WRITE ${OUT} "/* Generated: ${NAME}. */\nextern const char ${NAME}[];\nconst char ${NAME}[] = {${bytes}0};\n")
