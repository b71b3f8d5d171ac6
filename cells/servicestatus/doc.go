// Package servicestatus creates Events about annotations of Services without effect.
//
// It runs in the cluster role, while this replica leads, so that a thousand agents do not write the same. A job lists and follows all Services,
// reads their annotations as agents do ([serviceannotations.Parse]), and writes messages into the table service-statements; a
// reconciler creates the Events. What depends on flags of nodes stands in the column Problems of their tables services alone.
//
// It owns, in Kubernetes, Events with the reason [EventReason]; nothing in the kernel. The Services are the only memory.
package servicestatus
