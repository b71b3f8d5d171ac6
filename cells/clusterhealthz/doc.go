// Package clusterhealthz answers the probes of kubelet in the cluster role.
//
//	/livez    200 unless something in the process hangs, then 503
//	/healthz  the same
//	/readyz   200 when the Lease could be read or written lately, else 503
//
// The body is one line for people and says who leads and which modules are degraded; neither of these is a failure. It reads
// leadership and health, and owns nothing.
package clusterhealthz
