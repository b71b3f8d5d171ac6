package loader

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/podlink"
	"github.com/waggle-net/waggle/pkg/tables/attachments"
)

// ops attaches and detaches programs.
type ops struct {
	kernel     kernel
	generation *generation
}

func newOps(k kernel, g *generation) *ops { return &ops{k, g} }

// Update implements reconciler.Operations.
func (o *ops) Update(_ context.Context, _ statedb.ReadTxn, _ statedb.Revision, a *attachments.Attachment) error {
	switch a.Kind {
	case attachments.Hold: // the rules must be installed before the first pod link is attached
		if err := o.kernel.Pods.Guard(); err != nil {
			return err
		}
		return o.kernel.Pods.Hold(a.IfIndex)
	case attachments.Block:
		return o.orOld(o.kernel.Pods.SetFilter(uint32(a.IfIndex), o.program(a)))
	case attachments.TCX:
		return o.orVacant(a, o.kernel.Devices.Attach(pinName(a), attachPointOf(a), o.program(a)))
	case attachments.CGroup:
		return o.orVacant(a, o.kernel.Devices.AttachGroup(pinName(a), a.Device, a.Hook, o.program(a)))
	case attachments.PodLink:
		return o.kernel.Pods.Join(a.IfIndex, a.Device, a.MTU)
	}
	return fmt.Errorf("attach %s: unknown kind %q", a.Device, a.Kind)
}

// program returns the program that the hook of a row must run; nil leaves the hook unchanged.
func (o *ops) program(a *attachments.Attachment) *program {
	if a.ProgramID == 0 {
		return nil
	}
	return o.generation.program(a.Program)
}

// orOld adds the table with the reason to an error of a hook without a program of this or a previous run.
func (o *ops) orOld(err error) error {
	if errors.Is(err, errNoFilter) {
		return fmt.Errorf("%w, and generation %d is not loaded: see the table bpf-programs", err, o.generation.number)
	}
	return err
}

// orVacant is [ops.orOld] for a pinned link. It sets Vacant if the kernel rejects the program of a hook that has no program of a previous run.
func (o *ops) orVacant(a *attachments.Attachment, err error) error {
	a.Vacant = false
	if err == nil {
		return nil
	}
	if have, unread := o.kernel.Devices.Attached(); unread == nil {
		on := have[pinName(a)]
		a.Vacant = on.IfIndex == 0 && on.Group == 0
	}
	return o.orOld(err)
}

// Delete implements reconciler.Operations. Pod links and the device that holds the blocks keep their clsact until they are deleted: without entries in the maps
// the programs drop everything, whereas a link without programs would drop nothing.
func (o *ops) Delete(_ context.Context, _ statedb.ReadTxn, _ statedb.Revision, a *attachments.Attachment) error {
	if a.Kind != attachments.TCX && a.Kind != attachments.CGroup {
		return nil
	}
	return o.kernel.Devices.Detach(pinName(a))
}

// Prune implements reconciler.Operations. It detaches every pin in the directory that has no row; the kernel removes all other objects with their device.
func (o *ops) Prune(_ context.Context, _ statedb.ReadTxn, rows iter.Seq2[*attachments.Attachment, statedb.Revision]) error {
	have, err := o.kernel.Devices.Attached()
	if err != nil {
		return err
	}
	for a := range rows {
		if a.Kind == attachments.TCX || a.Kind == attachments.CGroup {
			delete(have, pinName(a))
		}
	}
	var errs []error
	for key := range have {
		errs = append(errs, o.kernel.Devices.Detach(key))
	}
	return errors.Join(errs...)
}

// attachPointOf returns the hook of a row. Only on waggle_host must Waggle's program be the first.
func attachPointOf(a *attachments.Attachment) attachPoint {
	return attachPoint{IfIndex: a.IfIndex, Hook: a.Hook, Shared: a.Device != podlink.HostDevice}
}

// pinName returns the name of the pin of a link. Only one control group has links, and the names of its hooks differ from the hooks of devices.
func pinName(a *attachments.Attachment) string {
	if a.Kind == attachments.CGroup {
		return pinOf(string(attachments.CGroup), a.Hook)
	}
	return pinOf(a.Device, a.Hook)
}

// pinOf escapes characters that are valid in the name of a device but not in the name of a pin.
func pinOf(device, hook string) string {
	return strings.NewReplacer("%", "%25", ".", "%2e").Replace(device) + "_" + hook
}
