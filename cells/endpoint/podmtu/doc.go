// Package podmtu keeps the MTU of running pods equal to the MTU of the node when devices, flags or the mode change.
//
// Tables in: mtus (desired values of links and default routes), endpoints (paths of the pods' network namespaces), devices (the maximum length that the node
// itself may still send to pods). Table out: pod-mtus (a row for each endpoint).
//
// In the kernel it changes the MTU of both ends of pod links and of the default routes inside pods, which the plugin created, and owns nothing. It changes
// a pod only while this node has assigned all its values; <state-dir>/mtus lists the assigned values, so that a restarted agent recognises the pods of the
// previous run. Entering the namespaces needs SYS_ADMIN, so without --enable-pod-mtu-updates the cell only maintains that list.
package podmtu
