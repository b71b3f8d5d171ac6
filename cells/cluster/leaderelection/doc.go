// Package leaderelection elects one leader among several replicas, by a Lease of Kubernetes.
//
// Tables in: none. Table out: leadership. Cells that work for the whole cluster start when the row says that this replica leads, and check the row again before
// each write. A replica that cannot renew the Lease stops after --leader-election-renew-deadline, counted from the start of the last successful request;
// another replica takes the Lease only when it has observed no renewal for the whole duration of the Lease, which is longer, counted by its own clock. The
// clocks of two machines are never compared. Afterwards the replica is a candidate again.
//
// The cell owns the Lease waggle-cluster. When it stops it releases the Lease, so that another replica leads within
// seconds. A restarted replica is a new candidate with a new identity. The package leaderelection of client-go is not used
// because it depends on the whole clientset.
package leaderelection
