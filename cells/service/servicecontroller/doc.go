// Package servicecontroller computes the addresses of services and their backends, for the Services of Kubernetes and for the host ports of the pods of this node.
//
// Tables in: k8s-services, k8s-endpointslices, k8s-pods, k8s-nodes, cilium-nodes, nodes, node-addresses, api-servers, endpoints, sources. Tables out: services,
// frontends, backends. The cell that writes the maps reads frontends and backends, and sets the statuses of frontends.
//
// Kernel state: none. Files: the owners of addresses that several namespaces claim.
//
// Ids of frontends and backends survive restarts: they are read from the maps before anything is computed. Rows appear when all inputs are usable, also as a
// snapshot on disk; the tables are complete when all inputs are synced with their sources. Until then a frontend that is in the maps gets no row, and its
// entries of the previous run stay in force, because a snapshot on disk may be older.
//
// A change is followed only to the services that it concerns. A Service, slice or pod concerns one service, its backends and frontends, and the other claimants
// of its addresses. Addresses of the node concern the services that depend on them. Each pass executes a [plan] for one snapshot, in portions. The cell keeps
// the reports of services about a backend that they share ([shared]), and the members of a service with many endpoints ([roster]).
package servicecontroller
