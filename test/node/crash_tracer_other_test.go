//go:build !amd64

package node_test

// traceEnv would make a test program a tracer, which changes registers and so is written for amd64 only.
const traceEnv = "NODE_TEST_TRACE"

func traceMain() { panic("the tracer is written for amd64") }
