/* The functions of a server in a build without nghttp2 or OpenSSL. */
#include "base/status.h"

#ifndef CLEAVE_SERVE
clv_status clv_server_create(const clv_server_options *options, clv_server **out)
{
	(void)options, (void)out;
	return fail(CLV_E_UNSUPPORTED, "this build has no nghttp2 or no OpenSSL, and so no server");
}
uint16_t clv_server_port(const clv_server *s)
{
	(void)s;
	return 0;
}
uint16_t clv_server_grpc_port(const clv_server *s)
{
	return clv_server_port(s);
}
uint16_t clv_server_metrics_port(const clv_server *s)
{
	return clv_server_port(s);
}
clv_status clv_server_run(clv_server *s)
{
	return clv_server_create(NULL, &s);
}
void clv_server_stop(clv_server *s)
{
	(void)s;
}
void clv_server_reload(clv_server *s)
{
	(void)s;
}
void clv_server_free(clv_server *s)
{
	(void)s;
}
#endif
