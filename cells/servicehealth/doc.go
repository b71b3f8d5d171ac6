// Package servicehealth answers those who ask whether to send clients to this node, as kube-proxy does.
//
// A Service with external traffic policy Local and a load balancer has a health check node port. There this node says how many
// backends of it are here: 200 with some, 503 with none, or when the datapath has not followed the Service for a minute. --kube-proxy-replacement-healthz-bind-address is where it says whether it
// serves Services at all.
//
// Tables in: services, frontends; k8s-nodes (this node's) and what readiness reads. Table out: health-check-ports, one row for each port, of this
// cell alone. It owns the listening sockets of these ports, on all addresses of the node; they end with the process, so nothing can
// be left over. A port of another process is tried again, after 100 ms to a minute, and health names it.
package servicehealth
