// Package healthz answers the probes of kubelet over HTTP on the loopback addresses.
//
//	/livez    200, or 503 while a loop, a row or a transaction hangs
//	/healthz  the same; the path that Cilium's manifests probe
//	/readyz   200 if pods can be attached and all reconcilers have caught up, else 503
//
// The body is one line of text. Package readiness evaluates readiness, as for the API, and the monitor of package watchdog evaluates liveness. An error that
// is being retried does not make /livez 503: a restart by kubelet would not repair it. Tables in: those of [readiness.Tables]. Tables out: none. The cell owns
// nothing in the kernel, and uses no state of a previous run.
package healthz
