// Package sockterm closes connected sockets whose backend was removed, so that their processes connect again to another backend. A TCP connection stays while
// the pod or node of the backend exists.
//
// Tables in: services, frontends, backends, ipcache (pods and nodes that exist), endpoints (paths of the pods' network namespaces). Table out:
// closed-sockets (a row for each protocol). It also reads the peers that the socket programs have stored at each socket.
//
// In the kernel it owns only the programs that list sockets, which are removed with the agent; closing a socket needs NET_ADMIN.
// Sockets inside pods' namespaces are closed only with --bpf-lb-sock-terminate-pod-connections: entering these needs SYS_ADMIN,
// which the agent has only with this flag and the one of podmtu. After a restart the first pass closes the sockets that lost their backend meanwhile.
package sockterm
