# The page of the report, src/emit/report/, as a C file: ${report_source}.
#
# One file is read twice: included by the build it adds the rule, run as a script (cmake -P) it does the work. Style and
# script go into the page as they are, and the page's policy names their hashes, so that nothing else can run in it.
set(report_dir ${CMAKE_CURRENT_LIST_DIR}/../src/emit/report)
set(report_scripts plan work items layout graph curve table panel stages search main) # in this order

if(NOT CMAKE_SCRIPT_MODE_FILE)
	set(report_source ${CMAKE_CURRENT_BINARY_DIR}/report_page.c)
	list(TRANSFORM report_scripts PREPEND ${report_dir}/)
	list(TRANSFORM report_scripts APPEND .js)
	add_custom_command(OUTPUT ${report_source}
		COMMAND ${CMAKE_COMMAND} -DOUT=${report_source} -P ${CMAKE_CURRENT_LIST_FILE}
		DEPENDS ${CMAKE_CURRENT_LIST_FILE} ${report_dir}/report.html ${report_dir}/report.css ${report_scripts}
		COMMENT "Putting the report's page together" VERBATIM)
	return()
endif()

# "sha256-<base64>" of a text: three digits of the hexadecimal hash are two of base64.
function(policy_hash text out)
	set(digits ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/)
	string(SHA256 hash "${text}")
	string(APPEND hash 00)
	set(base64 "")
	foreach(i RANGE 0 63 3)
		string(SUBSTRING ${hash} ${i} 3 three)
		math(EXPR high "0x${three} >> 6")
		math(EXPR low "0x${three} & 63")
		string(SUBSTRING ${digits} ${high} 1 high)
		string(SUBSTRING ${digits} ${low} 1 low)
		string(APPEND base64 ${high}${low})
	endforeach()
	string(SUBSTRING ${base64} 0 43 base64)
	set(${out} "sha256-${base64}=" PARENT_SCOPE)
endfunction()

# The text as a C array; a file in between, because only files are read as bytes.
function(add_part name text)
	file(WRITE ${OUT}.part "${text}")
	file(READ ${OUT}.part bytes HEX)
	file(REMOVE ${OUT}.part)
	string(REGEX REPLACE "(................................)" "\\1\n\t" bytes "${bytes}")
	string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
	file(APPEND ${OUT}.new "const unsigned char report_${name}[] = {\n\t${bytes}};\n"
		"const size_t report_${name}_size = sizeof report_${name};\n")
endfunction()

file(READ ${report_dir}/report.html page)
file(READ ${report_dir}/report.css style)
set(script "'use strict';\n(() => {\n")
foreach(name ${report_scripts})
	file(READ ${report_dir}/${name}.js text)
	string(APPEND script "${text}")
endforeach()
string(APPEND script "})();\n")

policy_hash("${style}" style_hash)
policy_hash("${script}" script_hash)
foreach(what style script style_hash script_hash)
	string(REPLACE "{{${what}}}" "${${what}}" page "${page}")
endforeach()

string(FIND "${page}" "{{title}}" title)
string(FIND "${page}" "{{data}}" data)
string(SUBSTRING "${page}" 0 ${title} head)
math(EXPR after_title "${title} + 9")
math(EXPR middle_size "${data} - ${after_title}")
string(SUBSTRING "${page}" ${after_title} ${middle_size} middle)
math(EXPR after_data "${data} + 8")
string(SUBSTRING "${page}" ${after_data} -1 tail)

file(WRITE ${OUT}.new "/* Made by cmake/report.cmake from src/emit/report. */\n#include \"emit/html.h\"\n\n")
add_part(head "${head}")
add_part(middle "${middle}")
add_part(tail "${tail}")
file(RENAME ${OUT}.new ${OUT})
