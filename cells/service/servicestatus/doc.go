// Package servicestatus creates Events about annotations of Services without effect.
//
// It runs in the cluster role, in the leading replica, so that not every agent writes the same Events. A job lists and follows all Services, reads their
// annotations as agents do ([serviceannotations.Parse]), and writes messages; a reconciler creates the Events. Table in: leadership. Table out:
// service-statements. Problems that depend on flags of a node are only in the column Problems of the table services on that node.
//
// It owns, in Kubernetes, Events with the reason [EventReason]; nothing in the kernel. The Services are the only persistent state.
package servicestatus
