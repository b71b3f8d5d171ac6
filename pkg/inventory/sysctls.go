package inventory

import (
	"fmt"

	"github.com/waggle-net/waggle/pkg/datapath/sysctlfs"
	"github.com/waggle-net/waggle/pkg/sysctlrecord"
)

// sysctls finds the settings that the agent changed and no other writer has changed since. One step restores all of them, first the settings that
// change others.
func (m *Machine) sysctls() (found []Object, err error) {
	kernel, record := sysctlfs.Below(m.paths.Procfs), sysctlrecord.New(m.paths.StateDir)
	pending, err := record.Pending(kernel)
	for i, p := range pending {
		o := Object{Name: p.Name, Owner: "cell sysctl", Proof: "record of the previous value", Note: fmt.Sprintf("%s, was %s", p.Have, p.Want)}
		if i == 0 {
			o.remove = func() error { return record.Restore(kernel) }
		}
		found = append(found, o)
	}
	return found, err
}
