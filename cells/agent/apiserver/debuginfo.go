package apiserver

import (
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"

	"github.com/waggle-net/waggle/api/v1/models"
	"github.com/waggle-net/waggle/pkg/version"
)

// kernelRelease is the file with the version of the kernel.
const kernelRelease = "/proc/sys/kernel/osrelease"

// GetDebuginfo returns the data for a bug report about this agent.
func (a *api) GetDebuginfo(w http.ResponseWriter, _ *http.Request) {
	txn := a.DB.ReadTxn()
	policy, err := a.policies(txn)
	if err != nil {
		fail(w, http.StatusInternalServerError, err)
		return
	}
	kernel, err := os.ReadFile(kernelRelease)
	if err != nil {
		fail(w, http.StatusInternalServerError, fmt.Errorf("find the version of the kernel: %w", err))
		return
	}
	info := models.DebugInfo{
		CiliumVersion: version.String(), KernelVersion: strings.TrimSpace(string(kernel)),
		CiliumStatus: a.status(txn, true, false), EndpointList: a.view().endpoints(nil), ServiceList: a.services(txn), Policy: policy,
	}
	for _, name := range slices.Sorted(maps.Keys(a.Flags)) {
		info.EnvironmentVariables = append(info.EnvironmentVariables, fmt.Sprintf("%s:%v", name, a.Flags[name]))
	}
	respond(w, http.StatusOK, info)
}
