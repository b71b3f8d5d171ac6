// Package clusterhealthz answers the probes of kubelet in the cluster role, and serves its metrics.
//
//	/livez    200, or 503 while a loop, a row or a transaction hangs
//	/healthz  the same
//	/readyz   200 if the last read or write of the Lease was successful, else 503
//	/metrics  for Prometheus
//
// The body of /readyz is one line, which names the leader and the degraded modules; degraded modules do not change the status. Tables in: leadership, health,
// identity-rounds. Tables out: none. The cell owns nothing but its port.
package clusterhealthz
