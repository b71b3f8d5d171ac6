package loader

import (
	"errors"
	"fmt"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/pkg/datapath/pinnedmaps"
)

// verifierLines is the number of the verifier's last lines in an error. They name the rejected instruction and the reason.
const verifierLines = 6

// explain adds the verifier's last lines and a remedy to an error of loading.
func explain(err error) error {
	if verifierErr := (*ebpf.VerifierError)(nil); errors.As(err, &verifierErr) {
		return fmt.Errorf("%w; the verifier's last lines: %s%s", err, lastLines(verifierErr.Log), remedy(err, true))
	}
	err = pinnedmaps.WithCause(err)
	return fmt.Errorf("%w%s", err, remedy(err, false))
}

// lastLines returns the last lines of the log without the verifier's statistics.
func lastLines(log []string) string {
	var lines []string
	for _, line := range log {
		line = strings.TrimSpace(line)
		if line != "" && !strings.HasPrefix(line, "processed ") && !strings.HasPrefix(line, "verification time ") {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines[max(0, len(lines)-verifierLines):], " | ")
}

// remedy returns the action that an operator can take; the agent itself retries.
func remedy(err error, rejected bool) string {
	switch {
	case errors.Is(err, unix.ENOMEM):
		return "; free memory on the node or raise the memory limit of the agent's container"
	case errors.Is(err, unix.EPERM) && !rejected:
		return "; give the agent CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN"
	case errors.Is(err, ebpf.ErrNotSupported):
		return "; the kernel lacks features that the programs need: run Linux 6.1 or newer"
	case errors.Is(err, ebpf.ErrMapIncompatible):
		return "; a pinned map does not fit the programs: see the table bpf-maps"
	case rejected:
		return "; this kernel does not accept the programs: go back to the previous version of the agent, and report these lines with " +
			"the kernel's version"
	}
	return ""
}
