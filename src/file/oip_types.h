/* How the Open Inference Protocol calls types. */
#ifndef FILE_OIP_TYPES_H
#define FILE_OIP_TYPES_H

#include "plan/plan.h"

const char *oip_datatype(const char *dtype_name); /* "FP32"; NULL: the protocol has none */
bool oip_dtype(const char *datatype, dtype *out); /* of "FP32" */
uint32_t oip_type_number(const char *dtype_name); /* of a dtype in ModelConfig; 0: the protocol has none */

#endif
