// Package servicehealth answers health checks of load balancers, as kube-proxy does.
//
// A Service with external traffic policy Local and a load balancer has a health check node port. On this port the node reports the number of
// local backends: 200 with at least one, 503 with none, or when the datapath has not followed the Service for a minute.
// --kube-proxy-replacement-healthz-bind-address is the address of /healthz, which reports whether the node serves Services at all.
//
// Tables in: services, frontends, k8s-nodes (this node's), and those of [readiness.Tables]. Table out: health-check-ports (a row for each port). It owns the
// listening sockets of these ports, on all addresses of the node; they are closed with the process, so nothing can be left over. A port of another process is
// retried, after 100 ms to a minute, and health names it.
package servicehealth
