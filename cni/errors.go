package cni

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
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

// agentFailure explains an error of a call to the agent. Code is used when the agent answered and refused.
func agentFailure(code uint, socket string, doing string, err error) *types.Error {
	var answer *answerError
	switch {
	case errors.As(err, &answer):
		return failure(code, fmt.Errorf("%s: %w", doing, err), answer.remedy())
	case errors.Is(err, context.DeadlineExceeded):
		return failure(types.ErrTryAgainLater, fmt.Errorf("%s: the agent did not answer in time: %w", doing, err),
			"see what the agent is waiting for: waggle status")
	default:
		return failure(types.ErrTryAgainLater, fmt.Errorf("%s: %w", doing, err), agentRemedy(socket))
	}
}

func agentRemedy(socket string) string {
	return "check that waggle-agent runs on this node, that it was started with --socket-path " + socket +
		" (or the --state-dir that holds it), and read its log"
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
