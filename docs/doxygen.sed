# cleave.h as doxygen reads it.

# The list of statuses, which is a macro, becomes enumerators with what they mean.
/^#define CLV_STATUS_LIST/,/^$/ {
	/^	X(/H
}
/^	CLV_STATUS_LIST(X)$/ {
	x
	s/	X(\([A-Z_]*\), "\([^"]*\)")[ \\]*/	CLV_\1, \/**< \2 *\//g
}
/^#define X(/d
/^#undef X$/d

# A comment behind several fields belongs to each.
:again
s/\(^\|\n\)	\([a-z0-9_ ]*\) \([a-z_]*\), \([a-z_, ]*\);\( *\/\*\*<[^\n]*\*\/\)$/\1	\2 \3;\5\n	\2 \4;\5/
t again
