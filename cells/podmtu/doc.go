// Package podmtu keeps the MTU of running pods at that of the node, when devices, flags or the mode change under them.
//
// It reads mtus (what links and default routes should have), endpoints (where the pods' namespaces are) and devices (what the node itself
// may still send to pods), and writes pod-mtus, a row for each endpoint.
//
// In the kernel it changes the MTU of both ends of pod links and of the default routes inside pods, which the plugin made, and owns nothing. It changes
// a pod only while all its values are ones that this node has given; <state-dir>/mtus has a list of these, so after a restart the pods of the
// previous run are recognised. Entering the namespaces needs SYS_ADMIN, so all but that list is off unless --enable-pod-mtu-updates is set.
package podmtu
