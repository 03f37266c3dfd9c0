/* Words of the Open Inference Protocol for types, for servers and clients. */
#include "file/oip_types.h"

#include <string.h>

/* Numbers are those of model_config.proto. */
static const struct {
	const char *name;
	dtype dtype;
	uint32_t number;
} datatypes[] = {
	{"BOOL", DT_BOOL, 1},  {"UINT8", DT_U8, 2},  {"UINT16", DT_U16, 3}, {"UINT32", DT_U32, 4}, {"UINT64", DT_U64, 5},
	{"INT8", DT_I8, 6},    {"INT16", DT_I16, 7}, {"INT32", DT_I32, 8},  {"INT64", DT_I64, 9},  {"FP16", DT_F16, 10},
	{"BF16", DT_BF16, 14}, {"FP32", DT_F32, 11}, {"FP64", DT_F64, 12},
};
enum { DATATYPES = sizeof datatypes / sizeof *datatypes };

const char *oip_datatype(const char *name)
{
	for (unsigned i = 0; i < DATATYPES; i++)
		if (strcmp(dtype_name(datatypes[i].dtype), name) == 0)
			return datatypes[i].name;
	return NULL;
}

uint32_t oip_type_number(const char *name)
{
	for (unsigned i = 0; i < DATATYPES; i++)
		if (strcmp(dtype_name(datatypes[i].dtype), name) == 0)
			return datatypes[i].number;
	return 0;
}

bool oip_dtype(const char *datatype, dtype *out)
{
	for (unsigned i = 0; i < DATATYPES; i++)
		if (strcmp(datatypes[i].name, datatype) == 0) {
			*out = datatypes[i].dtype;
			return true;
		}
	return false;
}
