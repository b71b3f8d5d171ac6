//go:build !amd64

package node_test

// traceEnv is the environment variable of a tracer. The tracer changes registers and exists for amd64 only.
const traceEnv = "NODE_TEST_TRACE"

func traceMain() { panic("the tracer is written for amd64") }
