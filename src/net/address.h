/* Addresses: where a server listens. */
#ifndef NET_ADDRESS_H
#define NET_ADDRESS_H

#include "base/status.h"

/* A socket for listen(2) that does not block. *port: 0 becomes the one that was free. CLV_E_IO. */
clv_status address_bind(const char *host, uint16_t *port, int *out);
clv_status address_is_local(const char *host,
                            bool *out); /* nobody beyond this machine reaches it; CLV_E_IO: there is none */

#endif
