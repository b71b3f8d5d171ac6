package overlay

import (
	"errors"

	"github.com/waggle-net/waggle/pkg/tables/overlays"
)

type row = overlays.Overlay

var errBroken = errors.New("netlink is tired")

// brokenKernel is a [fakeKernel] that finds no device.
type brokenKernel struct{ *fakeKernel }

func (brokenKernel) Get(string) (device, bool, error) { return device{}, false, errBroken }

func (brokenKernel) EndCompletion() error { return nil }
