// Package healthz answers the probes of kubelet over HTTP on the loopback addresses.
//
//	/livez    200 as long as the agent answers
//	/readyz   200 when pods can be attached, else 503
//	/healthz  the same as /readyz; the path that Cilium's manifests probe
//
// The body is one line for people. The judgement is package readiness', the same that the API gives. What is degraded but
// does not keep pods from being attached stays 200: a restart by kubelet would not repair it. It reads tables, writes none,
// and owns nothing in the kernel. A restart needs nothing of the run before.
package healthz
