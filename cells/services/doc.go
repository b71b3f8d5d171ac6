// Package services computes which addresses belong to services and who answers behind them: the Services of Kubernetes, and the
// host ports of the pods of this node.
//
// Tables in: k8s-services, k8s-endpointslices, k8s-pods, k8s-nodes, cilium-nodes, nodes, node-addresses, endpoints, sources. Tables out: services,
// frontends and backends. It owns nothing in the kernel, and on disk the files of who has addresses that several claim; who writes the maps takes
// frontends and backends, and sets the statuses of frontends.
//
// Ids of frontends and backends are kept over restarts: they are read from the maps before anything is computed. Rows appear when
// all inputs are usable, be it from a copy on disk; the tables are complete when all inputs are the source's own. Until then a
// frontend that the maps have already gets no row: the run before knew more about it than a copy does, and what it wrote stays in
// force.
//
// A change is followed alone: what a service, a slice or a pod says concerns one service, and that its backends and frontends, and
// those who claim the same addresses. Addresses of the node concern the services that depend on them. Each pass is a [plan] for one
// snapshot, made of portions; what services say of a backend that they share is kept ([shared]), and so are the members of a service
// with many endpoints ([roster]).
package services
