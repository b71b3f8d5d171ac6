// Package healthz answers the probes of kubelet over HTTP on the loopback addresses.
//
//	/livez    200 unless something in the agent hangs, then 503
//	/healthz  the same; the path that Cilium's manifests probe
//	/readyz   200 when pods can be attached and all reconcilers have caught up, else 503
//
// The body is one line for people. Readiness is judged by package readiness, the same that the API gives, and liveness by the
// monitor of package heartbeat. What is broken and being retried stays 200 of /livez: a restart by kubelet would not repair
// it. It reads tables, writes none, and owns nothing in the kernel. A restart needs nothing of the run before.
package healthz
