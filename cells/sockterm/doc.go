// Package sockterm closes connected sockets whose backend is gone, so that their processes connect anew and get another one.
//
// It reads backends (who is gone), ipcache (whose addresses are pods'), endpoints (where the pods' network namespaces are) and
// what the programs of sockets have stored at each TCP socket: only those that they connected to a backend are closed. It
// writes the table closed-sockets, a row for each protocol.
//
// In the kernel it owns nothing; closing a socket needs NET_ADMIN. Sockets inside pods' namespaces are closed only with
// --bpf-lb-sock-terminate-pod-connections: entering these needs SYS_ADMIN, which nothing else of the agent does. After a restart the first pass closes
// the TCP sockets that lost their backend meanwhile.
package sockterm
