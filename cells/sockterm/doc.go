// Package sockterm closes connected sockets whose backend is gone, so that their processes connect anew and get another one.
//
// It reads services, frontends and backends (who is gone), what the programs of sockets have stored at each socket, and endpoints (where
// the pods' namespaces are). It writes the table closed-sockets, a row for each protocol.
//
// In the kernel it owns nothing but the programs that list sockets, which are gone with the agent; closing a socket needs NET_ADMIN.
// Sockets inside pods' namespaces are closed only with --bpf-lb-sock-terminate-pod-connections: entering these needs SYS_ADMIN,
// which the agent has only with this flag and the one of podmtu. After a restart the first pass closes the sockets that lost their backend meanwhile.
package sockterm
