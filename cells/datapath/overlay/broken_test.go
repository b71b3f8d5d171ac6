package overlay

import (
	"errors"

	tables "github.com/waggle-net/waggle/pkg/tables/overlays"
)

type row = tables.Overlay

var errBroken = errors.New("netlink is tired")

// brokenKernel is a [fakeKernel] that finds no device.
type brokenKernel struct{ *fakeKernel }

func (brokenKernel) Get(string) (device, bool, error) { return device{}, false, errBroken }

func (brokenKernel) EndCompletion() error { return nil }
