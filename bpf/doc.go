// Package bpf holds the datapath: C programs, their prebuilt objects, and the Go side of the layouts that both share.
//
// Each program is an object of its own, named as its hook: pod_egress and pod_ingress run at the two sides of every
// pod's link, host_egress on waggle_host. The objects are embedded; nobody compiles anything at run time. `go generate`
// rebuilds them with clang 19 and the headers of Debian's libbpf-dev and linux-libc-dev, and a test compares what it
// builds with what is committed (toolchain.json says with which versions that was done).
//
// Maps are declared in the headers, beside the code that reads them, and [MapSpecs] collects them. The agent creates and
// pins them once, and hands them to every program as replacements.
package bpf
