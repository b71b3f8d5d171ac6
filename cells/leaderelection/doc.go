// Package leaderelection has one of several replicas lead, by a Lease of Kubernetes.
//
// It writes the table leadership, which others follow: whoever works for the whole cluster begins when the row says that
// this replica leads, and asks again before each write. A replica that cannot renew the Lease stops after
// --leader-election-renew-deadline, counted from the beginning of the last request that succeeded; another one takes the
// Lease only when it has seen no renewal for the whole duration of the Lease, which is longer, counted by its own clock.
// Nothing compares the clocks of two machines. Afterwards the replica is a candidate again.
//
// The cell owns the Lease waggle-cluster. When it stops it gives the Lease back, so that another replica takes over within
// seconds. A restarted replica is a new candidate with a new identity. The package leaderelection of client-go is not used
// because it brings the whole clientset with it.
package leaderelection
