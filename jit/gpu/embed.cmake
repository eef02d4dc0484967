# Writes a file as the string constant NAME of a C file: cmake -DOUT=.../a.c -DFILE=a.cu -DNAME=a -P embed.cmake
file(READ ${FILE} hex HEX)
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
file(WRITE ${OUT} "/* Generated: ${NAME}. */\nextern const char ${NAME}[];\nconst char ${NAME}[] = {${bytes}0};\n")
