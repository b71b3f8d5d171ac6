// Package bpf contains the datapath: C programs, their prebuilt objects, and the Go types of the layouts that both share.
//
// Each program is a separate object with the name of its hook: pod_egress and pod_ingress run on the two sides of every pod's link, host_egress on
// waggle_host. The objects are embedded; compilation at run time is not needed. `go generate` rebuilds them with clang 19 and the headers of Debian's
// libbpf-dev and linux-libc-dev, and a test compares the result with the committed objects (toolchain.json records the versions of the tools).
//
// The headers in lib declare the maps next to the code that reads them, and [MapSpecs] collects them. The agent creates and pins the maps once, and passes them to
// every program as replacements.
package bpf
