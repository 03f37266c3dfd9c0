/* Two artifacts compared (plan/diff.h has the list that is filled). */
#pragma once

#include "file/artifact.h"
#include "plan/diff.h"

/* diff_data.c. Adds the fact "data" to the open item where the data of two tensors differs. Both artifacts were opened. */
clv_status data_diff(diff *d, const artifact *a, uint32_t tensor_a, const artifact *b, uint32_t tensor_b,
                     clv_diff_weights how);

/* diff.c */
clv_status artifact_diff(diff *d, const artifact *a, const artifact *b, clv_diff_weights how);
