package cni

import (
	"encoding/json"
	"io"

	"github.com/containernetworking/cni/pkg/types"
)

// Codes of our own, which the specification leaves free from 100 on.
const (
	codeHealthUnknown uint = 100 // CHECK: the agent could not say how the endpoint is
	codeUnhealthy     uint = 101 // CHECK: the endpoint, or what stands in the pod's namespace, is not as it must be
	codeRefused       uint = 102 // ADD: the agent refused the request
	codeKernel        uint = 103 // the kernel refused a change
)

// failure makes the error that a runtime shows: the code, what failed and why, and what to do about it.
func failure(code uint, cause error, remedy string) *types.Error {
	return types.NewError(code, cause.Error(), remedy)
}

// printError writes the error in the form of the specification, which wants the version beside it.
func printError(w io.Writer, cniVersion string, err *types.Error) {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "    ")
	_ = enc.Encode(struct {
		CNIVersion string `json:"cniVersion,omitempty"`
		*types.Error
	}{cniVersion, err}) // nobody is left to tell when stdout is closed
}
