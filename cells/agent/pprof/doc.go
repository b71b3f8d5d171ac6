// Package pprof serves profiles of the agent and all metrics of the Go runtime, if --pprof is set.
//
//	/debug/pprof/  index and profiles, as of net/http/pprof
//	/metrics       metrics of the Go runtime and of the process, for Prometheus
//
// The server listens on the loopback interface unless --pprof-address names another address. Tables in: none. Tables out: none. The cell owns its port, and
// nothing in the kernel. After a restart all profiles begin empty. Without --pprof, which is the default, the cell listens nowhere, and the runtime records no
// profile.
package pprof
