/* Addresses: where a server listens. */
#ifndef NET_ADDRESS_H
#define NET_ADDRESS_H

#include "base/status.h"

/* A socket that listens and does not block. *port: 0 becomes the one that was free. CLV_E_IO. */
clv_status address_listen(const char *host, uint16_t *port, int *out);
bool address_is_local(const char *host); /* nobody beyond this machine reaches it */

#endif
