package cni

import (
	"encoding/json"
	"io"

	"github.com/containernetworking/cni/pkg/types"
)

// Error codes of this plugin. The specification reserves the codes below 100.
const (
	codeHealthUnknown uint = 100 // CHECK: the agent could not report the endpoint's health
	codeUnhealthy     uint = 101 // CHECK: the endpoint, or the configuration in the pod's namespace, is not as required
	codeRejected      uint = 102 // ADD: the agent rejected the request
	codeKernel        uint = 103 // the kernel refused a change
)

// failure returns the error that a runtime shows: the code, the failed operation with its cause, and the remedy.
func failure(code uint, cause error, remedy string) *types.Error {
	return types.NewError(code, cause.Error(), remedy)
}

// printError writes the error in the format of the specification, which includes the version.
func printError(w io.Writer, cniVersion string, err *types.Error) {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "    ")
	_ = enc.Encode(struct {
		CNIVersion string `json:"cniVersion,omitempty"`
		*types.Error
	}{cniVersion, err}) // if stdout is closed, the error has no reader
}
